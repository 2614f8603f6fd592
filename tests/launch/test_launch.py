"""Launching: what the ranks get, what comes back, what is left behind."""

import asyncio
import dataclasses
import functools
import gc
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from flyte_torchrun.launch import (
    LaunchPlan,
    LaunchTimeoutError,
    RankError,
    SerializationError,
    files,
    launch,
    preload,
)
from tests.groups import leave_group, wait_until

START_METHODS = ["forkserver", "fork", "spawn"]
NAMES = [
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    "TORCHELASTIC_RESTART_COUNT",
]


def plan(start_method="forkserver", ranks=2, **settings):
    return LaunchPlan(nproc_per_node=ranks, start_method=start_method, shutdown_grace=2.0, **settings)


def everybody():
    """What each rank knows of itself, gathered in rank 0."""
    torch.distributed.init_process_group("gloo")
    mine = {name: int(os.environ[name]) for name in NAMES}
    found = [None] * mine["WORLD_SIZE"]
    torch.distributed.all_gather_object(found, mine)
    leave_group()
    return found


@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_group_has_torchruns_environment(start_method, ranks):
    result = launch(plan(start_method, ranks), everybody)
    assert result.is_rank_zero_here
    assert result.value == [
        {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": ranks,
            "LOCAL_WORLD_SIZE": ranks,
            "GROUP_RANK": 0,
            "GROUP_WORLD_SIZE": 1,
            "TORCHELASTIC_RESTART_COUNT": 0,
        }
        for rank in range(ranks)
    ]


@dataclasses.dataclass
class Batch:
    features: torch.Tensor
    labels: np.ndarray
    nested: dict


def spoil(batch, module, *, extra):
    """Changes every input in place, differently in each rank, and says what this rank sees in the end."""
    torch.distributed.init_process_group("gloo")
    step = int(os.environ["RANK"]) + 1
    with torch.no_grad():
        for tensor in (batch.features, batch.nested["deep"][0], *module.parameters(), extra):
            tensor.add_(step)
    batch.labels += step
    torch.distributed.barrier()
    seen = [
        batch.features.unique().tolist(),
        batch.nested["deep"][0].unique().tolist(),
        np.unique(batch.labels).tolist(),
        module.weight.unique().tolist(),
        extra.unique().tolist(),
    ]
    found = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, seen)
    leave_group()
    return found


@pytest.mark.parametrize("start_method", START_METHODS)
def test_a_rank_that_changes_its_inputs_changes_nobody_elses(start_method):
    module = torch.nn.Linear(4, 4)
    torch.nn.init.zeros_(module.weight)
    shared = torch.zeros(1000).share_memory_()
    batch = Batch(torch.zeros(1000), np.zeros(1000), {"deep": [torch.zeros(1000)]})
    found = launch(plan(start_method, ranks=3), spoil, batch, module, extra=shared).value
    assert found == [[[rank + 1.0]] * 5 for rank in range(3)]
    for tensor in (batch.features, batch.nested["deep"][0], module.weight, shared):
        assert tensor.unique().tolist() == [0.0]
    assert np.unique(batch.labels).tolist() == [0.0]


def test_only_rank_zeros_value_leaves_its_process():
    assert launch(plan(), lambda: 5 if os.environ["RANK"] == "0" else threading.Lock()).value == 5


def test_a_large_result_comes_back_whole():
    value = launch(plan(), lambda: {"w": torch.arange(10_000_000), "name": "a"}).value
    assert torch.equal(value["w"], torch.arange(10_000_000))
    value["w"] += 1  # it is the caller's own
    assert value["name"] == "a"


def local_class():
    class Local:
        def __init__(self, number):
            self.number = number

    return Local


def test_local_functions_classes_and_decorated_ones_are_run():
    cls, offset = local_class(), 2

    def decorate(function):
        @functools.wraps(function)
        def wrapper(*arguments):
            return function(*arguments) + offset

        return wrapper

    @decorate
    def add(value):
        return value.number + 1

    assert launch(plan(), add, cls(3)).value == 6
    returned = launch(plan(), lambda: cls(7)).value
    assert type(returned) is cls
    assert returned.number == 7


def test_a_coroutine_function_is_run_to_its_end():
    async def later(value):
        await asyncio.sleep(0)
        return value

    assert launch(plan(), later, 4).value == 4


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (lambda: (threading.Lock(),), "argument 0 cannot be sent to the ranks: cannot pickle '_thread.lock' object"),
        (lambda: (1, {"a": [0, threading.Lock()]}), "argument 1['a'][1] cannot be sent"),
        (lambda: (local_class()(threading.Lock()),), "argument 0.number cannot be sent"),
    ],
)
def test_an_argument_that_cannot_be_pickled_is_named(arguments, named):
    with pytest.raises(SerializationError) as caught:
        launch(plan(), print, *arguments())
    assert str(caught.value).startswith(named)
    with pytest.raises(SerializationError, match="argument 'loader'"):
        launch(plan(), print, loader=threading.Lock())


