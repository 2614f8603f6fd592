"""From a job to the plan of its worker group."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from flyte_torchrun.launch import LaunchPlan
from flyte_torchrun.plugin.job import Job

__all__ = ["plan_of"]

_LAUNCHER_SETTINGS = (
    "monitor_interval",
    "join_timeout",
    "read_timeout",
    "shutdown_grace",
    "omp_num_threads",
    "timeout",
    "hang_timeout",
    "log_dir",
    "log_ranks",
    "nccl_enable_monitoring",
    "nccl_async_error_handling",
    "nccl_collective_timeout_sec",
)


def plan_of(job: Job, *, is_local: bool, run_id: str, preload: tuple[str, ...]) -> LaunchPlan:
    """The worker group of a job, as far as it belongs to this pod, or, in a local run, the whole of it.

    Args:
        job: what the configuration means.
        is_local: whether the task was called on a person's machine: then all nodes are processes of it.
        run_id: names the group: the same in every pod of one attempt, another in the next.
        preload: modules that the rank server loads before those of the settings.

    Raises:
        ValueError: more than one pod is needed, and no operator has made this one.
    """
    make: Callable[..., LaunchPlan]
    settings: dict[str, Any] = {"run_id": run_id, "preload": preload}
    if job.elastic is None:
        # Locally the whole group runs here: as many ranks as the job would have pods.
        return LaunchPlan(nproc_per_node=job.nodes.max_nodes, **settings)
    if job.is_one_node:
        make = LaunchPlan
    elif "PET_RDZV_ENDPOINT" in os.environ:
        make = LaunchPlan.from_environment
        settings |= {"min_nodes": job.nodes.min_nodes, "max_nodes": job.nodes.max_nodes}
    elif is_local:
        make = LaunchPlan
        settings |= {"nodes": job.nodes.min_nodes}
    else:
        raise ValueError(
            f"nnodes: this task needs {job.nodes} pods of a PyTorchJob, and PET_RDZV_ENDPOINT is not set, so that no"
            " operator has made this pod; set nnodes=1 to run it in one, with as many ranks in nproc_per_node as there"
            " should be"
        )
    for name in _LAUNCHER_SETTINGS:
        value = getattr(job.elastic, name)
        if value is not None:
            settings[name] = value
    settings["preload"] = (*preload, *job.elastic.preload)
    return make(
        nccl_heartbeat_timeout_sec=job.elastic.nccl_heartbeat_timeout_sec,
        nproc_per_node=job.nproc_per_node,
        start_method=job.elastic.start_method,
        max_restarts=job.elastic.max_restarts,
        rdzv_backend=job.elastic.rdzv_backend,
        rdzv_configs=job.elastic.rdzv_configs,
        **settings,
    )
