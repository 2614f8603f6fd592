"""Failures: the first real error, restarts, and nothing left over, whatever dies how."""

import multiprocessing.util
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from flyte_torchrun.launch import LaunchPlan, LaunchTimeoutError, RankError, launch
from tests.groups import is_alive, wait_until

START_METHODS = ["forkserver", "fork", "spawn"]


def plan(start_method="forkserver", ranks=2, **settings):
    return LaunchPlan(nproc_per_node=ranks, start_method=start_method, shutdown_grace=2.0, **settings)


class OutOfDataError(KeyError):
    """An exception of the program's own."""


@pytest.mark.parametrize("start_method", START_METHODS)
def test_the_users_exception_comes_with_rank_text_and_traceback(start_method):
    def read_the_next_batch():
        raise OutOfDataError("batch 7")

    def train():
        if os.environ["RANK"] == "1":
            read_the_next_batch()
        threading.Event().wait()

    with pytest.raises(RankError) as caught:
        launch(plan(start_method), train)
    error = caught.value
    assert (error.exception_type, error.message, error.rank, error.local_rank) == ("OutOfDataError", "'batch 7'", 1, 1)
    assert error.exception_bases[:2] == (f"{OutOfDataError.__module__}.OutOfDataError", "builtins.KeyError")
    assert str(error).startswith("OutOfDataError: 'batch 7'\nin rank 1 (local rank 1 on ")
    assert 'test_failures.py", line ' in error.traceback
    assert "in read_the_next_batch" in error.traceback
    assert "run_rank" not in error.traceback
    assert type(error.__cause__) is OutOfDataError
    assert error.__cause__.args == ("batch 7",)
    assert abs(error.timestamp - time.time()) < 60


class CodedError(OSError):
    """An exception with attributes of its own and of native code."""

    code = 0


def coded_error():
    error = CodedError(5, "no such device", "gpu0")
    error.code = 7
    return error


class StrictError(Exception):
    """An exception that cannot be made by anybody else's arguments."""

    def __new__(cls, first, second):
        return super().__new__(cls, first, second)


def raising(make):
    def train():
        raise make()

    with pytest.raises(RankError) as caught:
        launch(plan(), train)
    return caught.value


def test_what_is_raised_is_an_instance_of_the_users_class_too():
    error = raising(lambda: OutOfDataError("batch 7"))
    assert isinstance(error, OutOfDataError)
    assert isinstance(error, KeyError)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.message, again.rank) == (RankError, "'batch 7'", error.rank)

    with pytest.raises(ZeroDivisionError, match="division by zero\nin rank "):
        launch(plan(), lambda: 1 / 0)


def test_an_exceptions_own_attributes_stay():
    error = raising(coded_error)
    assert isinstance(error, CodedError)
    assert (error.code, error.errno, error.filename) == (7, 5, "gpu0")
    assert str(error).startswith("CodedError: [Errno 5] no such device: 'gpu0'\nin rank ")
    with pytest.raises(AttributeError, match="no_such"):
        error.no_such  # noqa: B018


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: StrictError(1, 2), "StrictError"),
        (lambda: KeyboardInterrupt("stop"), "KeyboardInterrupt"),
        (lambda: GeneratorExit("stop"), "GeneratorExit"),
    ],
)
def test_an_exception_that_cannot_be_combined_is_a_plain_rank_error(make, name):
    error = raising(make)
    assert type(error) is RankError
    assert error.exception_type == name
    assert type(error.__cause__).__name__ == name


@pytest.mark.parametrize("first", [0, 1])
def test_the_earlier_of_two_errors_is_reported_whatever_its_rank(first, tmp_path):
    def train():
        rank = int(os.environ["RANK"])
        if rank != first:
            while not (tmp_path / "failed").exists():
                time.sleep(0.005)
            raise RuntimeError("the consequence")
        try:
            raise ValueError("the cause")
        finally:
            # The other rank fails while this one is still on its way out.
            threading.Timer(0.02, (tmp_path / "failed").touch).start()

    for _ in range(3):
        with pytest.raises(RankError, match="ValueError: the cause") as caught:
            launch(plan(), train)
        assert caught.value.rank == first
        (tmp_path / "failed").unlink(missing_ok=True)


