"""The task configurations: what a user writes in `@task(task_config=...)`.

The names and the order of the fields are those of flytekit's own kfpytorch plugin, so that a program changes one
import; what that plugin lacks is keyword-only. A configuration is valid from construction: every violation is
reported at once, with the field, the value and what is allowed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from flytekit import Resources
from flytekit.core.resources import convert_resources_to_resource_model

from flyte_torchrun import contract
from flyte_torchrun.contract import (
    LaunchOptions,
    NodeRange,
    ReplicaSpec,
    ResourceName,
    RestartPolicy,
    RunPolicy,
    StartMethod,
    SymbolicNprocPerNode,
    ValidationError,
    Violation,
    parse_nnodes,
)
from flyte_torchrun.launch.plan import NCCL_HEARTBEAT_TIMEOUT_SEC, RDZV_CONFIGS

__all__ = ["Elastic", "ElasticPolicy", "Job", "LaunchSettings", "Master", "PyTorch", "Worker"]


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
        _copy_mapping(self)
        self.job()

    def job(self) -> Job:
        """The configuration in the form that the task works with."""
        nodes = NodeRange(min_nodes=1, max_nodes=1)
        with _all_violations() as collect:
            with collect():
                nodes = _nodes(self)
            with collect():
                launch_options(self, self.nproc_per_node, self.increase_shared_mem)
            with collect():
                _elastic_config(nodes, self, self.nproc_per_node)
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
        _copy_mapping(self)
        with _all_violations() as collect:
            with collect():
                _range(self.min_replicas, self.max_replicas)
            with collect():
                launch_options(self, self.n_proc_per_node, None)
            with collect():
                _elastic_config(NodeRange(min_nodes=1, max_nodes=1), self, self.n_proc_per_node)


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
        with _all_violations() as collect:
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
        increase_shared_mem: whether /dev/shm is mounted from memory.
        shared_memory_size: its upper limit, a Kubernetes quantity.
    """

    nodes: NodeRange
    nproc_per_node: int | str
    elastic: Elastic | ElasticPolicy | None
    worker: ReplicaSpec | None = None
    master: ReplicaSpec | None = None
    run_policy: RunPolicy | None = None
    increase_shared_mem: bool = True
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

    def payload(self, gpus: int) -> contract.DistributedPyTorchTrainingTask | None:
        """What the task template carries; None for a plain pod without a worker group.

        Args:
            gpus: GPUs that the task requests on a node; a symbolic nproc_per_node is written as this number, at
                least 1, since upstream's schema has room for a number only.
        """
        if self.elastic is None:
            if self.is_one_node:
                return None
            return contract.DistributedPyTorchTrainingTask(
                worker_replicas=self.worker, master_replicas=self.master, run_policy=self.run_policy
            )
        nproc = self.nproc_per_node if isinstance(self.nproc_per_node, int) else max(gpus, 1)
        return contract.DistributedPyTorchTrainingTask(
            worker_replicas=self.worker,
            master_replicas=self.master,
            run_policy=self.run_policy,
            elastic_config=_elastic_config(self.nodes, self.elastic, nproc),
            launch_options=launch_options(self.elastic, self.nproc_per_node, self.increase_shared_mem),
        )


_TIMES = (
    *("monitor_interval", "join_timeout", "read_timeout", "shutdown_grace", "timeout", "hang_timeout"),
    *("nccl_heartbeat_timeout_sec", "nccl_collective_timeout_sec"),
)


def launch_options(
    settings: Elastic | ElasticPolicy, nproc_per_node: int | str, increase_shared_mem: bool | None
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


def _elastic_config(
    nodes: NodeRange, settings: Elastic | ElasticPolicy, nproc_per_node: int | str
) -> contract.ElasticConfig:
    return contract.ElasticConfig(
        rdzv_backend=settings.rdzv_backend,
        min_replicas=nodes.min_nodes,
        max_replicas=nodes.max_nodes,
        nproc_per_node=1 if isinstance(nproc_per_node, str) else nproc_per_node,
        max_restarts=settings.max_restarts,
    )


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


def _copy_mapping(settings: Elastic | ElasticPolicy) -> None:
    """Keeps nothing of the caller's: a later change of his dictionary changes no task."""
    if isinstance(settings.rdzv_configs, Mapping):
        object.__setattr__(settings, "rdzv_configs", dict(settings.rdzv_configs))


@contextmanager
def _all_violations() -> Iterator[Callable[[], Any]]:
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
