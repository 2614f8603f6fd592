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
        self.result = path / "result"

    @classmethod
    @contextmanager
    def new(cls, size: int) -> Iterator[RunFolder]:
        """A folder for a run with inputs of that many bytes, which is gone afterwards."""
        path = Path(tempfile.mkdtemp(prefix="run-", dir=_FOLDERS.choose(size)))
        (path / "pids").mkdir()
        try:
            yield cls(path)
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def register(self) -> None:
        """Says that this process is a rank's, and leads a process group.

        Raises:
            FileNotFoundError: the launcher is gone.
        """
        (self.path / "pids" / str(os.getpid())).touch()

    def error(self, attempt: int, rank: int) -> Path:
        """Where a rank leaves its error."""
        return self.path / f"error-{attempt}-{rank}"

    def end(self, attempt: int, rank: int) -> Path:
        """Where a rank says that its function returned."""
        return self.path / f"end-{attempt}-{rank}"


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