def test_what_the_peers_of_a_dead_rank_see_is_not_the_cause():
    def train():
        torch.distributed.init_process_group("gloo")
        torch.distributed.barrier()
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        torch.distributed.all_reduce(torch.ones(10))

    with pytest.raises(RankError) as caught:
        launch(plan(), train)
    assert (caught.value.exception_type, caught.value.rank, caught.value.exit_code) == ("SIGKILL", 1, -9)
    assert "out of memory" in caught.value.message


def test_a_killed_rank_tells_how_much_memory_it_had():
    def train():
        if os.environ["RANK"] == "1":
            kept = torch.ones(2**27)  # half a GiB
            threading.Event().wait(1.0)
            os.kill(os.getpid(), signal.SIGKILL)
            del kept
        threading.Event().wait()

    with pytest.raises(RankError, match=r"SIGKILL") as caught:
        launch(plan(), train)
    found = re.search(r"it had used up to (\S+) GiB when last looked at", caught.value.message)
    assert 0.5 < float(found.group(1)) < 1.5


@pytest.mark.parametrize("start_method", START_METHODS)
def test_the_stacks_of_ranks_that_hang_are_saved_before_they_are_ended(start_method):
    def stuck_in_native_code():
        threading.Lock().acquire()
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()

    def train():
        if os.environ["RANK"] == "1":
            threading.Thread(target=stuck_in_native_code, daemon=True).start()
            stuck_in_native_code()

    with pytest.raises(
        LaunchTimeoutError, match="hang_timeout: rank 0 ended, and 1 s later ranks 1 still ran"
    ) as caught:
        launch(plan(start_method, hang_timeout=1.0), train)
    assert list(caught.value.stacks) == [1]
    assert caught.value.stacks[1].count("in stuck_in_native_code") == 2
    assert "rank 1 was at:\n" in str(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.stacks) == (str(caught.value), caught.value.stacks)


def test_a_rank_that_ignores_sigterm_is_ended_within_the_grace():
    def train():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        torch.distributed.init_process_group("gloo")
        torch.distributed.barrier()
        if os.environ["RANK"] == "0":
            raise ValueError("no")
        while True:
            threading.Event().wait(1)

    began = time.monotonic()
    with pytest.raises(ValueError, match="no"):
        launch(plan(), train)
    assert time.monotonic() - began < 2.0 + 10.0


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        (lambda: sys.exit(3), "SystemExit"),
        (lambda: sys.exit("no data"), "SystemExit"),
        (lambda: os._exit(0), "SystemExit"),
        (lambda: os._exit(5), "SystemExit"),
        (os.abort, "SIGABRT"),
    ],
)
def test_a_rank_that_ends_itself_ends_the_group(end, kind):
    def train():
        if os.environ["RANK"] == "1":
            end()
        threading.Event().wait()

    with pytest.raises(RankError) as caught:
        launch(plan(), train)
    assert (caught.value.exception_type, caught.value.rank) == (kind, 1)


def test_a_whole_group_that_aborts_at_once_is_reported():
    with pytest.raises(RankError, match="SIGABRT"):
        launch(plan(ranks=4), os.abort)


def test_sys_exit_without_an_error_is_a_good_end():
    assert launch(plan(), lambda: sys.exit(0)).value is None


@pytest.mark.parametrize("start_method", START_METHODS)
def test_a_crash_after_the_function_returned_is_no_failure(start_method):
    def train():
        multiprocessing.util.Finalize(None, os.abort, exitpriority=1)
        return "done"

    assert launch(plan(start_method), train).value == "done"


def test_an_exception_that_cannot_be_pickled_keeps_its_type_text_and_traceback():
    class OddError(RuntimeError):
        def __init__(self):
            super().__init__("odd")
            self.lock = threading.Lock()

    def train():
        raise OddError

    with pytest.raises(RankError, match="OddError: odd") as caught:
        launch(plan(), train)
    assert caught.value.__cause__ is None
    assert "raise OddError" in caught.value.traceback


def test_a_long_message_comes_whole():
    def train():
        raise ValueError("x" * 10_000_000)

    with pytest.raises(RankError) as caught:
        launch(plan(), train)
    assert len(caught.value.message) == 10_000_000


