"""Starting the processes of ranks, and ending them with all that they started."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import connection, forkserver
from multiprocessing.process import BaseProcess
from typing import Any

from flyte_torchrun.launch import preload
from flyte_torchrun.launch.errors import LaunchError
from flyte_torchrun.launch.rank import Assignment, run_rank

__all__ = ["RankProcess", "end", "prepare", "wait"]

_STARTING = threading.RLock()
_SECONDS_AFTER_SIGKILL = 10.0  # a process in uninterruptible sleep cannot be ended: then it is left


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
        with _without_main(), _environment({preload.MODULES_VARIABLE: ",".join(modules)}):
            multiprocessing.set_forkserver_preload([preload.__name__])
            forkserver.ensure_running()


class RankProcess:
    """The process of one rank."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        context: Any = multiprocessing.get_context(assignment.start_method)
        self._process: BaseProcess = context.Process(
            target=run_rank, args=(assignment,), name=f"rank-{assignment.rank}"
        )
        with _without_garbage_collection() if assignment.start_method == "fork" else _without_main():
            self._process.start()
        self.ended_at: float | None = None

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
        """Sends a signal to the rank and to what it started."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            # The group is not there yet (the rank has only just begun), or not any more.
            if self.exit_code is None:
                try:
                    os.kill(self.pid, number)
                except ProcessLookupError:
                    return


def wait(ranks: list[RankProcess], seconds: float) -> None:
    """Returns when a rank that ran has ended, at the latest after that time."""
    running = [rank.sentinel for rank in ranks if rank.ended_at is None]
    if running:
        connection.wait(running, timeout=max(seconds, 0.0))
    else:
        time.sleep(max(seconds, 0.0))


def end(ranks: list[RankProcess], number: int, grace: float) -> None:
    """Ends the ranks and everything they started: by the signal, and after `grace` seconds by SIGKILL."""
    running = [rank for rank in ranks if rank.exit_code is None]
    for rank in running:
        rank.signal_group(number)
    _wait_for_all(running, grace)
    for rank in ranks:
        rank.signal_group(signal.SIGKILL)  # also where the rank is gone: what it started may not be
    _wait_for_all(running, _SECONDS_AFTER_SIGKILL)


def _wait_for_all(ranks: list[RankProcess], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(rank.exit_code is None for rank in ranks) and time.monotonic() < deadline:
        wait(ranks, deadline - time.monotonic())


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
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Sets environment variables for a moment."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