def test_a_result_that_cannot_be_pickled_is_named():
    with pytest.raises(
        RankError, match=r"result\['loader'\] cannot be sent back from rank 0: cannot pickle '_thread.lock'"
    ):
        launch(plan(), lambda: {"loader": threading.Lock()})


def test_the_callers_process_stays_as_it_was(monkeypatch):
    import signal

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = (dict(os.environ), signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), os.getcwd())
    launch(plan(), everybody)
    with pytest.raises(RankError):
        launch(plan(), lambda: 1 / 0)
    assert (dict(os.environ), signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), os.getcwd()) == before


def folders():
    """The folders of runs that this process has made, wherever they are."""
    return {run for folder in files._FOLDERS._folders for run in Path(folder).glob("run-*")}


def test_files_are_gone_after_success_and_failure():
    launch(plan(), lambda: torch.ones(1000))
    assert any(Path(folder).is_dir() for folder in files._FOLDERS._folders)
    with pytest.raises(RankError):
        launch(plan(), lambda: 1 / 0)
    gc.collect()
    assert folders() == set()


def test_the_files_are_for_this_user_only():
    def modes():
        mine = [path for path in Path("/dev/shm").glob("flyte-torchrun-*") if path.stat().st_uid == os.getuid()]
        return {path.stat().st_mode & 0o777 for path in mine}

    assert launch(plan(), modes).value == {0o700}


@pytest.mark.parametrize("start_method", START_METHODS)
def test_ranks_get_the_surroundings_of_the_launch(start_method, monkeypatch, tmp_path):
    launch(plan(start_method), everybody)  # so that a server of an earlier moment is there
    (tmp_path / "only_here.py").write_text("NUMBER = 42\n")
    monkeypatch.setenv("SET_BEFORE_THE_LAUNCH", "yes")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    umask = os.umask(0o027)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:

        def look():
            import only_here

            umask = os.umask(0)
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
            return only_here.NUMBER, os.environ["SET_BEFORE_THE_LAUNCH"], os.getcwd(), umask, blocked

        assert launch(plan(start_method), look).value == (42, "yes", str(tmp_path), 0o027, {*mask, signal.SIGUSR1})
    finally:
        os.umask(umask)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@pytest.mark.parametrize("start_method", START_METHODS)
def test_the_output_of_ranks_goes_where_the_launchers_goes_now(start_method, capfd):
    launch(plan(start_method), everybody)
    capfd.readouterr()

    def speak():
        print(f"rank {os.environ['RANK']} speaks", flush=True)
        print("and complains", file=sys.stderr, flush=True)

    launch(plan(start_method), speak)
    output, errors = capfd.readouterr()
    assert sorted(output.split("\n")) == ["", "[rank 0] rank 0 speaks", "[rank 1] rank 1 speaks"]
    assert errors.count("and complains") == 2


