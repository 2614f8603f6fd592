"""What goes between the launcher and its ranks, as files that only this user can read and this launch wrote.

Tensors travel through torch's own format, which a reader maps privately: the ranks share the pages until one of them
writes, and a write is seen by that rank alone. Everything else is pickled by cloudpickle, functions and classes of
`__main__` included.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flyte_torchrun.launch import guard

__all__ = ["RunFolder", "load", "save"]


class _Folders:
    """This process's folders in shared memory and on disk, and the guard that removes them after a kill."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._folders: list[str] = []

    def choose(self, size: int) -> Path:
        """The folder for a run that writes `size` bytes: in memory where they fit twice (inputs, then the result)."""
        with self._lock:
            if self._pid != os.getpid():  # also in a fork: the parent's folders are not its own
                self._make()
            for folder in self._folders[:-1]:
                if shutil.disk_usage(folder).free > 2 * size + 64 * 2**20:
                    return Path(folder)
            return Path(self._folders[-1])

    def _make(self) -> None:
        parents = [parent for parent in ("/dev/shm",) if os.access(parent, os.W_OK)]
        self._folders = [tempfile.mkdtemp(prefix="flyte-torchrun-", dir=parent) for parent in [*parents, None]]
        self._pid = os.getpid()
        # Not waited for: it ends when this process has.
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, str(self._pid), *self._folders],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        process.returncode = 0
        atexit.register(self._remove, self._pid)

    def _remove(self, pid: int) -> None:
        if pid == os.getpid():
            for folder in self._folders:
                shutil.rmtree(folder, ignore_errors=True)


_FOLDERS = _Folders()


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.inputs = path / "inputs"
        self.nodes = path / "nodes"
        self.result = path / "result"

    @classmethod
    @contextmanager
    def new(cls, size: int) -> Iterator[RunFolder]:
        """A folder for a run with inputs of that many bytes, which is gone afterwards."""
        path = Path(tempfile.mkdtemp(prefix="run-", dir=_FOLDERS.choose(size)))
        (path / "nodes").mkdir()
        try:
            yield cls(path)
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def register(self, node: int | None) -> None:
        """Says that this process leads a process group: a rank of that node, or None: a node's own process.

        Raises:
            FileNotFoundError: the launcher is gone.
        """
        (self._pids(node) / str(os.getpid())).touch()

    def expect(self, node: int | None) -> None:
        """Gets ready for processes that register."""
        self._pids(node).mkdir(parents=True, exist_ok=True)

    def registered(self, node: int | None) -> list[int]:
        """The process groups that registered."""
        folder = self._pids(node)
        return [int(name) for name in os.listdir(folder)] if folder.exists() else []

    def _pids(self, node: int | None) -> Path:
        # The guard knows these names.
        return self.path / "pids" / ("nodes" if node is None else f"ranks-of-{node}")

    def of_rank(self, attempt: int, rank: int) -> RankFiles:
        """The files of one rank in one start of the group."""
        return RankFiles(self.path / f"attempt-{attempt}-rank-{rank}")

    def of_node(self, node: int, start: int) -> Path:
        """The beginning of the names of the files of one node's process, in one of its starts."""
        return self.nodes / f"node-{node}-start-{start}"


class RankFiles:
    """What a rank in one start of the group leaves for its launcher."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.begin = path.with_name(f"{path.name}.begin")
        self.end = path.with_name(f"{path.name}.end")
        self.error = path.with_name(f"{path.name}.error")
        self.stacks = path.with_name(f"{path.name}.stacks")

    def clear(self) -> None:
        """Removes what another node's rank of the same number may have left in the same start."""
        for path in (self.begin, self.end, self.error, self.stacks):
            path.unlink(missing_ok=True)

    def say_begin(self, server: tuple[float, float] | None) -> None:
        """Notes that the function begins, and from when to when its rank server loaded what it needs."""
        self.begin.write_text(" ".join(map(repr, (time.time(), *(server or ())))))

    def say_end(self) -> None:
        """Notes that the function returned."""
        self.end.write_text(repr(time.time()))

    def times(self) -> list[float]:
        """What say_begin noted, or nothing."""
        return [float(word) for word in _read(self.begin).split()]

    def ended_at(self) -> float | None:
        """What say_end noted; None: the function did not return."""
        text = _read(self.end)
        return float(text) if text else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def save(value: Any, path: Path) -> None:
    """Writes a value; the file is whole or not there.

    Raises:
        Exception: whatever a part of the value raises when it is pickled.
    """
    import torch

    from flyte_torchrun.launch import pickling

    part = path.with_suffix(".part")
    with _without_checksums(torch):
        torch.save(value, part, pickle_module=pickling, pickle_protocol=5)
    part.rename(path)


def load(path: Path) -> Any:
    """Reads what `save` wrote, tensors on the CPU and mapped privately."""
    import torch

    return torch.load(path, map_location="cpu", mmap=True, weights_only=False)


@contextmanager
def _without_checksums(torch: Any) -> Iterator[None]:
    """The checksum takes most of the time of writing, and these files never leave the machine."""
    if not hasattr(torch.serialization, "set_crc32_options"):
        yield
        return
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)
