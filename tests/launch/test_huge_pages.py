"""The rank server's memory in huge pages."""

import os
import re
import signal
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch

from flyte_torchrun.launch import LaunchPlan, launch
from flyte_torchrun.launch.processes import prepare, say_idle
from tests.groups import is_alive, wait_until


def huge_kib(pid):
    """How much of the process's own memory is in huge pages, KiB."""
    return int(re.search(r"AnonHugePages:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text())[1])


def kernel():
    return tuple(int(number) for number in re.findall(r"\d+", os.uname().release)[:2])


collapses = pytest.mark.skipif(kernel() < (6, 1), reason="MADV_COLLAPSE came with Linux 6.1")

MOVES = """
import os, signal, sys, time
from flyte_torchrun.launch import huge_pages
from tests.launch.test_huge_pages import huge_kib

huge_pages.install()
objects = [str(number) for number in range(1_000_000)]
read, write = os.pipe()
child = os.fork()
if child == 0:
    signals = [signal.getsignal(number) for number in (signal.SIGURG, signal.SIGALRM)]
    assert signals == [signal.SIG_DFL, signal.SIG_DFL], signals
    signal.signal(signal.SIGALRM, own := lambda *_: None)
    if os.fork() == 0:
        assert signal.getsignal(signal.SIGALRM) is own
        os._exit(0)
    os.read(read, 1)
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
before = huge_kib("self")
signal.raise_signal(huge_pages.IDLE_SIGNAL)
print("while a child lives", huge_kib("self") - before)
os.write(write, b"x")
print("the child's exit code", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
signal.raise_signal(huge_pages.IDLE_SIGNAL)
deadline = time.monotonic() + 60
while huge_kib("self") - before < 30_000 and time.monotonic() < deadline:
    time.sleep(0.01)
print("afterwards more than 30 MB", huge_kib("self") - before > 30_000)
print(objects == [str(number) for number in range(1_000_000)])
"""


@collapses
def test_memory_is_moved_only_while_no_child_lives_and_keeps_what_it_holds(program):
    process = program(
        MOVES,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])])},
    )
    out, err = process.communicate()
    assert out == "while a child lives 0\nthe child's exit code 0\nafterwards more than 30 MB True\nTrue\n", err


@collapses
def test_the_idle_server_moves_its_memory_and_serves_on():
    def server():
        return os.getppid(), os.environ.get("GLIBC_TUNABLES"), torch.ones(3).sum().item()

    pid, tunables, _ = launch(LaunchPlan(nproc_per_node=1), server).value
    assert tunables == os.environ.get("GLIBC_TUNABLES")  # the server's alone
    wait_until(lambda: huge_kib(pid) > 150_000)
    assert [launch(LaunchPlan(nproc_per_node=2), server).value for _ in range(3)] == [(pid, tunables, 3.0)] * 3


def test_a_server_that_is_loading_is_not_harmed():
    os.kill(launch(LaunchPlan(nproc_per_node=1), os.getppid).value, signal.SIGKILL)
    wait_until(lambda: not is_alive(forkserver._forkserver._forkserver_pid))
    prepare("forkserver", ())
    say_idle()
    assert launch(LaunchPlan(nproc_per_node=1), os.getppid).value == forkserver._forkserver._forkserver_pid
