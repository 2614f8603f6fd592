"""What the kernel's control groups allow this process, and what they have done to it.

Version 2 is read from the group's own folder up to the root, since the smallest limit on the way counts; of version 1
only memory is. In a container the path that /proc names may lie outside of what is mounted: then the mount's root is
read. Sources: the kernel's documentation, admin-guide/cgroup-v2 and cgroup-v1/memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["cpu_quota", "memory_limit", "oom_kills"]

_ROOT = Path("/sys/fs/cgroup")
_NO_LIMIT = 2**60  # version 1 writes "no limit" as a number close to 2**63


def cpu_quota() -> float | None:
    """CPUs that the group may use at once; None: no quota."""
    quotas = []
    for folder in _folders():
        words = _read(folder / "cpu.max").split()
        if len(words) == 2 and words[0].isdigit():
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def memory_limit() -> int | None:
    """Bytes that the group may use; None: no limit."""
    texts = [_read(folder / name) for folder in _folders() for name in ("memory.max", "memory.limit_in_bytes")]
    limits = [int(text) for text in texts if text.isdigit()]
    return min((limit for limit in limits if limit < _NO_LIMIT), default=None)


def oom_kills() -> int | None:
    """Processes of the group that the kernel has killed because its memory was used up; None: not known."""
    for folder in _folders():
        for name in ("memory.events", "memory.oom_control"):
            counts = dict(line.split()[:2] for line in _read(folder / name).splitlines() if " " in line)
            if "oom_kill" in counts:
                return int(counts["oom_kill"])
    return None


def _folders() -> Iterator[Path]:
    """The group's folder and those above it, the own one first."""
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            root = _ROOT / controllers
            own = root / path.strip("/")
            yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(root))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
