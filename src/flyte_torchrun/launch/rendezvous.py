"""How the nodes of a group find each other: torch's rendezvous, and what it needs to know of this node."""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousParameters
from torch.distributed.elastic.rendezvous import dynamic_rendezvous as _dynamic_rendezvous
from torch.distributed.elastic.rendezvous import registry as _registry
from torch.distributed.elastic.rendezvous.api import RendezvousStoreInfo

from flyte_torchrun.launch.errors import RendezvousError
from flyte_torchrun.launch.plan import LaunchPlan

__all__ = ["is_host", "local_address", "make_rendezvous", "reporting_progress", "split_endpoint"]

_LOG = logging.getLogger(__name__)
_DEFAULT_PORT = 29400  # torch's own
_SECONDS_BETWEEN_LINES = 5.0
_SECONDS_BETWEEN_TRIES = (0.02, 0.5)  # at first, and at most
# How often each node looks whether the others have come, in seconds for each node of the group.
_LOOK_PER_NODE = 0.02


class _OneNode(RendezvousHandler):
    """The rendezvous of a group of one node: nothing to wait for, no port, no name service, no thread."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    def get_backend(self) -> str:
        return "none"

    def next_rendezvous(self) -> RendezvousInfo:
        # Without type arguments in torch's stubs.
        store: Any = torch.distributed.HashStore()  # type: ignore[attr-defined]
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo("127.0.0.1", 0))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True


def make_rendezvous(plan: LaunchPlan, address: str) -> RendezvousHandler:
    """The rendezvous that the plan asks for, with this node's address.

    Raises:
        RendezvousConnectionError: the endpoint cannot be reached (torch's).
    """
    if plan.rdzv_endpoint is None:
        return _OneNode(plan.run_id)
    configs: dict[str, Any] = {
        "join_timeout": max(int(_join_limit(plan)), 1),
        "read_timeout": max(int(plan.read_timeout), 1),
    }
    configs["timeout"] = configs["join_timeout"]
    if plan.rdzv_backend == "c10d" and (host := is_host(plan)) is not None:
        configs["is_host"] = host
    if plan.rdzv_backend == "static":
        configs["rank"] = plan.node_rank or 0
    handler = _registry.get_rendezvous_handler(
        RendezvousParameters(
            backend=plan.rdzv_backend,
            endpoint=plan.rdzv_endpoint,
            run_id=plan.run_id,
            min_nodes=plan.min_nodes,
            max_nodes=plan.max_nodes,
            local_addr=address,
            **{**configs, **plan.rdzv_configs},
        )
    )
    _look_often(handler, plan.max_nodes)
    return handler


def is_host(plan: LaunchPlan) -> bool | None:
    """Whether this node holds the rendezvous: by its index, given or the last part of a pod's name; None: not known.

    torch would ask the name service, which may not know this pod yet.
    """
    if plan.node_rank is not None:
        return plan.node_rank == 0
    here, there = socket.gethostname(), split_endpoint(plan.rdzv_endpoint or "")[0].partition(".")[0]
    if here == there:
        return True
    mine, other = (re.fullmatch(r"(.*-)\d+", name) for name in (here, there))
    return False if mine and other and mine.group(1) == other.group(1) else None


def local_address(plan: LaunchPlan) -> str:
    """The address under which other nodes reach this one.

    Given, or that of the interface towards the rendezvous. A host name would do only where every node can resolve it,
    which pods cannot promise. A node that does not hold the rendezvous waits here until its port answers. A single node
    asks no name service.

    Raises:
        RendezvousError: after join_timeout.
    """
    if plan.rdzv_endpoint is None:
        return "127.0.0.1"
    host, port = split_endpoint(plan.rdzv_endpoint)
    limit = _join_limit(plan)
    start = time.monotonic()
    next_line = start + _SECONDS_BETWEEN_LINES
    pause, longest_pause = _SECONDS_BETWEEN_TRIES
    while True:
        try:
            return _reach(plan, host, port)
        except OSError as error:
            problem = f"{host} has no address" if isinstance(error, socket.gaierror) else f"port {port} does not answer"
            waited = time.monotonic() - start
            if waited > limit:
                raise RendezvousError(
                    f"the rendezvous at {plan.rdzv_endpoint} was not reached within join_timeout = {limit:g} s:"
                    f" {problem} ({error}); set rdzv_endpoint to where node 0 is, or join_timeout higher"
                ) from error
            if time.monotonic() > next_line:
                _LOG.warning(
                    "waiting for the rendezvous at %s: %s (%s) after %.0f of %g s",
                    plan.rdzv_endpoint,
                    problem,
                    error,
                    waited,
                    limit,
                )
                next_line += _SECONDS_BETWEEN_LINES
            time.sleep(pause)
            pause = min(2 * pause, longest_pause)


def _join_limit(plan: LaunchPlan) -> float:
    """Seconds to wait for others: the whole run may be bound more tightly than that."""
    return min(plan.join_timeout, plan.timeout or plan.join_timeout)


def _reach(plan: LaunchPlan, host: str, port: int) -> str:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if plan.rdzv_backend == "c10d" and is_host(plan) is False:
        with socket.create_connection((host, port), timeout=_SECONDS_BETWEEN_LINES):
            pass
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return plan.local_addr or str(probe.getsockname()[0])


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Host and port of `host:port`, `[address]:port` or `host`."""
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit():
        return endpoint.strip("[]"), _DEFAULT_PORT
    return host.strip("[]") or endpoint, int(port)


@contextmanager
def reporting_progress(plan: LaunchPlan) -> Iterator[None]:
    """Says every few seconds that this node waits for others, as long as it does."""
    if plan.rdzv_endpoint is None:
        yield
        return
    is_over = threading.Event()
    start = time.monotonic()

    def report() -> None:
        while not is_over.wait(_SECONDS_BETWEEN_LINES):
            _LOG.warning(
                "waiting at the rendezvous %s for %s nodes to join, after %.0f of %g s",
                plan.rdzv_endpoint,
                plan.min_nodes if plan.min_nodes == plan.max_nodes else f"{plan.min_nodes} to {plan.max_nodes}",
                time.monotonic() - start,
                plan.join_timeout,
            )

    thread = threading.Thread(target=report, name="rendezvous progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _look_often(handler: Any, nodes: int) -> None:
    """Makes torch look for other nodes more often than once a second, where there are few of them.

    Its delay between two looks, and the age up to which it takes what it saw for new, are constants of a second each;
    with them two nodes need a second to meet, and a restart needs three.
    """
    longest = min(_LOOK_PER_NODE * nodes, 1.0)
    holder: Any = getattr(handler, "_state_holder", None)
    if hasattr(holder, "_cache_duration"):
        holder._cache_duration = longest
    module: Any = _dynamic_rendezvous
    own_delay = getattr(module, "_delay", None)
    if own_delay is None or hasattr(own_delay, "seconds"):
        return

    def delay(seconds: float | tuple[float, float]) -> None:
        own_delay(tuple(min(bound, longest) for bound in seconds) if isinstance(seconds, tuple) else longest)

    delay.seconds = longest  # type: ignore[attr-defined]
    module._delay = delay