@pytest.mark.parametrize(("given", "threads"), [(None, None), ("3", 3)])
@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_threads_are_shared_out_and_a_users_value_wins(start_method, given, threads, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    expected = threads or max(1, len(os.sched_getaffinity(0)) // 2)
    found = launch(plan(start_method), lambda: (os.environ["OMP_NUM_THREADS"], torch.get_num_threads())).value
    assert found == (str(expected), expected)
    assert launch(plan(start_method, omp_num_threads=2), torch.get_num_threads).value == (threads or 2)


def test_a_fork_after_parallel_work_does_not_hang():
    torch.rand(4_000_000).sum()  # starts OpenMP's threads in this process, which no fork inherits
    total = launch(plan("fork", ranks=4, timeout=60), lambda: torch.ones(4_000_000).sum().item()).value
    assert total == 4_000_000


def test_fork_is_refused_once_cuda_is_initialised(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(RuntimeError, match="start_method: 'fork' is not possible any more"):
        launch(plan("fork"), everybody)


def test_preloaded_modules_are_loaded_and_a_missing_one_is_named():
    assert launch(plan(preload=("colorsys",)), lambda: "colorsys" in sys.modules).value
    with pytest.raises(RankError, match="preload: no_such_module cannot be imported"):
        launch(plan(preload=("no_such_module",)), everybody)


def test_a_preloaded_module_that_initialises_cuda_is_named(program, tmp_path):
    # The machine has no GPU: the module makes torch say that it is in use.
    (tmp_path / "touches_the_gpu.py").write_text("import torch\ntorch.cuda.is_initialized = lambda: True\n")
    text = """
from flyte_torchrun.launch import LaunchPlan, launch
launch(LaunchPlan(nproc_per_node=2, preload=("touches_the_gpu",)), print)
"""
    _, errors = program(text).communicate(timeout=60)
    assert "preload: importing touches_the_gpu initialised CUDA, after which no process can be forked" in errors


def test_the_rank_server_ends_with_its_parent_however_that_ends(program):
    text = """
import os, sys, time
from flyte_torchrun.launch import LaunchPlan, launch
print(launch(LaunchPlan(), os.getppid).value, flush=True)
sys.stdin.read()
"""
    for way in ("killed", "ends"):
        process = program(text, stdin=subprocess.PIPE)
        server = int(process.stdout.readline())
        assert Path(f"/proc/{server}").exists()
        if way == "killed":
            process.kill()
        process.communicate(timeout=60)
        wait_until(lambda server=server: not Path(f"/proc/{server}").exists())


def test_an_event_loop_goes_on_beside_a_launch_in_a_thread():
    async def main():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        result = await asyncio.to_thread(launch, plan(), lambda: threading.Event().wait(0.3))
        ticking.cancel()
        return result.value, ticks > 5

    assert asyncio.run(main()) == (False, True)


def test_the_environment_and_the_handlers_are_afterwards_as_they_were():
    def handler(*_):
        raise AssertionError

    before = dict(os.environ)
    own = signal.signal(signal.SIGTERM, handler)
    try:
        launch(plan(), lambda: None)
        launch(LaunchPlan(nodes=2), lambda: None)
        assert dict(os.environ) == before
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, own)


def test_a_launch_works_off_the_main_thread_and_in_an_event_loop():
    found = []
    thread = threading.Thread(target=lambda: found.append(launch(plan(), everybody).value))
    thread.start()
    thread.join()
    assert len(found[0]) == 2

    async def main():
        return launch(plan(), everybody).value

    assert asyncio.run(main()) == found[0]


def test_launches_beside_each_other_do_not_meet():
    found = {}

    def one(number):
        found[number] = launch(plan(), lambda: (number, everybody())).value

    threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: value[0] for number, value in found.items()} == {number: number for number in range(4)}


def test_one_node_needs_no_name_service(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        """
import socket
def broken(*_, **__):
    raise OSError("there is no name service")
socket.getaddrinfo = socket.gethostbyname = socket.gethostbyaddr = socket.getfqdn = broken
from flyte_torchrun.launch import LaunchPlan, launch
def train():
    import os, torch
    torch.distributed.init_process_group("gloo")
    total = torch.ones(1)
    torch.distributed.all_reduce(total)
    return total.item(), os.environ["MASTER_ADDR"]
print(launch(LaunchPlan(nproc_per_node=2), train).value)
"""
    )
    done = subprocess.run([sys.executable, "-W", "ignore", script], capture_output=True, text=True, check=False)
    assert done.stdout == "(2.0, '127.0.0.1')\n", done.stderr


SCRIPT = """
import dataclasses
from flyte_torchrun.launch import LaunchPlan, launch
print("the program starts", flush=True)
@dataclasses.dataclass
class Config:
    name: str
def train(config):
    return dataclasses.replace(config, name="modified")
result = launch(LaunchPlan(nproc_per_node=2, start_method={method!r}), train, Config("default")).value
print(result, type(result) is Config)
"""


@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize("way", ["script", "module", "command", "standard input"])
def test_a_program_without_a_main_guard_runs_once(way, start_method, tmp_path):
    text = SCRIPT.format(method=start_method)
    (tmp_path / "program.py").write_text(text)
    commands = {"script": ["program.py"], "module": ["-m", "program"], "command": ["-c", text], "standard input": ["-"]}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *commands[way]],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        input=text if way == "standard input" else None,
    )
    assert done.stdout == "the program starts\nConfig(name='modified') True\n", done.stderr


def test_a_second_launch_finds_the_server_warm_and_a_killed_server_is_replaced():
    def server():
        return os.getppid(), preload.LOADED

    first, loaded = launch(plan(), server).value
    assert launch(plan(), server).value == (first, loaded)
    for _ in range(3):
        os.kill(first, 9)
        second, loaded_again = launch(plan(), server).value
        assert second != first
        assert loaded_again > loaded  # the new one has torch as well
        first, loaded = second, loaded_again


def test_loaders_of_a_rank_work():
    def load():
        data = torch.utils.data.DataLoader(list(range(8)), batch_size=2, num_workers=2)
        return [batch.tolist() for batch in data]

    assert launch(plan(), load).value == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_random_state_is_each_ranks_own_to_seed():
    def draw():
        torch.manual_seed(0)
        return torch.rand(1).item(), random.random() >= 0

    assert launch(plan(), draw).value == (torch.manual_seed(0) and torch.rand(1).item(), True)


def test_time_limits_end_the_run():
    with pytest.raises(LaunchTimeoutError, match=r"timeout: the run took longer than 0\.5 s"):
        launch(plan(timeout=0.5), lambda: threading.Event().wait())

    def one_stays():
        if os.environ["RANK"] == "1":
            threading.Event().wait()

    with pytest.raises(LaunchTimeoutError, match=r"hang_timeout: rank 0 ended, and 0\.5 s later ranks 1 still ran"):
        launch(plan(hang_timeout=0.5), one_stays)
