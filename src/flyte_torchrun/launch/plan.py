"""What is to be launched: a worker group, its rendezvous, its limits. Checked whole at construction; needs no torch."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flyte_torchrun.launch.cgroup import cpu_quota
from flyte_torchrun.launch.errors import PlanError

__all__ = ["LaunchPlan", "resolve_nproc", "usable_cpus"]

START_METHODS = ("forkserver", "spawn", "fork")
NPROC_WORDS = ("auto", "gpu", "cpu")
NCCL_HEARTBEAT_TIMEOUT_SEC = 300  # torch's own default is half an hour
RDZV_BACKENDS = ("c10d", "etcd", "etcd-v2", "static")

# What the rendezvous of torch 2.6 to 2.15 reads (torch/distributed/elastic/rendezvous); it ignores any other key.
RDZV_CONFIGS = frozenset(
    [
        "cacert",
        "ca_cert",
        "cas_backoff_max_seconds",
        "cert",
        "close_timeout",
        "etcd_prefix",
        "heartbeat_timeout",
        "is_host",
        "join_timeout",
        "keep_alive_interval",
        "keep_alive_max_attempt",
        "key",
        "last_call_timeout",
        "protocol",
        "rank",
        "read_timeout",
        "ssl_cert",
        "ssl_cert_key",
        "store_type",
        "timeout",
        "use_libuv",
    ]
)

# Numbers that may be left open, and the fewest that each may be.
_OPTIONAL_NUMBERS = {
    "omp_num_threads": 1,
    "node_rank": 0,
    "nccl_heartbeat_timeout_sec": 1,
    "nccl_collective_timeout_sec": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """A worker group as it is to be launched.

    Attributes:
        nproc_per_node: ranks on this node, from 1, or `auto`, `gpu` or `cpu`: resolved when the group starts.
        nodes: nodes that run on this machine, from 1. More than one makes each of them a process of its own, with the
            environment that the training operator writes, so that a group of several pods runs on one machine. Its
            ranks find the pid of their node's process in FLYTE_TORCHRUN_NODE_PID: to kill it shows what a lost pod
            does.
        min_nodes: fewest nodes that the group runs with, from 1; as many as `nodes` where only that is given.
        max_nodes: most nodes, at least min_nodes.
        start_method: `forkserver` (ranks are forked from a server that has loaded torch), `spawn` or `fork`.
        max_restarts: how often the whole group is started again after a failure, from 0.
        monitor_interval: seconds between two looks at other nodes, more than 0; a rank's end is noticed at once.
        rdzv_backend: torch's rendezvous backend: `c10d`, `etcd`, `etcd-v2` or `static`.
        rdzv_endpoint: `host:port` of the rendezvous; None where all nodes are on this machine.
        node_rank: this node's index, of which 0 holds the rendezvous; None: found by comparing the names of this host
            and of the endpoint.
        local_addr: the address under which other nodes reach this one; None: that of the interface towards the
            rendezvous.
        rdzv_configs: further settings of torch's rendezvous; they win over join_timeout and read_timeout.
        run_id: names the group; the same on every node, another for every attempt.
        join_timeout: seconds that a node waits for the others, its peers' names and ports included, more than 0.
        read_timeout: seconds that a node waits for the rendezvous store, more than 0.
        shutdown_grace: seconds between SIGTERM and SIGKILL for a rank that is stopped, 0 or more.
        omp_num_threads: threads of each rank; None: the usable CPUs divided by the ranks here, at least 1. An
            OMP_NUM_THREADS in the environment wins over both. A forked rank computes with one thread, whatever is set.
        preload: modules that the server of `forkserver` imports before it starts ranks.
        timeout: seconds that the run may take, more than 0; None: no bound.
        hang_timeout: seconds that the group may go on after its first rank ended, more than 0; None: no bound.
        log_dir: a folder that keeps what each rank prints, in `attempt_N/rank_N/stdout.log` and `stderr.log`; it is
            made if need be. None: nothing is kept.
        log_ranks: the ranks whose output is shown, numbered over all nodes; None: all.
        nccl_heartbeat_timeout_sec: seconds without progress after which NCCL's monitor ends a rank, from 1; None:
            torch's default.
        nccl_enable_monitoring: whether that monitor runs; None: torch's default.
        nccl_async_error_handling: whether a failed or late collective ends its rank; None: as under torchrun, it does.
        nccl_collective_timeout_sec: seconds that one collective may take, from 1, unless init_process_group is told
            otherwise; None: torch's default.

    An environment variable of NCCL (TORCH_NCCL_...) that is already set wins over its option here.

    Raises:
        PlanError: with every wrong field, its value and what is allowed.
    """

    nproc_per_node: int | str = 1
    nodes: int = 1
    min_nodes: int = 1
    max_nodes: int = 1
    start_method: str = "forkserver"
    max_restarts: int = 0
    monitor_interval: float = 0.1
    rdzv_backend: str = "c10d"
    rdzv_endpoint: str | None = None
    node_rank: int | None = None
    local_addr: str | None = None
    rdzv_configs: Mapping[str, Any] = field(default_factory=dict)
    run_id: str = field(default_factory=lambda: secrets.token_hex(8))
    join_timeout: float = 900.0
    read_timeout: float = 900.0
    shutdown_grace: float = 30.0
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "preload", tuple(self.preload))
        if isinstance(self.log_ranks, list):
            object.__setattr__(self, "log_ranks", tuple(self.log_ranks))
        if type(self.nodes) is int and self.nodes > 1 and (self.min_nodes, self.max_nodes) == (1, 1):
            object.__setattr__(self, "min_nodes", self.nodes)
            object.__setattr__(self, "max_nodes", self.nodes)
        if isinstance(self.rdzv_configs, Mapping):
            object.__setattr__(self, "rdzv_configs", dict(self.rdzv_configs))
        if found := tuple(self._violations()):
            raise PlanError(found)

    def _violations(self) -> Iterator[tuple[str, object, str]]:
        for name, fewest in (("nodes", 1), ("min_nodes", 1), ("max_nodes", 1), ("max_restarts", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < fewest:
                yield name, value, f"a whole number from {fewest}"
            elif name == "max_nodes" and type(self.min_nodes) is int and self.min_nodes > value:
                yield name, value, f"at least min_nodes, which is {self.min_nodes}"
        if self.nproc_per_node not in NPROC_WORDS and (type(self.nproc_per_node) is not int or self.nproc_per_node < 1):
            yield "nproc_per_node", self.nproc_per_node, f"a whole number from 1, or {', '.join(NPROC_WORDS)}"
        for name, fewest in _OPTIONAL_NUMBERS.items():
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < fewest):
                yield name, value, f"a whole number from {fewest}"
        for name in ("nccl_enable_monitoring", "nccl_async_error_handling"):
            if getattr(self, name) not in (None, True, False):
                yield name, getattr(self, name), "True, False or None"
        for name in ("local_addr", "log_dir"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                yield name, value, "a text, or None"
        if self.log_ranks is not None and not _is_ranks(self.log_ranks):
            yield "log_ranks", self.log_ranks, "one or more whole numbers from 0, or None for all ranks"
        for name, allowed in (("start_method", START_METHODS), ("rdzv_backend", RDZV_BACKENDS)):
            if getattr(self, name) not in allowed:
                yield name, getattr(self, name), ", ".join(allowed)
        for name in ("monitor_interval", "join_timeout", "read_timeout", "timeout", "hang_timeout", "shutdown_grace"):
            value = getattr(self, name)
            is_optional, least = name in ("timeout", "hang_timeout"), 0 if name == "shutdown_grace" else 1e-9
            if not (value is None and is_optional) and not _is_seconds(value, least):
                yield name, value, f"{'' if least else '0 or '}more than 0 seconds"
        yield from self._violations_of_nodes()
        if not self.run_id or not isinstance(self.run_id, str):
            yield "run_id", self.run_id, "a name"
        if not isinstance(self.rdzv_configs, Mapping):
            yield "rdzv_configs", self.rdzv_configs, "a mapping"
        else:
            for key in self.rdzv_configs.keys() - RDZV_CONFIGS:
                yield f"rdzv_configs.{key}", self.rdzv_configs[key], f"a setting that torch knows: {_known()}"
        for name in self.preload:
            if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
                yield "preload", name, "names of modules"

    def _violations_of_nodes(self) -> Iterator[tuple[str, object, str]]:
        if any(type(number) is not int or number < 1 for number in (self.nodes, self.min_nodes, self.max_nodes)):
            return
        if self.nodes == 1:
            if self.max_nodes != 1 and self.rdzv_endpoint is None:
                yield "rdzv_endpoint", None, "host:port, since more than one node takes part"
        elif not self.min_nodes <= self.nodes <= self.max_nodes:
            yield "nodes", self.nodes, f"from min_nodes, {self.min_nodes}, to max_nodes, {self.max_nodes}"
        elif self.rdzv_endpoint is not None:
            yield "rdzv_endpoint", self.rdzv_endpoint, "None, since all nodes are on this machine"
        elif self.rdzv_backend != "c10d":
            yield "rdzv_backend", self.rdzv_backend, "c10d, since all nodes are on this machine"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None, **settings: Any) -> LaunchPlan:
        """A plan with what the `PET_*` variables say, which the training operator writes and torchrun reads.

        Args:
            environment: where the variables are; None: this process's environment.
            **settings: fields of the plan, which win over the variables.

        Raises:
            PlanError: with every wrong variable or field, its value and what is allowed.
        """
        environment = os.environ if environment is None else environment
        found: dict[str, Any] = {}
        violations = []
        for name, (fields, read, allowed) in _VARIABLES.items():
            if name in environment and not all(field in settings for field in fields):
                try:
                    found.update(zip(fields, read(environment[name]), strict=True))
                except ValueError:
                    violations.append((name, environment[name], allowed))
        if violations:
            raise PlanError(violations)
        return cls(**{**found, **settings})


def _read_nodes(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    return int(low), int(high or low)


def _read_nproc(text: str) -> tuple[int | str]:
    return (text if text in NPROC_WORDS else int(text),)


_VARIABLES: dict[str, tuple[tuple[str, ...], Callable[[str], tuple[Any, ...]], str]] = {
    "PET_NNODES": (("min_nodes", "max_nodes"), _read_nodes, "a number, or two as min:max"),
    "PET_NPROC_PER_NODE": (("nproc_per_node",), _read_nproc, f"a number, or {', '.join(NPROC_WORDS)}"),
    "PET_RDZV_ENDPOINT": (("rdzv_endpoint",), lambda text: (text,), ""),
    "PET_RDZV_BACKEND": (("rdzv_backend",), lambda text: (text,), ""),
    "PET_RDZV_ID": (("run_id",), lambda text: (text,), ""),
    "PET_MAX_RESTARTS": (("max_restarts",), lambda text: (int(text),), "a number"),
    "PET_MONITOR_INTERVAL": (("monitor_interval",), lambda text: (float(text),), "a number of seconds"),
    "PET_NODE_RANK": (("node_rank",), lambda text: (int(text),), "a number"),
}


def resolve_nproc(nproc_per_node: int | str) -> int:
    """The number of ranks that a word means on this machine; a number is itself.

    Raises:
        PlanError: `gpu` where there is none.
    """
    if isinstance(nproc_per_node, int):
        return nproc_per_node
    if nproc_per_node == "cpu":
        return usable_cpus()
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if nproc_per_node == "gpu" and not gpus:
        raise PlanError([("nproc_per_node", "gpu", "a number, auto or cpu, since this machine has no usable GPU")])
    return gpus or usable_cpus()


def usable_cpus() -> int:
    """CPUs that this process may use: its affinity, cut to the CPU quota of its cgroup; at least 1."""
    count = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    return max(count if quota is None else min(count, math.ceil(quota)), 1)


def _is_seconds(value: object, least: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value < math.inf


def _is_ranks(value: object) -> bool:
    return isinstance(value, tuple) and bool(value) and all(type(rank) is int and rank >= 0 for rank in value)


def _known() -> str:
    return ", ".join(sorted(RDZV_CONFIGS))
