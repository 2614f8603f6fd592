"""Runs a function in the ranks of a worker group, the way torchrun does, for a process that is already running.

    from flyte_torchrun.launch import LaunchPlan, launch

    result = launch(LaunchPlan(nproc_per_node=2), train, config, epochs=3)
    print(result.value)  # what global rank 0 returned

Rendezvous, restarts and the ranks' environment are torch elastic's; starting the ranks, their inputs, the result and
the errors are done here. Importing this package loads no torch, and what starts processes only when `launch` is taken.
"""

from typing import TYPE_CHECKING, Any

from flyte_torchrun.launch.errors import (
    LaunchError,
    LaunchTerminatedError,
    LaunchTimeoutError,
    NodeLostError,
    PlanError,
    RankError,
    RendezvousError,
    SerializationError,
    TorchNotInstalledError,
)
from flyte_torchrun.launch.plan import LaunchPlan, resolve_nproc
from flyte_torchrun.launch.timeline import TimelineEvent

if TYPE_CHECKING:
    from flyte_torchrun.launch.launcher import LaunchResult, launch

__all__ = [
    "LaunchError",
    "LaunchPlan",
    "LaunchResult",
    "LaunchTerminatedError",
    "LaunchTimeoutError",
    "NodeLostError",
    "PlanError",
    "RankError",
    "RendezvousError",
    "SerializationError",
    "TimelineEvent",
    "TorchNotInstalledError",
    "launch",
    "resolve_nproc",
]


def __getattr__(name: str) -> Any:
    # A plugin whose task is only registered needs plans and errors: the launcher is a third of the import's time.
    if name not in ("LaunchResult", "launch"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from flyte_torchrun.launch import launcher

    return getattr(launcher, name)
