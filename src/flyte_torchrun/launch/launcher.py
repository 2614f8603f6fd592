"""From a plan and a function to one result."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flyte_torchrun.launch.errors import LaunchError, RankError, TorchNotInstalledError, with_own_type
from flyte_torchrun.launch.files import RunFolder, load, save
from flyte_torchrun.launch.plan import LaunchPlan, resolve_nproc
from flyte_torchrun.launch.processes import prepare, say_idle
from flyte_torchrun.launch.timeline import Recorder, TimelineEvent

__all__ = ["LaunchResult", "launch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchResult:
    """What a launch returns.

    Attributes:
        value: what the function returned in global rank 0, its tensors on the CPU; None where that rank ran elsewhere.
        is_rank_zero_here: whether global rank 0 was among this node's ranks.
        timeline: when what happened, in the order of the starts.
    """

    value: Any
    is_rank_zero_here: bool
    timeline: tuple[TimelineEvent, ...] = ()


def launch(plan: LaunchPlan, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> LaunchResult:
    """Runs the function in every rank of the worker group and waits for all of them.

    Each rank gets arguments of its own: changing one in place is seen by no other rank, nor by the caller. A coroutine
    function is run to its end in each rank. Tensors on a GPU arrive, and come back, on the CPU. What the ranks print is
    shown line by line behind `[rank N]`.

    However the launch ends, no process of the group and no file of the run is left. That takes at most the plan's
    shutdown_grace and 10 s after the end was decided, and with several nodes on this machine twice the grace and 30 s.

    Args:
        plan: the worker group.
        function: what to run; any function that cloudpickle takes, also of `__main__`, nested or decorated.
        *args: its arguments.
        **kwargs: its keyword arguments.

    Raises:
        RankError: a rank failed, and no restart is left: the first real failure, with the rank's traceback. It is an
            instance of the user's exception class too, where one can be made.
        NodeLostError: another node is gone, and no restart is left.
        LaunchTimeoutError: a time limit of the plan was passed.
        LaunchTerminatedError: SIGTERM was sent to this process, and its own handler let it go on.
        RendezvousError: the nodes did not find each other.
        SerializationError: an argument cannot be pickled; it is named.
        TorchNotInstalledError: torch is missing.
        PlanError: `gpu` was asked for where there is none.
    """
    names = [f"argument {index}" for index in range(len(args))] + [f"argument {name!r}" for name in kwargs]
    if plan.start_method == "forkserver" or plan.nodes > 1:
        prepare("forkserver", plan.preload)  # the server loads torch while this process does
    recorder = Recorder()
    with recorder.span("torch"):
        _require_torch()
    nproc = resolve_nproc(plan.nproc_per_node)
    if plan.start_method == "fork":
        prepare(plan.start_method, plan.preload)
    from flyte_torchrun.launch.pickling import payload_size

    size = payload_size({"the function": function, **dict(zip(names, [*args, *kwargs.values()], strict=True))})
    with RunFolder.new(size) as folder:
        try:
            with recorder.span("inputs", detail=f"{size} bytes"):
                save((function, args, kwargs), folder.inputs)
            is_here = _run(plan, nproc, folder, recorder)
            value = None
            if is_here:
                with recorder.span("result", detail=f"{folder.result.stat().st_size} bytes"):
                    value = load(folder.result)
        except LaunchError as error:
            error.timeline = recorder.timeline()
            if isinstance(error, RankError):
                raise with_own_type(error) from error.__cause__
            raise
        finally:
            say_idle()
    return LaunchResult(value=value, is_rank_zero_here=is_here, timeline=recorder.timeline())


def _run(plan: LaunchPlan, nproc: int, folder: RunFolder, recorder: Recorder) -> bool:
    """Runs the ranks; whether global rank 0 was among them."""
    from flyte_torchrun.launch.node import ending_on_signals, run_node

    if plan.nodes == 1:
        with ending_on_signals(is_one_node=plan.rdzv_endpoint is None):
            return run_node(plan, nproc, folder, recorder)
    from flyte_torchrun.launch.nodes import run_nodes

    with ending_on_signals(is_one_node=True):
        run_nodes(plan, nproc, folder, recorder)
    return True


def _require_torch() -> None:
    for module, extra in (("torch", "torch"), ("cloudpickle", "torch")):
        try:
            importlib.import_module(module)
        except (ImportError, OSError) as error:
            raise TorchNotInstalledError(
                f"running ranks needs {module}, which cannot be loaded here ({error}): pip install"
                f" 'flyte-torchrun[{extra}]'"
            ) from error
