"""Holds the rank server's memory in huge pages, so that a fork copies little and an end gives little back.

A process with torch loaded has some 300 MB of objects in 80,000 small pages. Forking it takes 10 ms, and as long again
goes into its end; in huge pages (2 MiB each) about a quarter of that. glibc asks for such pages itself when the server
starts (see `processes`). What Python's own allocator holds can only be moved afterwards, by MADV_COLLAPSE (madvise(2),
Linux 6.1), which takes up to half a second in all: too long for a launch to wait for. So the server moves a little at a
time, after a launch has ended, and only while no process lives that shares the pages with it.
"""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

__all__ = ["IDLE_SIGNAL", "install"]

# Tells the server that a launch has ended. By default it is ignored, so it harms no server that is loading still.
IDLE_SIGNAL = signal.SIGURG

_SIZE = 2**21
_MADV_COLLAPSE = 25
_SECONDS_AT_A_TIME = 0.01
_SECONDS_BETWEEN = 0.005


def install() -> None:
    """Has this process, the rank server, move its memory when it is told that it is idle; its forks do not."""
    addresses = _addresses()

    def move(_number: int, _frame: Any) -> None:
        if _has_children():
            return
        end = time.monotonic() + _SECONDS_AT_A_TIME
        for address in addresses:
            _collapse(address)
            if time.monotonic() > end:
                signal.setitimer(signal.ITIMER_REAL, _SECONDS_BETWEEN)
                return

    def reset() -> None:
        for number in (IDLE_SIGNAL, signal.SIGALRM):
            if signal.getsignal(number) is move:  # a rank's own children keep what the rank has set
                signal.signal(number, signal.SIG_DFL)

    for number in (IDLE_SIGNAL, signal.SIGALRM):
        signal.signal(number, move)
    os.register_at_fork(after_in_child=reset)


def _addresses() -> Iterator[int]:
    """Where whole huge pages fit into the memory that is no file's."""
    with open("/proc/self/maps") as file:
        mappings = [line.split() for line in file]
    for limits, permissions, *_, name in (mapping if len(mapping) == 6 else [*mapping, ""] for mapping in mappings):
        if permissions == "rw-p" and name in ("", "[heap]"):
            first, last = (int(limit, 16) for limit in limits.split("-"))
            yield from range(-(-first // _SIZE) * _SIZE, last - _SIZE + 1, _SIZE)


def _collapse(address: int) -> None:
    # An older kernel refuses, and so does one that has no huge page left: then it stays as it is.
    _madvise(address, _SIZE, _MADV_COLLAPSE)


def _has_children() -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    return False


_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
