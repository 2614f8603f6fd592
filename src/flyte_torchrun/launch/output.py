"""What the ranks print: shown line by line with the rank's name, and kept in files.

Each rank writes into two named pipes of the run's folder. The process that supervises the ranks empties them while it
waits for their ends, without a thread of its own: a rank that prints faster than the output can be shown waits, and
nothing piles up in memory.
"""

from __future__ import annotations

import fcntl
import os
import re
import sys
import time
from pathlib import Path
from typing import BinaryIO

__all__ = ["NAMES", "ProcessOutput"]

NAMES = ("stdout", "stderr")  # of file descriptors 1 and 2

_CHUNK = 2**18
_LONGEST_LINE = 2**16
_PIPE_SIZE = 2**20
_F_SETPIPE_SZ = 1031  # fcntl.F_SETPIPE_SZ, which Python 3.10 knows on Linux only
_BREAK = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?!\Z)")  # the end of a line that another one follows


class _Stream:
    """One of the two streams of a rank."""

    def __init__(self, name: str, pipe: Path, prefix: bytes, *, is_shown: bool, log: Path | None) -> None:
        self.name = name
        self.pipe = pipe
        self.first_at: float | None = None
        self._prefix = prefix
        self._is_shown = is_shown
        self._pending = b""
        self._log: BinaryIO | None = None
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            self._log = log.open("wb", buffering=0)
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe, 0o600)
        # Open for writing too, so that the pipe has no end of file before the first writer comes.
        self.descriptor = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        _enlarge(self.descriptor)

    def take(self) -> bool:
        """Takes what is there, up to one chunk; whether there was something."""
        try:
            data = os.read(self.descriptor, _CHUNK)
        except BlockingIOError:
            return False
        self.first_at = self.first_at or time.time()
        if self._log is not None:
            self._log.write(data)
        if self._is_shown:
            self._show_lines(data)
        return True

    def close(self) -> None:
        """Shows a last line that has no end, and lets go of pipe and file."""
        if self._pending:
            self._show(self._prefix + self._pending + b"\n" * bool(self._prefix))
            self._pending = b""
        os.close(self.descriptor)
        self.pipe.unlink(missing_ok=True)
        if self._log is not None:
            self._log.close()

    def _show_lines(self, data: bytes) -> None:
        data = self._pending + data
        # A carriage return at the end may be half of a line's end: it waits for what follows.
        size = max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1
        if size == 0 and len(data) > _LONGEST_LINE:
            data += b"\n"
            size = len(data)
        lines, self._pending = data[:size], data[size:]
        if lines and self._prefix:
            lines = self._prefix + _BREAK.sub(lambda end: end.group() + self._prefix, lines)
        if lines:
            self._show(lines)

    def _show(self, data: bytes) -> None:
        """Writes to this process's stream of that name, also where a notebook or a test has replaced it."""
        stream = getattr(sys, self.name)
        try:
            if hasattr(stream, "buffer"):
                stream.flush()
                stream.buffer.write(data)
            else:
                stream.write(data.decode(errors="replace"))
            stream.flush()
        except (AttributeError, OSError, ValueError):
            self._is_shown = False  # nobody reads any more: the ranks go on


class ProcessOutput:
    """The output of one process, from its start to its end.

    Args:
        pipes: where its two named pipes are made: this path with `.stdout` and `.stderr` added.
        prefix: what each line begins with; empty: lines are passed on as they are.
        is_shown: whether it is shown.
        log_folder: the folder that keeps it; None: it is not kept.
    """

    def __init__(self, pipes: Path, prefix: str, *, is_shown: bool = True, log_folder: Path | None = None) -> None:
        self._streams = [
            _Stream(
                name,
                pipes.with_name(f"{pipes.name}.{name}"),
                prefix.encode(),
                is_shown=is_shown,
                log=None if log_folder is None else log_folder / f"{name}.log",
            )
            for name in NAMES
        ]

    @property
    def pipes(self) -> tuple[Path, ...]:
        """Where the rank opens its standard output and error."""
        return tuple(stream.pipe for stream in self._streams)

    @property
    def descriptors(self) -> list[int]:
        """Become ready when there is something to take."""
        return [stream.descriptor for stream in self._streams]

    @property
    def first_at(self) -> float | None:
        """When the first output came, seconds since the epoch; None: none yet."""
        return min((stream.first_at for stream in self._streams if stream.first_at is not None), default=None)

    def take(self) -> bool:
        """Takes what is there, a bounded part of it; whether there was something."""
        found = [stream.take() for stream in self._streams]  # all of them, not only up to the first that had something
        return any(found)

    def close(self) -> None:
        """Takes the rest, once the rank has ended."""
        while self.take():
            pass
        for stream in self._streams:
            stream.close()


def _enlarge(descriptor: int) -> None:
    try:
        fcntl.fcntl(descriptor, _F_SETPIPE_SZ, _PIPE_SIZE)
    except OSError:
        return  # the user's share of pipe memory is used up: the pipe stays as it is
