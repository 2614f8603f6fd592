"""The settings of the launcher as both SDKs' configurations have them, and what of them goes into a task template."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from flyte_torchrun.contract import (
    ElasticConfig,
    LaunchOptions,
    NodeRange,
    StartMethod,
    SymbolicNprocPerNode,
    ValidationError,
    Violation,
)
from flyte_torchrun.launch.plan import NCCL_HEARTBEAT_TIMEOUT_SEC, RDZV_CONFIGS

__all__ = [
    "LaunchSettings",
    "all_violations",
    "copy_mapping",
    "elastic_config",
    "launch_options",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings:
    """How the ranks are started and supervised; None is the launcher's own default.

    Attributes:
        rdzv_backend: torch's rendezvous backend: `c10d`, `etcd`, `etcd-v2` or `static`.
        join_timeout: seconds that the first pod waits for the others (launcher: 900).
        read_timeout: seconds that a pod waits for an answer of the rendezvous store (launcher: 900).
        shutdown_grace: seconds between SIGTERM and SIGKILL for a rank that is stopped (launcher: 30).
        omp_num_threads: OMP_NUM_THREADS of each rank; None: the usable CPUs divided by the ranks of the pod, at least
            1. A value that is in the environment already wins.
        preload: modules that the forkserver imports before it starts ranks.
        timeout: seconds that the whole run may take; None: no bound.
        hang_timeout: seconds that the group may go on after its first rank ended; None: no bound.
        log_dir: a folder that keeps what each rank prints; None: nothing is kept.
        log_ranks: the ranks whose output is shown, numbered over all pods; None: all.
        nccl_heartbeat_timeout_sec: seconds without progress after which NCCL's monitor ends a rank; None: torch's
            default.
        nccl_enable_monitoring: whether that monitor runs; None: torch's default.
        nccl_async_error_handling: whether a failed or late collective ends its rank; None: it does, as under torchrun.
        nccl_collective_timeout_sec: seconds that one collective may take, unless init_process_group is told otherwise;
            None: torch's default.
        shared_memory_size: upper limit of /dev/shm as a Kubernetes quantity such as `2Gi`; None: the pod's memory.
    """

    rdzv_backend: str = "c10d"
    join_timeout: float | None = None
    read_timeout: float | None = None
    shutdown_grace: float | None = None
    omp_num_threads: int | None = None
    preload: tuple[str, ...] = ()
    timeout: float | None = None
    hang_timeout: float | None = None
    log_dir: str | None = None
    log_ranks: tuple[int, ...] | None = None
    nccl_heartbeat_timeout_sec: int | None = NCCL_HEARTBEAT_TIMEOUT_SEC
    nccl_enable_monitoring: bool | None = None
    nccl_async_error_handling: bool | None = None
    nccl_collective_timeout_sec: int | None = None
    shared_memory_size: str | None = None

    if TYPE_CHECKING:  # each configuration has these as fields, in an order and with defaults of its own

        @property
        def start_method(self) -> str:
            """How ranks are started."""

        @property
        def max_restarts(self) -> int:
            """How often the group is started again."""

        @property
        def monitor_interval(self) -> float | None:
            """Seconds between two looks at other nodes."""

        @property
        def rdzv_configs(self) -> Mapping[str, Any]:
            """Further settings of torch's rendezvous."""


_TIMES = (
    *("monitor_interval", "join_timeout", "read_timeout", "shutdown_grace", "timeout", "hang_timeout"),
    *("nccl_heartbeat_timeout_sec", "nccl_collective_timeout_sec"),
)


def launch_options(
    settings: LaunchSettings, nproc_per_node: int | str, increase_shared_mem: bool | None
) -> LaunchOptions:
    """The part of the settings that upstream's schema has no room for."""
    options: dict[str, Any] = {}
    violations: list[Violation] = []
    for name in _TIMES:
        seconds = getattr(settings, name)
        if name == "nccl_heartbeat_timeout_sec":
            # Not set is this launcher's default, so that torch's, which is written as 0, is a value of its own.
            if seconds is None:
                options["nccl_heartbeat_timeout"] = timedelta(0)
            seconds = None if seconds == NCCL_HEARTBEAT_TIMEOUT_SEC else seconds
        if seconds is None:
            continue
        if name.startswith("nccl") and (type(seconds) is not int or seconds < 1):
            violations.append(Violation(name, seconds, "a whole number of seconds from 1, or None for torch's default"))
            continue
        try:
            options[name.removesuffix("_sec")] = timedelta(seconds=seconds)
        except (TypeError, ValueError, OverflowError):
            violations.append(Violation(name, seconds, "a number of seconds"))
    if settings.log_ranks is not None and not settings.log_ranks:
        violations.append(Violation("log_ranks", settings.log_ranks, "one or more ranks from 0, or None for all"))
    parsed: tuple[tuple[str, object, Callable[[Any], object]], ...] = (
        ("start_method", settings.start_method, StartMethod),
        ("symbolic_nproc_per_node", nproc_per_node, SymbolicNprocPerNode),
    )
    for name, value, parse in parsed:
        if isinstance(value, str):
            try:
                options[name] = parse(value)
            except ValueError:
                words = ", ".join(member.name.lower() for member in parse)  # type: ignore[attr-defined]
                field_name = "start_method" if name == "start_method" else "nproc_per_node"
                violations.append(Violation(field_name, value, words))
    if isinstance(settings.rdzv_configs, Mapping):
        known = f"a setting that torch knows: {', '.join(sorted(RDZV_CONFIGS))}"
        unknown = sorted(settings.rdzv_configs.keys() - RDZV_CONFIGS)
        violations += [Violation(f"rdzv_configs.{key}", settings.rdzv_configs[key], known) for key in unknown]
    if violations:
        raise ValidationError(violations)
    return LaunchOptions(
        rdzv_configs=settings.rdzv_configs,
        omp_num_threads=settings.omp_num_threads,
        preload=tuple(settings.preload),
        log_dir=settings.log_dir,
        log_ranks=tuple(settings.log_ranks or ()),
        nccl_enable_monitoring=settings.nccl_enable_monitoring,
        nccl_async_error_handling=settings.nccl_async_error_handling,
        shared_memory_size=settings.shared_memory_size,
        increase_shared_mem=increase_shared_mem,
        **options,
    )


def elastic_config(nodes: NodeRange, settings: LaunchSettings, nproc_per_node: int | str) -> ElasticConfig:
    """The part that upstream's schema has; a symbolic number of ranks stands as 1."""
    return ElasticConfig(
        rdzv_backend=settings.rdzv_backend,
        min_replicas=nodes.min_nodes,
        max_replicas=nodes.max_nodes,
        nproc_per_node=1 if isinstance(nproc_per_node, str) else nproc_per_node,
        max_restarts=settings.max_restarts,
    )


def copy_mapping(settings: LaunchSettings) -> None:
    """Keeps nothing of the caller's: a later change of his dictionary changes no task."""
    if isinstance(settings.rdzv_configs, Mapping):
        object.__setattr__(settings, "rdzv_configs", dict(settings.rdzv_configs))


@contextmanager
def all_violations() -> Iterator[Callable[[], Any]]:
    """Collects the violations of several steps and raises them together."""
    found: list[Violation] = []

    @contextmanager
    def collect() -> Iterator[None]:
        try:
            yield
        except ValidationError as error:
            found.extend(error.violations)

    yield collect
    if found:
        raise ValidationError(found)