@pytest.mark.parametrize("start_method", START_METHODS)
def test_a_group_is_started_again_as_often_as_allowed(start_method, tmp_path):
    def train(failures):
        attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        (tmp_path / f"{attempt}-{os.environ['RANK']}").touch()
        torch.distributed.init_process_group("gloo")
        torch.distributed.barrier()
        if attempt < failures and os.environ["RANK"] == "1":
            raise ValueError(f"attempt {attempt}")
        total = torch.ones(1)
        torch.distributed.all_reduce(total)
        return attempt, total.item()

    assert launch(plan(start_method, max_restarts=2), train, 2).value == (2, 2.0)
    assert {path.name for path in tmp_path.iterdir()} == {f"{a}-{r}" for a in range(3) for r in range(2)}
    with pytest.raises(RankError, match="ValueError: attempt 1"):
        launch(plan(start_method, max_restarts=1), train, 2)


def family(folder):
    """A rank that starts a child, and registers both."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(folder, f"{os.environ['RANK']}-{os.getpid()}-{child.pid}").touch()


def pids(folder, ranks=2):
    files = [path.name.split("-") for path in Path(folder).glob("[0-9]*-*-*")]
    return [int(pid) for _, *pair in files for pid in pair] if len(files) == ranks else []


@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize("way", ["returns", "raises", "is killed"])
def test_nothing_that_a_rank_started_outlives_the_group(way, start_method, tmp_path):
    def train():
        family(tmp_path)
        if way == "raises":
            raise ValueError("no")
        if way == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)

    if way == "returns":
        launch(plan(start_method), train)
    else:
        with pytest.raises(RankError):
            launch(plan(start_method), train)
    started = [int(pid) for path in tmp_path.iterdir() for pid in path.name.split("-")[1:]]
    assert started
    wait_until(lambda: not any(map(is_alive, started)))


PROGRAM = """
import os, pathlib, subprocess, sys, threading, time
from flyte_torchrun.launch import LaunchPlan, launch
folder, method, where = sys.argv[1:]
def train():
    import signal
    if where == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    pathlib.Path(folder, f"{os.environ['RANK']}-{os.getpid()}-{child.pid}").touch()
    threading.Event().wait()
def main():
    launch(LaunchPlan(nproc_per_node=2, start_method=method, shutdown_grace=1.0), train)
if where == "thread":
    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
else:
    main()
"""


@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize(
    ("number", "where", "code"),
    [
        (signal.SIGTERM, "main", -signal.SIGTERM),
        (signal.SIGTERM, "stubborn", -signal.SIGTERM),
        (signal.SIGINT, "main", 1),
        (signal.SIGKILL, "main", -signal.SIGKILL),
        (signal.SIGTERM, "thread", -signal.SIGTERM),
    ],
)
def test_no_process_and_no_file_outlives_a_launcher_that_is_ended(number, where, code, start_method, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    pid_folder = tmp_path / "pids"
    pid_folder.mkdir()
    launcher = subprocess.Popen(
        [sys.executable, "-W", "ignore", tmp_path / "program.py", pid_folder, start_method, where],
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509  (also where the tests ignore it)
    )
    try:
        wait_until(lambda: pids(pid_folder) or launcher.poll() is not None, 60)
        started = pids(pid_folder)
        assert started
        own = {
            str(folder)
            for parent in ("/dev/shm", "/tmp")
            for folder in Path(parent).glob("flyte-torchrun-*")
            if any(list(folder.glob(f"run-*/pids/ranks-of-0/{pid}")) for pid in started)
        }
        assert own
        launcher.send_signal(number)
        _, errors = launcher.communicate(timeout=60)
        if number == signal.SIGINT:
            assert b"KeyboardInterrupt" in errors
            assert launcher.returncode in (code, -signal.SIGINT)
        else:
            assert launcher.returncode == code, errors.decode()
        wait_until(lambda: not any(map(is_alive, started)))
        wait_until(lambda: not any(map(os.path.exists, own)))
    finally:
        if launcher.poll() is None:
            launcher.kill()
            launcher.wait()


IGNORES = """
import os, signal
from flyte_torchrun.launch import LaunchPlan, launch
signal.signal(signal.SIGINT, signal.SIG_IGN)
def train():
    os.kill(int(os.environ["LAUNCHER"]), signal.SIGINT)
    return "done"
os.environ["LAUNCHER"] = str(os.getpid())
print(launch(LaunchPlan(), train).value, signal.getsignal(signal.SIGINT) is signal.SIG_IGN)
"""


def test_a_signal_that_the_program_ignores_ends_nothing(program):
    output, errors = program(IGNORES).communicate(timeout=60)
    assert output == "done True\n", errors
