"""How much memory a rank has used: looked at while it runs, since nothing is left of it after a kill."""

from __future__ import annotations

import time

from flyte_torchrun.launch.cgroup import memory_limit, oom_kills

__all__ = ["MemoryWatch"]

_SECONDS_BETWEEN_LOOKS = 0.25


class MemoryWatch:
    """The memory of one process.

    Attributes:
        peak: the most physical memory that it had when it was last looked at, in bytes; None: never seen.
    """

    def __init__(self) -> None:
        self.peak: int | None = None
        self._next_look = 0.0
        self._kills_before = oom_kills()

    def look(self, pid: int) -> None:
        """Looks at the process, unless that was done just before."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _SECONDS_BETWEEN_LOOKS
        self.peak = _peak(pid) or self.peak

    def describe(self) -> str:
        """What is known, in words; empty: nothing."""
        facts = []
        if self.peak is not None:
            facts.append(f"it had used up to {_gib(self.peak)} when last looked at")
        if (limit := memory_limit()) is not None:
            facts.append(f"the limit of its cgroup is {_gib(limit)}")
        kills = oom_kills()
        if kills is not None and self._kills_before is not None and kills > self._kills_before:
            facts.append("the kernel has killed a process of this cgroup for memory meanwhile")
        return ", ".join(facts)


def _peak(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass  # it is gone
    return None


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
