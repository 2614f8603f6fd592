"""The job's policies: how the operator runs it, and how torch elastic does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from flyte_torchrun.contract.enums import CleanPodPolicy, StartMethod, SymbolicNprocPerNode
from flyte_torchrun.contract.errors import Violation
from flyte_torchrun.contract.frozen import FrozenMapping
from flyte_torchrun.contract.kinds import (
    Boolean,
    Duration,
    Enum,
    Int32,
    Repeated,
    Settings,
    Text,
    module_name,
    quantity,
)
from flyte_torchrun.contract.message import Field, Message, Schema

__all__ = ["ElasticConfig", "LaunchOptions", "RunPolicy"]

_RDZV_BACKENDS = ("c10d", "etcd", "etcd-v2", "static")  # torch's registry, the same from 2.4 to 2.15


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunPolicy(Message):
    """How the operator runs and cleans up the job (flyteidl.plugins.kubeflow.RunPolicy).

    Attributes:
        clean_pod_policy: which pods it deletes at the end; None: unset, which reads as NONE.
        ttl_seconds_after_finished: seconds from the job's end until it is deleted.
        active_deadline_seconds: seconds from the job's start after which it is failed.
        backoff_limit: restarts after which the job is failed.

    The three numbers may be 0, and None is unset; every released backend takes 0 as unset (no deletion, no limit).
    """

    clean_pod_policy: CleanPodPolicy | None = None
    ttl_seconds_after_finished: int | None = None
    active_deadline_seconds: int | None = None
    backoff_limit: int | None = None
    unknown_fields: Mapping[str, str] = FrozenMapping()

    schema: ClassVar[Schema] = Schema(
        "plugins.kubeflow.common_pb2",
        "RunPolicy",
        Field("clean_pod_policy", Enum(CleanPodPolicy)),
        Field("ttl_seconds_after_finished", Int32(0)),
        Field("active_deadline_seconds", Int32(0)),
        Field("backoff_limit", Int32(0)),
    )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ElasticConfig(Message):
    """Settings of torch elastic (flyteidl.plugins.kubeflow.ElasticConfig). All five are always written.

    Attributes:
        rdzv_backend: torch's rendezvous backend: `c10d`, `etcd`, `etcd-v2` or `static`.
        min_replicas: fewest pods that the worker group runs with, from 1.
        max_replicas: most pods, at least min_replicas.
        nproc_per_node: ranks in each pod, from 1.
        max_restarts: how often torch starts the whole group again, from 0.
    """

    rdzv_backend: str = "c10d"
    min_replicas: int
    max_replicas: int
    nproc_per_node: int
    max_restarts: int = 0
    unknown_fields: Mapping[str, str] = FrozenMapping()

    schema: ClassVar[Schema] = Schema(
        "plugins.kubeflow.pytorch_pb2",
        "ElasticConfig",
        Field("rdzv_backend", Text(_RDZV_BACKENDS.__contains__, ", ".join(_RDZV_BACKENDS)), Field.required),
        Field("min_replicas", Int32(1), Field.required),
        Field("max_replicas", Int32(1), Field.required),
        Field("nproc_per_node", Int32(1), Field.required),
        Field("max_restarts", Int32(0), Field.required),
    )

    def check_together(self) -> Iterator[Violation]:
        if self.min_replicas > self.max_replicas:
            allowed = f"at most max_replicas, which is {self.max_replicas}"
            yield Violation("min_replicas", self.min_replicas, allowed)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LaunchOptions(Message):
    """How the ranks are started (flyteidl_torchrun.v1.LaunchOptions); unset means the launcher's default.

    Attributes:
        start_method: how ranks are started.
        monitor_interval: between two looks at the ranks, more than 0.
        rdzv_configs: further settings of torch's rendezvous: strings, numbers, booleans.
        symbolic_nproc_per_node: the word that stood for a number of ranks.
        join_timeout: how long the first pod waits for the others, more than 0.
        read_timeout: how long a pod waits for the rendezvous store, more than 0.
        shutdown_grace: between SIGTERM and SIGKILL, 0 or more.
        omp_num_threads: OMP_NUM_THREADS of each rank, from 1.
        shared_memory_size: upper limit of /dev/shm, a Kubernetes quantity, more than 0.
        increase_shared_mem: whether the pod gets a memory-backed /dev/shm.
        preload: modules that the rank server imports first.
        timeout: how long the run may take, more than 0.
        hang_timeout: how long the group may go on after its first rank ended, more than 0.
        log_dir: the folder that keeps what each rank prints.
        log_ranks: the ranks whose output is shown, from 0; empty: all.
        nccl_heartbeat_timeout: how long NCCL may show no progress before its monitor ends a rank; 0 is torch's default.
        nccl_enable_monitoring: whether that monitor runs.
        nccl_async_error_handling: whether a failed or late collective ends its rank.
        nccl_collective_timeout: how long one collective may take, more than 0.
    """

    start_method: StartMethod | None = None
    monitor_interval: timedelta | None = None
    rdzv_configs: Mapping[str, str | int | float | bool] = FrozenMapping()
    symbolic_nproc_per_node: SymbolicNprocPerNode | None = None
    join_timeout: timedelta | None = None
    read_timeout: timedelta | None = None
    shutdown_grace: timedelta | None = None
    omp_num_threads: int | None = None
    shared_memory_size: str | None = None
    increase_shared_mem: bool | None = None
    preload: tuple[str, ...] = ()
    timeout: timedelta | None = None
    hang_timeout: timedelta | None = None
    log_dir: str | None = None
    log_ranks: tuple[int, ...] = ()
    nccl_heartbeat_timeout: timedelta | None = None
    nccl_enable_monitoring: bool | None = None
    nccl_async_error_handling: bool | None = None
    nccl_collective_timeout: timedelta | None = None
    unknown_fields: Mapping[str, str] = FrozenMapping()

    schema: ClassVar[Schema] = Schema(
        "flyteidl_torchrun.v1.launch_pb2",
        "LaunchOptions",
        Field("start_method", Enum(StartMethod)),
        Field("monitor_interval", Duration(), has_presence=True),
        Field("rdzv_configs", Settings(), FrozenMapping()),
        Field("symbolic_nproc_per_node", Enum(SymbolicNprocPerNode)),
        Field("join_timeout", Duration(), has_presence=True),
        Field("read_timeout", Duration(), has_presence=True),
        Field("shutdown_grace", Duration(zero_is_allowed=True), has_presence=True),
        Field("omp_num_threads", Int32(1), has_presence=True),
        Field("shared_memory_size", quantity(zero_is_allowed=False), has_presence=True),
        Field("increase_shared_mem", Boolean(), has_presence=True),
        Field("preload", Repeated(module_name()), ()),
        Field("timeout", Duration(), has_presence=True),
        Field("hang_timeout", Duration(), has_presence=True),
        Field("log_dir", Text(bool, "a path"), has_presence=True),
        Field("log_ranks", Repeated(Int32(0)), ()),
        Field("nccl_heartbeat_timeout", Duration(zero_is_allowed=True), has_presence=True),
        Field("nccl_enable_monitoring", Boolean(), has_presence=True),
        Field("nccl_async_error_handling", Boolean(), has_presence=True),
        Field("nccl_collective_timeout", Duration(), has_presence=True),
    )
