"""The task configurations: what a user writes in `@task(task_config=...)`.

The names and the order of the fields are those of flytekit's own kfpytorch plugin, so that a program changes one
import; what that plugin lacks is keyword-only. A configuration is valid from construction: every violation is
reported at once, with the field, the value and what is allowed.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flytekit import Resources
from flytekit.core.resources import convert_resources_to_resource_model

from flyte_torchrun import contract
from flyte_torchrun.contract import (
    NodeRange,
    ReplicaSpec,
    RestartPolicy,
    RunPolicy,
    ValidationError,
    Violation,
    parse_nnodes,
)
from flyte_torchrun.plugin.job import Job
from flyte_torchrun.plugin.settings import (
    LaunchSettings,
    all_violations,
    copy_mapping,
    elastic_config,
    launch_options,
)

__all__ = ["Elastic", "ElasticPolicy", "Master", "PyTorch", "Worker"]


@dataclass(frozen=True, slots=True)
class _Replica:
    """What a master and a worker have in common.

    Attributes:
        image: container image of this replica's pods; None is the task's image.
        requests: resources requested; None leaves the task's own.
        limits: resource limits; None leaves the task's own.
    """

    image: str | None = None
    requests: Resources | None = None
    limits: Resources | None = None


def _replica_spec(replica: _Replica, replicas: int | None, restart_policy: RestartPolicy | None) -> ReplicaSpec:
    """The replica as it is written: `resources` stays out when empty, since some backends take `{}` as a reset."""
    resources = None
    if replica.requests is not None or replica.limits is not None:
        model = convert_resources_to_resource_model(requests=replica.requests, limits=replica.limits)
        converted = contract.Resources.from_proto(model.to_flyte_idl())
        resources = None if converted == contract.Resources() else converted
    return ReplicaSpec(replicas=replicas, image=replica.image, resources=resources, restart_policy=restart_policy)


@dataclass(frozen=True, slots=True)
class Worker(_Replica):
    """The workers of a PyTorchJob.

    Attributes:
        replicas: number of worker pods.
        restart_policy: what the operator does when a pod of this replica ends; None is Flyte's own `NEVER`.
    """

    replicas: int | None = None
    restart_policy: RestartPolicy | None = None


@dataclass(frozen=True, slots=True)
class Master(_Replica):
    """The master of a PyTorchJob: always one pod.

    Attributes:
        restart_policy: what the operator does when the pod ends; None is Flyte's own `NEVER`.
    """

    restart_policy: RestartPolicy | None = None


@dataclass(frozen=True, slots=True)
class Elastic(LaunchSettings):
    """A torchrun task: `nnodes` pods, each with `nproc_per_node` ranks.

    One node (1, "1" or "1:1") runs in the task's own pod and needs no operator; more nodes become a PyTorchJob.
    In a local call each node is a process of this machine, as many as the range has at the least.

    Attributes:
        nnodes: number of nodes (pods), or a range "min:max"; 1 when neither it nor min_replicas/max_replicas is set.
        nproc_per_node: ranks on each node, or `auto`, `gpu` or `cpu`: resolved where the ranks start.
        start_method: how ranks are started: `forkserver`, `spawn` or `fork`.
        monitor_interval: seconds between two looks at the ranks; None is the launcher's default.
        max_restarts: how often the whole group is started again after a failure.
        rdzv_configs: further rendezvous settings of torch.
        increase_shared_mem: mount a memory-backed /dev/shm, since a container has only 64 MiB of its own.
        run_policy: the PyTorchJob's run policy; it acts with more than one node only.
        min_replicas: the range's lower end, instead of `nnodes`; None is max_replicas.
        max_replicas: the range's upper end, instead of `nnodes`; None is min_replicas.

    Raises:
        ValidationError: with every violation at once.
    """

    nnodes: int | str | None = None
    nproc_per_node: int | str = 1
    start_method: str = "forkserver"
    monitor_interval: float | None = None
    max_restarts: int = 0
    rdzv_configs: Mapping[str, Any] = field(default_factory=dict)
    increase_shared_mem: bool = True
    run_policy: RunPolicy | None = None
    min_replicas: int | None = field(default=None, kw_only=True)
    max_replicas: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        copy_mapping(self)
        self.job()

    def job(self) -> Job:
        """The configuration in the form that the task works with."""
        nodes = NodeRange(min_nodes=1, max_nodes=1)
        with all_violations() as collect:
            with collect():
                nodes = _nodes(self)
            with collect():
                launch_options(self, self.nproc_per_node, self.increase_shared_mem)
            with collect():
                elastic_config(nodes, self, self.nproc_per_node)
        return Job(
            nodes=nodes,
            nproc_per_node=self.nproc_per_node,
            elastic=self,
            worker=ReplicaSpec(replicas=nodes.max_nodes),
            run_policy=self.run_policy,
            increase_shared_mem=self.increase_shared_mem,
            shared_memory_size=self.shared_memory_size,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticPolicy(LaunchSettings):
    """Makes a `PyTorch` task elastic: each worker pod runs a torchrun agent, and there is no master.

    Attributes:
        min_replicas: fewest worker pods that the group runs with; None is the number of workers.
        max_replicas: most worker pods; None is the number of workers.
        n_proc_per_node: ranks on each node, or `auto`, `gpu` or `cpu`.
        start_method, monitor_interval, max_restarts, rdzv_configs: as in `Elastic`.
    """

    min_replicas: int | None = None
    max_replicas: int | None = None
    n_proc_per_node: int | str = 1
    start_method: str = "forkserver"
    monitor_interval: float | None = None
    max_restarts: int = 0
    rdzv_configs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        copy_mapping(self)
        with all_violations() as collect:
            with collect():
                _range(self.min_replicas, self.max_replicas)
            with collect():
                launch_options(self, self.n_proc_per_node, None)
            with collect():
                elastic_config(NodeRange(min_nodes=1, max_nodes=1), self, self.n_proc_per_node)


@dataclass(frozen=True, slots=True)
class PyTorch:
    """A PyTorchJob of one master and its workers, or, with `elastic_policy`, of workers that run torchrun.

    Attributes:
        master: the master replica; ignored by every backend when the job is elastic (a warning says so).
        worker: the worker replicas.
        run_policy: the job's run policy.
        num_workers: the older name of `worker.replicas`; only one of the two may be set. 0 is one plain pod.
        increase_shared_mem: mount a memory-backed /dev/shm, since a container has only 64 MiB of its own.
        elastic_policy: run the workers under torchrun.

    Raises:
        ValidationError: with every violation at once.
    """

    master: Master = field(default_factory=Master)
    worker: Worker = field(default_factory=Worker)
    run_policy: RunPolicy | None = None
    num_workers: int | None = None
    increase_shared_mem: bool = True
    elastic_policy: ElasticPolicy | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self.job()
        if self.elastic_policy is not None and self.master != Master():
            warnings.warn(
                "PyTorch.master is set beside elastic_policy: every Flyte backend leaves the master out of an elastic"
                " job; set image, resources and restart policy in `worker`",
                stacklevel=3,
            )

    def job(self) -> Job:
        """The configuration in the form that the task works with."""
        policy = self.elastic_policy
        workers = None
        nodes = NodeRange(min_nodes=1, max_nodes=1)
        worker = master = None
        with all_violations() as collect:
            with collect():
                workers = self._workers()
            if policy is not None:
                with collect():
                    nodes = _range(policy.min_replicas, policy.max_replicas, workers)
                    workers = workers or nodes.max_nodes
            elif workers:
                nodes = NodeRange(min_nodes=workers + 1, max_nodes=workers + 1)
            with collect():
                worker = _replica_spec(self.worker, workers or None, self.worker.restart_policy)
            with collect():
                if policy is None or self.master != Master():
                    master = _replica_spec(self.master, 1, self.master.restart_policy)
        return Job(
            nodes=nodes,
            nproc_per_node=1 if policy is None else policy.n_proc_per_node,
            elastic=policy,
            worker=worker,
            master=master,
            run_policy=self.run_policy,
            increase_shared_mem=self.increase_shared_mem,
            shared_memory_size=None if policy is None else policy.shared_memory_size,
        )

    def _workers(self) -> int | None:
        workers = self.worker.replicas if self.num_workers is None else self.num_workers
        if self.num_workers is not None and self.worker.replicas is not None:
            both = f"{self.num_workers} and {self.worker.replicas}"
            raise ValidationError([Violation("num_workers, worker.replicas", both, "only one of the two")])
        if workers is None and self.elastic_policy is None:
            raise ValidationError([Violation("worker.replicas", None, "a number of workers, at least 0")])
        least = 0 if self.elastic_policy is None else 1
        if workers is not None and (type(workers) is not int or not least <= workers < 2**31 - 1):
            raise ValidationError([Violation("worker.replicas", workers, f"an integer from {least} to 2147483646")])
        if workers == 0 and (self.master != Master() or self.worker != Worker(replicas=self.worker.replicas)):
            allowed = "their defaults: with 0 workers the task runs in its own pod, as the task decorator describes it"
            raise ValidationError([Violation("master, worker", (self.master, self.worker), allowed)])
        return workers


def _nodes(config: Elastic) -> NodeRange:
    if config.nnodes is None:
        return _range(config.min_replicas, config.max_replicas)
    if config.min_replicas is not None or config.max_replicas is not None:
        value = f"{config.nnodes!r} beside {config.min_replicas!r} and {config.max_replicas!r}"
        raise ValidationError([Violation("nnodes", value, "either nnodes, or min_replicas and max_replicas")])
    return parse_nnodes(config.nnodes)


def _range(min_replicas: int | None, max_replicas: int | None, workers: int | None = None) -> NodeRange:
    """An end that is not given is the number of workers, else the other end, else 1."""

    def first(*values: int | None) -> int:
        return next(value for value in (*values, 1) if value is not None)

    low, high = first(min_replicas, workers, max_replicas), first(max_replicas, workers, min_replicas)
    if workers is not None and low <= high and not low <= workers <= high:
        raise ValidationError([Violation("worker.replicas", workers, f"from {low} to {high}, as elastic_policy says")])
    return NodeRange(min_nodes=low, max_nodes=high)
