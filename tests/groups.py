"""Groups of processes in tests."""

import time
from pathlib import Path

import torch


def leave_group():
    """Destroys the process group, where that is safe.

    torch before 2.9 hangs there with gloo every other time, also in programs under torchrun; the process's end does.
    """
    if torch.__version__ >= "2.9":
        torch.distributed.destroy_process_group()


def is_alive(pid):
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition, seconds=60.0):
    """Waits for a condition, with a deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.02)
