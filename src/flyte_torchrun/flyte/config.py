"""The configuration: what a user writes in `flyte.TaskEnvironment(plugin_config=...)`.

The names and the defaults of the fields are those of `flyteplugins.pytorch`; what that plugin lacks stands behind them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import flyte

from flyte_torchrun import contract
from flyte_torchrun.contract import (
    CleanPodPolicy,
    NodeRange,
    ReplicaSpec,
    RestartPolicy,
    ValidationError,
    Violation,
    parse_nnodes,
)
from flyte_torchrun.plugin.job import Job
from flyte_torchrun.plugin.settings import LaunchSettings, all_violations, copy_mapping, elastic_config, launch_options

__all__ = ["Elastic", "Replica", "RunPolicy"]


class RunPolicy(contract.RunPolicy):
    """The run policy, whose `clean_pod_policy` may also be given by name: `None`, `all`, `Running`."""

    __slots__ = ()

    def __post_init__(self) -> None:
        if isinstance(self.clean_pod_policy, str):
            try:
                object.__setattr__(self, "clean_pod_policy", CleanPodPolicy(self.clean_pod_policy))
            except ValueError:
                violation = Violation("clean_pod_policy", self.clean_pod_policy, "None, all, Running")
                raise ValidationError([violation]) from None
        super().__post_init__()


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """What the pods of a group have for themselves.

    Attributes:
        image: container image; None is the task's.
        resources: requests and limits; None leaves the task's own.
        restart_policy: what the operator does when a pod ends; None is Flyte's own `NEVER`.
    """

    image: str | None = None
    resources: flyte.Resources | None = None
    restart_policy: RestartPolicy | None = None

    def spec(self, replicas: int) -> ReplicaSpec:
        """The replicas as they are written: no empty `resources`, since some backends take `{}` as a reset."""
        from flyte._internal.runtime.resources_serde import get_proto_resources

        proto = None if self.resources is None else get_proto_resources(self.resources)
        converted = None if proto is None else contract.Resources.from_proto(proto)
        return ReplicaSpec(
            replicas=replicas,
            image=self.image,
            resources=None if converted == contract.Resources() else converted,
            restart_policy=self.restart_policy,
        )


@dataclass(frozen=True, slots=True)
class Elastic(LaunchSettings):
    """A torchrun task: `nnodes` pods, each with `nproc_per_node` ranks.

    One node (1, "1" or "1:1") runs in the task's own pod and needs no operator; more nodes become a PyTorchJob.
    In a local run each node is a process of this machine, as many as the range has at the least.

    Attributes:
        nnodes: number of nodes (pods), or a range "min:max".
        nproc_per_node: ranks on each node, or `auto`, `gpu` or `cpu`: resolved where the ranks start.
        run_policy: the PyTorchJob's run policy; it acts with more than one node only.
        monitor_interval: seconds between two looks at other nodes; a rank's end is noticed at once.
        max_restarts: how often the whole group is started again after a failure.
        rdzv_configs: further settings of torch's rendezvous.
        start_method: how ranks are started: `forkserver`, `spawn` or `fork`.
        replica: image, resources and restart policy of the pods, where they are not the task's own.

    A larger /dev/shm is asked for as for any task of this SDK: `flyte.Resources(shm="auto")`.

    Raises:
        ValidationError: with every violation at once.
    """

    nnodes: int | str
    nproc_per_node: int | str
    run_policy: contract.RunPolicy | None = field(default=None, kw_only=True)
    monitor_interval: float | None = field(default=3, kw_only=True)
    max_restarts: int = field(default=3, kw_only=True)
    rdzv_configs: Mapping[str, Any] = field(default_factory=lambda: {"timeout": 900, "join_timeout": 900}, kw_only=True)
    nccl_async_error_handling: bool | None = field(default=False, kw_only=True)
    nccl_enable_monitoring: bool | None = field(default=True, kw_only=True)
    start_method: str = field(default="forkserver", kw_only=True)
    replica: Replica = field(default_factory=Replica, kw_only=True)

    def __post_init__(self) -> None:
        copy_mapping(self)
        self.job()

    def job(self) -> Job:
        """The configuration in the form that the task works with."""
        nodes = NodeRange(min_nodes=1, max_nodes=1)
        worker = None
        with all_violations() as collect:
            with collect():
                nodes = parse_nnodes(self.nnodes)
            with collect():
                if self.shared_memory_size is not None:
                    allowed = "None: flyte.Resources(shm=...) is this SDK's place for it"
                    raise ValidationError([Violation("shared_memory_size", self.shared_memory_size, allowed)])
            with collect():
                launch_options(self, self.nproc_per_node, None)
            with collect():
                elastic_config(nodes, self, self.nproc_per_node)
            with collect():
                worker = self.replica.spec(nodes.max_nodes)
        return Job(
            nodes=nodes,
            nproc_per_node=self.nproc_per_node,
            elastic=self,
            worker=worker,
            run_policy=self.run_policy,
            increase_shared_mem=None,
        )
