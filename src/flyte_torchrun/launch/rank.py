"""What a rank's process does: takes over the launch's surroundings, runs the function, leaves its result or error."""

from __future__ import annotations

import asyncio
import faulthandler
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
from datetime import timedelta
from pathlib import Path
from typing import Any

from flyte_torchrun.launch import preload
from flyte_torchrun.launch.files import RankFiles, RunFolder, load, save

__all__ = ["STACKS_SIGNAL", "Assignment", "Surroundings", "run_rank"]

# Makes a rank write down what its threads are doing. A real-time signal, since programs use SIGUSR1 and SIGUSR2.
STACKS_SIGNAL = signal.SIGRTMIN + 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a process has of the one that launched it, whatever it was started from."""

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
        signal.pthread_sigmask(signal.SIG_SETMASK, self.blocked_signals - {STACKS_SIGNAL})
        gc.freeze()  # objects of the process that was forked may belong to its threads: none is collected here
        (gc.enable if self.collects_garbage else gc.disable)()


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What one rank is to do.

    Attributes:
        folder: the run's folder.
        node: the node's index.
        rank, local_rank, attempt: which rank this is, in which start of the group.
        pipes: where standard output and error go.
        variables: torchrun's environment variables.
        threads: threads of torch's operators.
        start_method: how the process was started.
        preload: modules to import before the function.
        collective_timeout: default time limit of NCCL's collectives in seconds; None: torch's.
        gate: the two ends of a pipe that a forked rank has inherited, and that is closed when it may begin; None: now.
    """

    folder: Path
    surroundings: Surroundings
    node: int
    pipes: tuple[Path, ...]
    rank: int
    local_rank: int
    attempt: int
    variables: dict[str, str]
    threads: int
    start_method: str
    preload: tuple[str, ...]
    collective_timeout: int | None
    gate: tuple[int, int] | None

    @property
    def files(self) -> RankFiles:
        """What this rank leaves for its launcher."""
        return RunFolder(self.folder).of_rank(self.attempt, self.rank)


def take_over_output(pipes: tuple[Path, ...]) -> None:
    """Points standard output and error to named pipes, whatever they were.

    Raises:
        OSError: nobody reads them any more.
    """
    for descriptor, pipe in enumerate(pipes, start=1):
        target = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)  # fails at once where nobody reads
        os.set_blocking(target, True)
        os.dup2(target, descriptor)
        os.close(target)
    for descriptor, name, errors in ((1, "stdout", "strict"), (2, "stderr", "backslashreplace")):
        # A line is passed on when it is complete, so that nothing is missing when the process is killed. A fork may
        # have inherited an object that writes somewhere else.
        stream = open(descriptor, "w", buffering=1, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def run_rank(assignment: Assignment) -> None:
    """The main function of a rank's process."""
    folder, files = RunFolder(assignment.folder), assignment.files
    os.setpgid(0, 0)  # so that the rank and whatever it starts can be ended together
    try:
        take_over_output(assignment.pipes)
        folder.register(assignment.node)
    except OSError:
        os._exit(1)  # the launcher is gone
    if assignment.gate is not None:
        reading, writing = assignment.gate
        os.close(writing)
        os.read(reading, 1)
        os.close(reading)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the launcher's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.register(STACKS_SIGNAL, file=files.stacks.open("w"), all_threads=True)
    try:
        assignment.surroundings.take_over(assignment.variables)
        _check_preload(assignment)
        import torch

        torch.set_num_threads(assignment.threads)
        if assignment.collective_timeout is not None:
            _set_collective_timeout(assignment.collective_timeout)
        function, arguments, keywords = load(folder.inputs)
        files.say_begin(preload.LOADED if assignment.start_method == "forkserver" else None)
        value = function(*arguments, **keywords)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
        if assignment.rank == 0:
            _leave_result(value, folder.result)
        files.say_end()
    except SystemExit as error:
        if error.code not in (None, 0):
            _leave_error(error, assignment)
            raise
        if assignment.rank == 0:
            _leave_result(None, folder.result)
        files.say_end()
    except BaseException as error:
        _leave_error(error, assignment)
        _flush()
        os._exit(1)


def _check_preload(assignment: Assignment) -> None:
    """A server that was started by an earlier plan may lack modules of this one: they are imported here then."""
    error = preload.ERROR if assignment.start_method == "forkserver" else None
    if error := error or preload.load(assignment.preload):
        raise RuntimeError(error)


def _set_collective_timeout(seconds: int) -> None:
    """Makes it the default of init_process_group for NCCL, which has no variable for it."""
    from torch.distributed import constants, distributed_c10d

    for module in (constants, distributed_c10d):
        module.default_pg_nccl_timeout = timedelta(seconds=seconds)  # type: ignore[attr-defined]


def _leave_result(value: Any, path: Path) -> None:
    try:
        save(value, path)
    except Exception as error:
        from flyte_torchrun.launch.pickling import blame

        where, reason = blame("result", value, error)
        raise TypeError(f"{where} cannot be sent back from rank 0: {reason}") from error


def _leave_error(error: BaseException, assignment: Assignment) -> None:
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

    path = assignment.files.error
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
