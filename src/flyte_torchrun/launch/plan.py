"""What is to be launched: a worker group, its rendezvous, its limits. Checked whole at construction; needs no torch."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flyte_torchrun.launch.errors import PlanError

__all__ = ["LaunchPlan", "resolve_nproc", "usable_cpus"]

START_METHODS = ("forkserver", "spawn", "fork")
NPROC_WORDS = ("auto", "gpu", "cpu")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """A worker group as it is to be launched.

    Attributes:
        nproc_per_node: ranks on this node, from 1, or `auto`, `gpu` or `cpu`: resolved when the group starts.
        min_nodes: fewest nodes that the group runs with, from 1.
        max_nodes: most nodes, at least min_nodes.
        start_method: `forkserver` (ranks are forked from a server that has loaded torch), `spawn` or `fork`.
        max_restarts: how often the whole group is started again after a failure, from 0.
        monitor_interval: seconds between two looks at other nodes, more than 0; a rank's end is noticed at once.
        rdzv_backend: torch's rendezvous backend: `c10d`, `etcd`, `etcd-v2` or `static`.
        rdzv_endpoint: `host:port` of the rendezvous; None for one node, which then uses 127.0.0.1 and a free port.
        rdzv_configs: further settings of torch's rendezvous; they win over join_timeout and read_timeout.
        run_id: names the group; the same on every node, another for every attempt.
        join_timeout: seconds that the first node waits for the others, more than 0.
        read_timeout: seconds that a node waits for the rendezvous store, more than 0.
        shutdown_grace: seconds between SIGTERM and SIGKILL for a rank that is stopped, 0 or more.
        omp_num_threads: threads of each rank; None: the usable CPUs divided by the ranks here, at least 1. An
            OMP_NUM_THREADS in the environment wins over both. A forked rank computes with one thread, whatever is set.
        preload: modules that the server of `forkserver` imports before it starts ranks.
        timeout: seconds that the run may take, more than 0; None: no bound.
        hang_timeout: seconds that the group may go on after its first rank ended, more than 0; None: no bound.

    Raises:
        PlanError: with every wrong field, its value and what is allowed.
    """

    nproc_per_node: int | str = 1
    min_nodes: int = 1
    max_nodes: int = 1
    start_method: str = "forkserver"
    max_restarts: int = 0
    monitor_interval: float = 0.1
    rdzv_backend: str = "c10d"
    rdzv_endpoint: str | None = None
    rdzv_configs: Mapping[str, Any] = field(default_factory=dict)
    run_id: str = field(default_factory=lambda: secrets.token_hex(8))
    join_timeout: float = 900.0
    read_timeout: float = 900.0
    shutdown_grace: float = 30.0
    omp_num_threads: int | None = None
    preload: tuple[str, ...] = ()
    timeout: float | None = None
    hang_timeout: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "preload", tuple(self.preload))
        if isinstance(self.rdzv_configs, Mapping):
            object.__setattr__(self, "rdzv_configs", dict(self.rdzv_configs))
        if found := tuple(self._violations()):
            raise PlanError(found)

    def _violations(self) -> Iterator[tuple[str, object, str]]:
        for name, fewest in (("min_nodes", 1), ("max_nodes", 1), ("max_restarts", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < fewest:
                yield name, value, f"a whole number from {fewest}"
            elif name == "max_nodes" and type(self.min_nodes) is int and self.min_nodes > value:
                yield name, value, f"at least min_nodes, which is {self.min_nodes}"
        if self.nproc_per_node not in NPROC_WORDS and (type(self.nproc_per_node) is not int or self.nproc_per_node < 1):
            yield "nproc_per_node", self.nproc_per_node, f"a whole number from 1, or {', '.join(NPROC_WORDS)}"
        if self.omp_num_threads is not None and (type(self.omp_num_threads) is not int or self.omp_num_threads < 1):
            yield "omp_num_threads", self.omp_num_threads, "a whole number from 1"
        for name, allowed in (("start_method", START_METHODS), ("rdzv_backend", RDZV_BACKENDS)):
            if getattr(self, name) not in allowed:
                yield name, getattr(self, name), ", ".join(allowed)
        for name in ("monitor_interval", "join_timeout", "read_timeout", "timeout", "hang_timeout", "shutdown_grace"):
            value = getattr(self, name)
            is_optional, least = name in ("timeout", "hang_timeout"), 0 if name == "shutdown_grace" else 1e-9
            if not (value is None and is_optional) and not _is_seconds(value, least):
                yield name, value, f"{'' if least else '0 or '}more than 0 seconds"
        if self.max_nodes != 1 and self.rdzv_endpoint is None:
            yield "rdzv_endpoint", None, "host:port, since more than one node takes part"
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
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        if quota != "max":
            count = min(count, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        pass  # no cgroup of version 2, no quota
    return max(count, 1)


def _is_seconds(value: object, least: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value < math.inf


def _known() -> str:
    return ", ".join(sorted(RDZV_CONFIGS))
