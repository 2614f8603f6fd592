"""When what happened in a launch, as plain data."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

__all__ = ["Recorder", "TimelineEvent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEvent:
    """One event of a launch; equal start and end make it a moment.

    Attributes:
        name: `torch` (loaded by this process), `rank server` (until it has loaded torch), `inputs` (written),
            `rendezvous`, `rank` (its process),
            `function` (in a rank), `first output` (of a rank), `restart`, `end of ranks` (they are stopped),
            `lost node` or `result` (read).
        start: when it began, seconds since the epoch.
        end: when it ended, at least start.
        node: which node, when there are several; None: all.
        rank: the rank in the whole group; None: no single one.
        attempt: how often the group had been restarted before.
        detail: an exit code, a size or a reason, in words.
    """

    name: str
    start: float
    end: float
    node: int | None = None
    rank: int | None = None
    attempt: int = 0
    detail: str = ""


@dataclass(slots=True)
class Recorder:
    """Collects the events of one process.

    Attributes:
        node: which node's they are; None: no single one's.
        events: those so far.
    """

    node: int | None = None
    events: list[TimelineEvent] = field(default_factory=list)

    def add(
        self,
        name: str,
        start: float,
        end: float,
        *,
        rank: int | None = None,
        attempt: int = 0,
        detail: str = "",
    ) -> None:
        """Records what lasted from start to end."""
        event = TimelineEvent(
            name=name, start=start, end=max(start, end), node=self.node, rank=rank, attempt=attempt, detail=detail
        )
        self.events.append(event)

    def mark(self, name: str, *, attempt: int = 0, detail: str = "") -> None:
        """Records a moment: now."""
        now = time.time()
        self.add(name, now, now, attempt=attempt, detail=detail)

    @contextmanager
    def span(self, name: str, *, attempt: int = 0, detail: str = "") -> Iterator[None]:
        """Records how long the block takes, also when it raises."""
        start = time.time()
        try:
            yield
        finally:
            self.add(name, start, time.time(), attempt=attempt, detail=detail)

    def timeline(self) -> tuple[TimelineEvent, ...]:
        """All events in the order of their start; the rank server is named once, whoever reported it."""
        servers = {(event.start, event.end): replace(event, node=None) for event in self.events if _is_server(event)}
        others = [event for event in self.events if not _is_server(event)]
        return tuple(sorted([*servers.values(), *others], key=lambda event: event.start))


def _is_server(event: TimelineEvent) -> bool:
    return event.name == "rank server"
