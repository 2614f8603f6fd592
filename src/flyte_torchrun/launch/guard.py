"""Ends the ranks of a process that was killed: run as a program of its own, it waits for that process's end.

`python guard.py PID FOLDER...`: when the process PID is gone, every process group that a rank registered below one of
the folders is killed, grandchildren included, and the folders are removed. Nothing else is imported, so that it starts
in milliseconds.
"""

import contextlib
import os
import select
import shutil
import signal
import sys
import time

# A rank that is being started when its launcher dies registers itself within this time, or finds its folder gone and
# ends itself.
_SECONDS_FOR_LATE_RANKS = 1.0


def wait_for_end(pid: int) -> None:
    """Returns when the process is gone."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    select.select([handle], [], [])


def registered(folders: list[str]) -> set[int]:
    """The process groups of ranks and nodes below the folders (see files.RunFolder)."""
    found: set[int] = set()
    for folder in folders:
        for path, _, names in os.walk(folder):
            if os.path.basename(os.path.dirname(path)) == "pids":
                found.update(int(name) for name in names)
    return found


def end_ranks(folders: list[str]) -> None:
    """Kills the ranks below the folders, and those that are just being started."""
    deadline = time.monotonic() + _SECONDS_FOR_LATE_RANKS
    ended: set[int] = set()
    while time.monotonic() < deadline:
        for group in registered(folders) - ended:
            ended.add(group)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        time.sleep(0.05)


if __name__ == "__main__":
    wait_for_end(int(sys.argv[1]))
    remaining = [folder for folder in sys.argv[2:] if os.path.isdir(folder)]
    if remaining:
        end_ranks(remaining)
        for folder in remaining:
            shutil.rmtree(folder, ignore_errors=True)
