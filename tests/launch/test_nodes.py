"""Several nodes, each a process of its own on this machine."""

import json
import socket
import subprocess
import sys

import pytest

NODE = """
import json, os, sys, torch
from flyte_torchrun.launch import LaunchPlan, RankError, launch
endpoint, way = sys.argv[2], sys.argv[5]
node, restarts, failures = (int(sys.argv[index]) for index in (1, 3, 4))
def train():
    torch.distributed.init_process_group("gloo")
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    torch.distributed.barrier()
    if attempt < failures and os.environ["RANK"] == "3":
        if way == "raises":
            raise ValueError(f"attempt {attempt}")
        os.kill(os.getpid(), 9)
    total = torch.ones(1)
    torch.distributed.all_reduce(total)
    if torch.__version__ >= "2.9":  # before, torch may hang there
        torch.distributed.destroy_process_group()
    return {"total": total.item(), "attempt": attempt}
plan = LaunchPlan(
    nproc_per_node=2, min_nodes=2, max_nodes=2, rdzv_endpoint=endpoint, node_rank=node, run_id="run",
    max_restarts=restarts,
    shutdown_grace=2.0, join_timeout=60, read_timeout=60, rdzv_configs={"last_call_timeout": 1},
)
try:
    result = launch(plan, train)
    print(json.dumps({"zero": result.is_rank_zero_here, "value": result.value}))
except RankError as error:
    print(json.dumps({"error": f"{error.exception_type}: {error.message}", "rank": error.rank, "at": error.timestamp}))
"""


@pytest.fixture
def nodes():
    """Runs two nodes and returns what each printed last."""
    started = []

    def run(*arguments):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
        for node in range(2):
            command = [sys.executable, "-W", "ignore", "-c", NODE, str(node), endpoint, *map(str, arguments)]
            started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return [json.loads(node.communicate(timeout=120)[0].splitlines()[-1]) for node in started]

    yield run
    for node in started:
        if node.poll() is None:
            node.kill()
            node.wait()


def test_one_of_two_nodes_holds_rank_zero_and_its_result(nodes):
    assert sorted(nodes(0, 0, "raises"), key=lambda node: node["zero"]) == [
        {"zero": False, "value": None},
        {"zero": True, "value": {"total": 4.0, "attempt": 0}},
    ]


@pytest.mark.parametrize("way", ["raises", "is killed"])
def test_a_failure_on_one_node_starts_the_group_again_on_both(nodes, way):
    assert sorted(nodes(2, 1, way), key=lambda node: node["zero"]) == [
        {"zero": False, "value": None},
        {"zero": True, "value": {"total": 4.0, "attempt": 1}},
    ]


def test_every_node_reports_the_one_first_error(nodes):
    first, second = nodes(0, 1, "raises")
    assert first == second
    assert (first["error"], first["rank"]) == ("ValueError: attempt 0", 3)
