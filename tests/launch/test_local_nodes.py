"""Several nodes on this machine: the ranks, the environment and the failures of a group of pods."""

import os
import signal
import threading
import time

import pytest
import torch

from flyte_torchrun.launch import LaunchPlan, LaunchTimeoutError, NodeLostError, PlanError, RankError, launch
from tests.groups import is_alive, leave_group, wait_until


def plan(nodes=2, ranks=2, **settings):
    return LaunchPlan(nodes=nodes, nproc_per_node=ranks, **{"shutdown_grace": 2.0, "timeout": 120.0, **settings})


def gathered(value):
    """What every rank says, in rank 0."""
    torch.distributed.init_process_group("gloo")
    found = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, value)
    leave_group()
    return found


@pytest.mark.parametrize("start_method", ["forkserver", "fork", "spawn"])
@pytest.mark.parametrize(("nodes", "ranks"), [(2, 2), (3, 1)])
def test_a_group_has_the_ranks_of_as_many_pods(nodes, ranks, start_method):
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")

    def everybody():
        return gathered([int(os.environ[name]) for name in names])

    result = launch(plan(nodes, ranks, start_method=start_method), everybody)
    assert result.value == [
        [rank, rank % ranks, rank // ranks, nodes * ranks, ranks, nodes] for rank in range(nodes * ranks)
    ]
    assert result.is_rank_zero_here


def test_each_node_has_a_process_and_the_environment_that_the_operator_writes():
    def look():
        return gathered(
            (
                {name: value for name, value in os.environ.items() if name.startswith("PET_")},
                int(os.environ["FLYTE_TORCHRUN_NODE_PID"]),
                os.environ["GROUP_RANK"],
            )
        )

    found = launch(plan(max_restarts=3), look).value
    endpoint = found[0][0]["PET_RDZV_ENDPOINT"]
    assert endpoint.startswith("127.0.0.1:")
    assert all(
        variables
        == {
            "PET_RDZV_ENDPOINT": endpoint,
            "PET_RDZV_BACKEND": "c10d",
            "PET_NNODES": "2:2",
            "PET_NPROC_PER_NODE": "2",
            "PET_MAX_RESTARTS": "3",
        }
        for variables, _, _ in found
    )
    nodes = {(pid, group) for _, pid, group in found}
    assert len(nodes) == len({pid for pid, _ in nodes}) == 2
    assert os.getpid() not in {pid for pid, _ in nodes}
    assert "PET_RDZV_ENDPOINT" not in os.environ


def test_inputs_are_private_and_the_result_is_rank_zeros():
    def add(tensor):
        tensor += int(os.environ["RANK"]) + 1
        return gathered(tensor.unique().tolist())

    tensor = torch.zeros(1000)
    assert launch(plan(), add, tensor).value == [[1.0], [2.0], [3.0], [4.0]]
    assert tensor.unique().tolist() == [0.0]


def fails_once(way, attempts=1):
    """Fails in one of the given ways, then says the attempt of every rank."""
    attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), os.environ["RANK"]
    torch.distributed.init_process_group("gloo")
    torch.distributed.barrier()
    if attempt < attempts:
        victim = "0" if way == "the first node is killed" else "3"
        if rank == victim and way == "a rank raises":
            raise ValueError(f"attempt {attempt}")
        if rank == victim:
            pid = os.getpid() if way == "a rank is killed" else int(os.environ["FLYTE_TORCHRUN_NODE_PID"])
            os.kill(pid, signal.SIGKILL)
    torch.distributed.barrier()
    found = [None] * 4
    torch.distributed.all_gather_object(found, attempt)
    leave_group()
    return found


WAYS = ["a rank raises", "a rank is killed", "a node is killed", "the first node is killed"]


