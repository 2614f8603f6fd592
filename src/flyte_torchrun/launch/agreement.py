"""What the nodes of a group tell each other between two rendezvous, through that round's store."""

from __future__ import annotations

import json
import time
from typing import Any

import torch

from flyte_torchrun.launch.errors import LaunchError, RankError, from_record, to_record

__all__ = ["Round", "Start"]

_PREFIX = "flyte_torchrun/"
_LONGEST_TRACEBACK = 2**16
_SECONDS_BETWEEN_BEATS = 1.0


class Start:
    """What all nodes agree on before they start their ranks.

    Attributes:
        attempt: how often the group has been started before.
        failures: how many of these starts were for a failure.
        address, port: of the store that the ranks use.
    """

    def __init__(self, attempt: int, failures: int, address: str, port: int) -> None:
        self.attempt = attempt
        self.failures = failures
        self.address = address
        self.port = port


class Round:
    """One round of the rendezvous. With a single node nothing goes through the store.

    Args:
        store: the round's store.
        node: this node's rank in it.
        nodes: how many there are.
    """

    def __init__(self, store: Any, node: int, nodes: int) -> None:
        self._store = store
        self._node = node
        self._nodes = nodes
        self._store_of_the_ranks: Any = None
        self._beats = 0
        self._next_beat = 0.0
        self._seen: dict[int, tuple[bytes, float]] = {}
        self._has_told: set[str] = set()

    @property
    def is_alone(self) -> bool:
        """Whether there is no other node."""
        return self._nodes == 1

    def begin(self, attempt: int, failures: int, address: str) -> Start:
        """Agrees on the start: on the highest counts of all nodes, and on a new store, held by the first node.

        A node that joined later has counted fewer starts. torch would have the ranks share the store of the rendezvous,
        in which a restarted group finds the addresses of the one before, or choose a port that somebody else may take
        until rank 0 listens on it.

        Args:
            attempt: this node's count of starts before this one.
            failures: this node's count of failures before this one.
            address: this node's address.
        """
        distributed: Any = torch.distributed
        if self._node == 0:
            store = self._store_of_the_ranks = distributed.TCPStore(address, 0, is_master=True, wait_for_workers=False)
            store.set("ready", "")  # answered when the store's thread is done with accepting, and can be forked beside
        if self.is_alone:
            return Start(attempt, failures, address, self._store_of_the_ranks.port)
        self._set(f"counts/{self._node}", [attempt, failures])
        if self._node == 0:
            counts = [self._get(f"counts/{node}") for node in range(self._nodes)]
            agreed = [max(column) for column in zip(*counts, strict=True)]
            self._set("start", [*agreed, address, self._store_of_the_ranks.port])
        return Start(*self._get("start"))

    def tell_failure(self, error: LaunchError) -> None:
        """Tells the others what ended the group for good; they would wait in vain."""
        if self.is_alone:
            return
        record = to_record(error)
        if isinstance(error, RankError):
            record["traceback"] = error.traceback[-_LONGEST_TRACEBACK:]
            record["message"] = error.message[:_LONGEST_TRACEBACK]
        self._set("failure", record)

    def failure(self) -> LaunchError | None:
        """What another node told; None: nothing yet."""
        return from_record(self._get("failure")) if self._is_told("failure") else None

    def tell_first_end(self) -> None:
        """Tells that a rank ended well here."""
        self._tell_once("first_end")

    def has_first_end(self) -> bool:
        """Whether a rank of any other node ended well."""
        return self._is_told("first_end")

    def tell_done(self) -> None:
        """Tells that all ranks ended well here."""
        self._tell_once(f"done/{self._node}")

    def all_are_done(self) -> bool:
        """Whether all ranks of all nodes ended well."""
        return all(self._is_told(f"done/{node}") for node in range(self._nodes) if node != self._node)

    def tell_left(self) -> None:
        """Tells that this node needs the store no more."""
        self._tell_once(f"left/{self._node}")

    def all_have_left(self) -> bool:
        """Whether no other node needs the store any more."""
        return all(self._is_told(f"left/{node}") for node in range(self._nodes) if node != self._node)

    def beat(self) -> None:
        """Shows that this node is there; to be called often."""
        if not self.is_alone and time.monotonic() >= self._next_beat:
            self._next_beat = time.monotonic() + _SECONDS_BETWEEN_BEATS
            self._beats += 1
            self._set(f"beat/{self._node}", self._beats)

    def silent(self, seconds: float) -> list[int]:
        """The nodes that have not shown themselves for so long, as far as this one watches.

        The first node watches all others, and they watch the first: that is enough, since each tells what it found.
        """
        if self.is_alone:
            return []
        now = time.monotonic()
        for node in range(1, self._nodes) if self._node == 0 else (0,):
            name = f"{_PREFIX}beat/{node}"
            value = self._store.get(name) if self._store.check([name]) else b""
            if node not in self._seen or self._seen[node][0] != value:
                self._seen[node] = (value, now)
        return [node for node, (_, seen_at) in self._seen.items() if now - seen_at > seconds]

    def _tell_once(self, name: str) -> None:
        if not self.is_alone and name not in self._has_told:
            self._has_told.add(name)
            self._set(name, True)

    def _is_told(self, name: str) -> bool:
        return not self.is_alone and bool(self._store.check([_PREFIX + name]))

    def _set(self, name: str, value: Any) -> None:
        self._store.set(_PREFIX + name, json.dumps(value))

    def _get(self, name: str) -> Any:
        return json.loads(self._store.get(_PREFIX + name))
