"""Starting the processes of ranks, and ending them with all that they started."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import connection, forkserver
from multiprocessing.process import BaseProcess
from typing import Any

from flyte_torchrun.launch import huge_pages, preload
from flyte_torchrun.launch.errors import LaunchError
from flyte_torchrun.launch.memory import MemoryWatch
from flyte_torchrun.launch.output import ProcessOutput
from flyte_torchrun.launch.rank import STACKS_SIGNAL, Assignment, run_rank
from flyte_torchrun.launch.timeline import Recorder

__all__ = ["RankProcess", "Supervised", "end", "prepare", "say_idle", "wait", "wait_for_all"]

_STARTING = threading.RLock()
_SERVED: list[str] = []  # what the rank server loads beside torch, as it was prepared last
_SECONDS_AFTER_SIGKILL = 10.0  # a process in uninterruptible sleep cannot be ended: then it is left
_TRIES_AT_A_DYING_SERVER = 20
# A fork copies the server's page tables, and a rank that ends gives them back: both take a third less time so. The
# variable is read by glibc when the server starts (glibc manual, Memory Allocation Tunables); ranks have the launch's
# environment, not the server's.
_TUNABLES, _HUGE_PAGES = "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"
_NO_STACKS = "(it has written nothing)"


def prepare(start_method: str, modules: tuple[str, ...]) -> None:
    """Gets the start method ready, in the background where it can be: the rank server begins to load torch.

    Raises:
        LaunchError: `fork` after CUDA was initialised.
    """
    if start_method == "fork":
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            raise LaunchError(
                "start_method: 'fork' is not possible any more: this process has initialised CUDA, which a forked rank"
                " cannot use; take 'forkserver' or 'spawn', or launch before CUDA is used"
            )
    elif start_method == "forkserver":
        _SERVED[:] = modules
        with _without_main(), _serving():
            multiprocessing.set_forkserver_preload([preload.__name__])
            forkserver.ensure_running()


def say_idle() -> None:
    """Tells the rank server, if this process has one, that a launch has ended."""
    pid = getattr(getattr(forkserver, "_forkserver", None), "_forkserver_pid", None)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, huge_pages.IDLE_SIGNAL)


class Supervised:
    """A process that leads a process group, and whose output is taken while it is waited for.

    Attributes:
        ended_at: when it ended, seconds since the epoch; None: it runs, or nobody has looked since.
        is_closed: whether its output was taken to the end.
    """

    def __init__(
        self, start_method: str, main: Callable[..., None], assignment: Any, name: str, output: ProcessOutput
    ) -> None:
        self.output = output
        self.started_at = time.time()
        self.ended_at: float | None = None
        self.is_closed = False
        self._process = _start(start_method, main, assignment, name)

    @property
    def pid(self) -> int:
        """The process, and the process group that it leads."""
        return self._process.pid or 0

    @property
    def sentinel(self) -> int:
        """Becomes ready when the process has ended."""
        return self._process.sentinel

    @property
    def exit_code(self) -> int | None:
        """Negative for a signal; None while it runs."""
        code = self._process.exitcode
        if code is not None and self.ended_at is None:
            self.ended_at = time.time()
        return code

    def signal_group(self, number: int) -> None:
        """Sends a signal to the process and to what it started."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            # The group is not there yet (the process has only just begun), or not any more.
            if self.exit_code is None:
                self.signal(number)

    def signal(self, number: int) -> None:
        """Sends a signal to the process alone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def observe(self) -> None:
        """Notes what can be known only while the process runs."""

    def close_output(self) -> None:
        """Takes the rest of the output, once the process has ended."""
        if not self.is_closed:
            self.is_closed = True
            self.output.close()


class RankProcess(Supervised):
    """The process of one rank."""

    def __init__(self, assignment: Assignment, output: ProcessOutput) -> None:
        self.assignment = assignment
        self._memory = MemoryWatch()
        super().__init__(assignment.start_method, run_rank, assignment, f"rank-{assignment.rank}", output)

    def observe(self) -> None:
        """Notes the memory that it uses."""
        if self.ended_at is None:
            self._memory.look(self.pid)

    def memory(self) -> str:
        """What is known of its memory, in words."""
        return self._memory.describe()

    def ask_for_stacks(self) -> None:
        """Makes the rank write down what its threads are doing, if it has come so far."""
        if self.assignment.files.stacks.exists():
            self.signal(STACKS_SIGNAL)

    def has_left_stacks(self) -> bool:
        """Whether it has, or never will."""
        return self.exit_code is not None or self.stacks() != _NO_STACKS

    def stacks(self) -> str:
        """What it wrote."""
        path = self.assignment.files.stacks
        return (path.read_text(errors="replace").strip() if path.exists() else "") or _NO_STACKS

    def close(self, recorder: Recorder) -> None:
        """Takes the rest of the output and records what is known of the rank, once it has ended."""
        self.close_output()
        now, assignment = time.time(), self.assignment
        where: dict[str, Any] = {"rank": assignment.rank, "attempt": assignment.attempt}
        code = self.exit_code
        detail = "still there" if code is None else f"exit code {code}"
        recorder.add("rank", self.started_at, self.ended_at or now, detail=detail, **where)
        times = assignment.files.times()
        if times:
            end = assignment.files.ended_at()
            detail = "" if end else "did not return"
            recorder.add("function", times[0], end or self.ended_at or now, detail=detail, **where)
            if times[1:]:
                recorder.add("rank server", times[1], times[2])
        if (first := self.output.first_at) is not None:
            recorder.add("first output", first, first, **where)


def _start(start_method: str, main: Callable[..., None], assignment: Any, name: str) -> BaseProcess:
    context: Any = multiprocessing.get_context(start_method)
    tries = _TRIES_AT_A_DYING_SERVER if start_method == "forkserver" else 1
    for remaining in reversed(range(tries)):
        process: BaseProcess = context.Process(target=main, args=(assignment,), name=name)
        try:
            with _STARTS[start_method]():
                process.start()
        except (EOFError, ConnectionError):
            # The server was killed just now; multiprocessing starts another as soon as that can be seen.
            if not remaining:
                raise
            time.sleep(0.1)
        else:
            break
    return process


def wait(processes: Sequence[Supervised], seconds: float) -> None:
    """Returns when one that ran has ended, at the latest after that time; meanwhile takes what they print."""
    deadline = time.monotonic() + seconds
    sentinels = [process.sentinel for process in processes if process.ended_at is None]
    outputs = {
        descriptor: process.output
        for process in processes
        if not process.is_closed
        for descriptor in process.output.descriptors
    }
    while True:
        remaining = max(deadline - time.monotonic(), 0.0)
        ready: Any = connection.wait([*sentinels, *outputs], timeout=remaining)
        for output in {id(outputs[each]): outputs[each] for each in ready if each in outputs}.values():
            output.take()
        for process in processes:
            process.observe()
        if remaining == 0.0 or any(sentinel in ready for sentinel in sentinels):
            return


def end(processes: Sequence[Supervised], number: int, grace: float) -> None:
    """Ends the processes and everything they started: by the signal, and after `grace` seconds by SIGKILL."""
    running = [process for process in processes if process.exit_code is None]
    for process in running:
        process.signal_group(number)
    wait_for_all(running, grace)
    for process in processes:
        process.signal_group(signal.SIGKILL)  # also where it is gone: what it started may not be
    wait_for_all(running, _SECONDS_AFTER_SIGKILL)


def wait_for_all(processes: Sequence[Supervised], seconds: float) -> None:
    """Returns when all have ended, at the latest after that time."""
    deadline = time.monotonic() + seconds
    while any(process.exit_code is None for process in processes) and time.monotonic() < deadline:
        wait(processes, deadline - time.monotonic())


@contextmanager
def _without_main() -> Iterator[None]:
    """Keeps multiprocessing from running the main program again in each rank: its functions travel by value."""
    main, missing = sys.modules["__main__"], object()
    with _STARTING:
        saved = {name: main.__dict__.pop(name, missing) for name in ("__file__", "__spec__")}
        main.__spec__ = None
        try:
            yield
        finally:
            main.__dict__.pop("__spec__", None)
            main.__dict__.update({name: value for name, value in saved.items() if value is not missing})


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Keeps a forked rank from collecting this process's objects before it has set them apart."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


@contextmanager
def _serving() -> Iterator[None]:
    """Tells a rank server that is started meanwhile what to load, and to hold it in huge pages."""
    told = {preload.MODULES_VARIABLE: ",".join(_SERVED)}
    if _TUNABLES not in os.environ:
        told[_TUNABLES] = _HUGE_PAGES
    with _STARTING:
        os.environ.update(told)
        try:
            yield
        finally:
            for name in told:
                os.environ.pop(name, None)


@contextmanager
def _from_the_server() -> Iterator[None]:
    """A server that has died since it was prepared is started again by multiprocessing itself."""
    with _without_main(), _serving():
        yield


_STARTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "fork": _without_garbage_collection,
    "forkserver": _from_the_server,
    "spawn": _without_main,
}