@pytest.mark.parametrize("way", WAYS)
def test_the_group_starts_again_with_one_attempt_for_all(way):
    assert launch(plan(max_restarts=1), fails_once, way).value == [1, 1, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_twenty_of_twenty_groups_start_again(way):
    assert [launch(plan(max_restarts=1), fails_once, way).value for _ in range(20)] == [[1, 1, 1, 1]] * 20


def test_restarts_are_counted_over_all_nodes():
    with pytest.raises(RankError, match="ValueError: attempt 2") as caught:
        launch(plan(max_restarts=2), fails_once, "a rank raises", 5)
    assert (caught.value.rank, caught.value.attempt) == (3, 2)


@pytest.mark.parametrize("way", ["a node is killed", "the first node is killed"])
def test_a_lost_node_without_restarts_is_said_so(way):
    number = 1 if way == "a node is killed" else 0
    started = time.monotonic()
    with pytest.raises(NodeLostError, match=f"node {number} was lost: its process ended by SIGKILL") as caught:
        launch(plan(), fails_once, way)
    assert [event.detail for event in caught.value.timeline if event.name == "lost node"] == [str(caught.value)]
    assert time.monotonic() - started < 60


class OutOfDataError(KeyError):
    """An exception of the program's own."""


def test_the_first_error_of_any_node_is_the_users_own():
    def train():
        torch.distributed.init_process_group("gloo")
        torch.distributed.barrier()
        if os.environ["RANK"] == "2":
            raise OutOfDataError("batch 7")
        torch.distributed.barrier()

    with pytest.raises(OutOfDataError) as caught:
        launch(plan(), train)
    assert isinstance(caught.value, RankError)
    assert (caught.value.rank, caught.value.local_rank) == (2, 0)
    assert caught.value.__cause__.args == ("batch 7",)


def test_limits_hold_over_all_nodes():
    def one_stays():
        if os.environ["RANK"] == "3":
            threading.Event().wait()

    with pytest.raises(LaunchTimeoutError, match="hang_timeout") as caught:
        launch(plan(hang_timeout=1.0), one_stays)
    assert list(caught.value.stacks) == [3]
    assert "one_stays" in caught.value.stacks[3]

    def one_node_stays():
        if os.environ["GROUP_RANK"] == "1":
            threading.Event().wait()

    with pytest.raises(
        LaunchTimeoutError, match="hang_timeout: a rank of another node ended, and 1 s later ranks 2, 3"
    ):
        launch(plan(hang_timeout=1.0), one_node_stays)
    with pytest.raises(LaunchTimeoutError, match="timeout: the run took longer than 2 s"):
        launch(plan(timeout=2.0), lambda: threading.Event().wait())


def test_a_node_that_is_done_waits_for_one_that_is_started_again(tmp_path):
    def uneven():
        attempt, node = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), os.environ["GROUP_RANK"]
        (tmp_path / f"{attempt}-{node}").touch()
        if attempt == 0 and node == "1":
            while not any(tmp_path.glob("0-0")):
                time.sleep(0.01)
            threading.Event().wait(1.0)
            raise ValueError("late")
        return attempt

    assert launch(plan(ranks=1, max_restarts=1), uneven).value == 1
    assert {path.name for path in tmp_path.iterdir()} == {"0-0", "0-1", "1-0", "1-1"}


PROGRAM = """
import os, pathlib, subprocess, sys, threading
from flyte_torchrun.launch import LaunchPlan, launch
def train(folder):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    pids = (os.getpid(), child.pid, os.environ["FLYTE_TORCHRUN_NODE_PID"])
    pathlib.Path(folder, "-".join(map(str, pids))).touch()
    threading.Event().wait()
launch(LaunchPlan(nodes=2, nproc_per_node=2, shutdown_grace=1.0), train, sys.argv[1])
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_the_launcher_of_several_nodes(number, program, tmp_path):
    folder = tmp_path / "pids"
    folder.mkdir()
    launcher = program(PROGRAM, folder)
    wait_until(lambda: len(list(folder.iterdir())) == 4 or launcher.poll() is not None)
    pids = {int(pid) for path in folder.iterdir() for pid in path.name.split("-")}
    assert len(pids) == 4 + 4 + 2
    launcher.send_signal(number)
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == -number or (number == signal.SIGINT and "KeyboardInterrupt" in errors)
    wait_until(lambda: not any(map(is_alive, pids)))


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"nodes": 0}, "nodes"),
        ({"nodes": 2, "min_nodes": 3, "max_nodes": 4}, "nodes"),
        ({"nodes": 2, "rdzv_endpoint": "localhost:1"}, "rdzv_endpoint"),
        ({"nodes": 2, "rdzv_backend": "static"}, "rdzv_backend"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(settings, field):
    with pytest.raises(PlanError) as caught:
        LaunchPlan(**settings)
    assert [path for path, _, _ in caught.value.violations] == [field]


def test_a_range_of_nodes_runs_with_those_that_are_here():
    result = launch(LaunchPlan(nodes=2, min_nodes=1, max_nodes=4, rdzv_configs={"last_call_timeout": 2}), gathered, 1)
    assert result.value == [1, 1]


def test_a_node_that_is_asked_to_end_is_a_lost_one():
    def evicted(restarts):
        if os.environ["RANK"] == "1" and int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < restarts:
            os.kill(int(os.environ["FLYTE_TORCHRUN_NODE_PID"]), signal.SIGTERM)
            threading.Event().wait()
        torch.distributed.init_process_group("gloo")
        torch.distributed.barrier()
        return os.environ["TORCHELASTIC_RESTART_COUNT"]

    with pytest.raises(NodeLostError, match="node 1 was lost: the launch was ended by SIGTERM"):
        launch(plan(ranks=1), evicted, 1)
    assert launch(plan(ranks=1, max_restarts=1), evicted, 1).value == "1"
