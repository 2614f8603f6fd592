"""What a configuration means: the one form that the tasks, their templates and their runs work with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flyte_torchrun.contract import (
    DistributedPyTorchTrainingTask,
    NodeRange,
    ReplicaSpec,
    ResourceName,
    RunPolicy,
)
from flyte_torchrun.plugin.settings import elastic_config, launch_options

__all__ = ["Job"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a configuration means: the one form that the task, its template and its run work with.

    Attributes:
        nodes: how many pods take part.
        nproc_per_node: ranks on each node, a number or a word.
        elastic: the settings of the launcher; None: the pods get their ranks from the operator.
        worker: the worker replicas; `replicas` is unset when there are none.
        master: the master replica; None: none is asked for.
        run_policy: the job's run policy.
        increase_shared_mem: whether /dev/shm is mounted from memory; None: the SDK has a setting of its own.
        shared_memory_size: its upper limit, a Kubernetes quantity.
    """

    nodes: NodeRange
    nproc_per_node: int | str
    elastic: Any
    worker: ReplicaSpec | None = None
    master: ReplicaSpec | None = None
    run_policy: RunPolicy | None = None
    increase_shared_mem: bool | None = True
    shared_memory_size: str | None = None

    @property
    def is_one_node(self) -> bool:
        """Whether the task's own pod is the whole group."""
        return self.nodes.max_nodes == 1

    def worker_gpus(self) -> str | None:
        """The GPUs that the worker replicas ask for themselves; None: they have no say."""
        asked = self.worker.resources if self.worker is not None else None
        entries = (*asked.limits, *asked.requests) if asked is not None else ()
        return next((entry.value for entry in entries if entry.name is ResourceName.GPU), None)

    def payload(self, gpus: int) -> DistributedPyTorchTrainingTask | None:
        """What the task template carries; None for a plain pod without a worker group.

        Args:
            gpus: GPUs that the task requests on a node; a symbolic nproc_per_node is written as this number, at
                least 1, since upstream's schema has room for a number only.
        """
        if self.elastic is None:
            if self.is_one_node:
                return None
            return DistributedPyTorchTrainingTask(
                worker_replicas=self.worker, master_replicas=self.master, run_policy=self.run_policy
            )
        nproc = self.nproc_per_node if isinstance(self.nproc_per_node, int) else max(gpus, 1)
        return DistributedPyTorchTrainingTask(
            worker_replicas=self.worker,
            master_replicas=self.master,
            run_policy=self.run_policy,
            elastic_config=elastic_config(self.nodes, self.elastic, nproc),
            launch_options=launch_options(self.elastic, self.nproc_per_node, self.increase_shared_mem),
        )
