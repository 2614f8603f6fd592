"""What a rank's process does: takes over the launch's surroundings, runs the function, leaves its result or error."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyte_torchrun.launch.files import RunFolder, load, save

__all__ = ["Assignment", "Surroundings", "run_rank"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a process has of the one that launched it, whatever it was started from."""

    pid: int
    environment: dict[str, str]
    working_directory: str
    path: list[str]
    umask: int
    blocked_signals: frozenset[int]
    collects_garbage: bool

    @classmethod
    def current(cls) -> Surroundings:
        """Those of this process."""
        umask = os.umask(0o077)
        os.umask(umask)
        return cls(
            pid=os.getpid(),
            environment=dict(os.environ),
            working_directory=os.getcwd(),
            path=list(sys.path),
            umask=umask,
            blocked_signals=frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
            collects_garbage=gc.isenabled(),
        )

    def take_over(self, variables: dict[str, str]) -> None:
        """Makes them this process's, with further environment variables."""
        os.environ.clear()
        os.environ.update({**self.environment, **variables})
        os.chdir(self.working_directory)
        sys.path[:] = self.path
        os.umask(self.umask)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.blocked_signals)
        gc.freeze()  # objects of the process that was forked may belong to its threads: none is collected here
        (gc.enable if self.collects_garbage else gc.disable)()

    def take_over_output(self) -> None:
        """Points standard output and error to where those of the launching process go now."""
        for descriptor in (1, 2):
            try:
                target = os.open(f"/proc/{self.pid}/fd/{descriptor}", os.O_WRONLY | os.O_APPEND)
            except OSError:
                continue  # closed there, or a socket, which cannot be opened by name
            os.dup2(target, descriptor)
            os.close(target)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What one rank is to do.

    Attributes:
        folder: the run's folder.
        rank, local_rank, attempt: which rank this is, in which start of the group.
        variables: torchrun's environment variables.
        threads: threads of torch's operators.
        start_method: how the process was started.
        preload: modules to import before the function.
    """

    folder: Path
    surroundings: Surroundings
    rank: int
    local_rank: int
    attempt: int
    variables: dict[str, str]
    threads: int
    start_method: str
    preload: tuple[str, ...]


def run_rank(assignment: Assignment) -> None:
    """The main function of a rank's process."""
    folder = RunFolder(assignment.folder)
    os.setpgid(0, 0)  # so that the rank and whatever it starts can be ended together
    try:
        folder.register()
    except FileNotFoundError:
        os._exit(1)  # the launcher is gone
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the launcher's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        if assignment.start_method == "forkserver":
            assignment.surroundings.take_over_output()
        assignment.surroundings.take_over(assignment.variables)
        _check_preload(assignment)
        import torch

        torch.set_num_threads(assignment.threads)
        function, arguments, keywords = load(folder.inputs)
        value = function(*arguments, **keywords)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
        if assignment.rank == 0:
            _leave_result(value, folder.result)
        folder.end(assignment.attempt, assignment.rank).touch()
    except SystemExit as error:
        if error.code not in (None, 0):
            _leave_error(error, assignment, folder)
            raise
        folder.end(assignment.attempt, assignment.rank).touch()
        if assignment.rank == 0:
            _leave_result(None, folder.result)
    except BaseException as error:
        _leave_error(error, assignment, folder)
        _flush()
        os._exit(1)


def _check_preload(assignment: Assignment) -> None:
    """A server that was started by an earlier plan may lack modules of this one: they are imported here then."""
    from flyte_torchrun.launch import preload

    error = preload.ERROR if assignment.start_method == "forkserver" else None
    if error := error or preload.load(assignment.preload):
        raise RuntimeError(error)


def _leave_result(value: Any, path: Path) -> None:
    try:
        save(value, path)
    except Exception as error:
        from flyte_torchrun.launch.pickling import blame

        where, reason = blame("result", value, error)
        raise TypeError(f"{where} cannot be sent back from rank 0: {reason}") from error


def _leave_error(error: BaseException, assignment: Assignment, folder: RunFolder) -> None:
    """Writes the error for the launcher, its time first: it decides which of several is reported."""
    now = time.time()
    # The frames of this module say nothing to the user.
    frames = error.__traceback__.tb_next if error.__traceback__ is not None else None
    record = {
        "timestamp": now,
        "exception_type": type(error).__name__,
        "message": str(error),
        "rank": assignment.rank,
        "local_rank": assignment.local_rank,
        "host": socket.gethostname(),
        "attempt": assignment.attempt,
        "exception_bases": [f"{base.__module__}.{base.__qualname__}" for base in type(error).__mro__],
        "traceback": "".join(traceback.format_exception(type(error), error, frames or error.__traceback__)),
    }
    from flyte_torchrun.launch.pickling import dump_exception

    path = folder.error(assignment.attempt, assignment.rank)
    part = path.with_suffix(".part")
    try:
        part.write_bytes(pickle.dumps((record, dump_exception(error))))
        part.rename(path)
    except OSError:
        print(record["traceback"], file=sys.stderr)  # no space left: then at least here


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # closed
