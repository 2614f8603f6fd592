"""How nodes find each other: names, ports, waiting, and what is said when they do not."""

import logging
import os
import socket
import threading

import pytest

from flyte_torchrun.launch import LaunchPlan, LaunchTimeoutError, RendezvousError, launch, rendezvous
from tests.groups import leave_group


def plan(endpoint, **settings):
    return LaunchPlan(min_nodes=2, max_nodes=2, rdzv_endpoint=endpoint, **{"shutdown_grace": 2.0, **settings})


@pytest.fixture
def free_port():
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@pytest.mark.parametrize(
    ("host", "endpoint", "settings", "expected"),
    [
        ("job-worker-0", "job-worker-0:23456", {}, True),
        ("job-worker-0", "job-worker-0.ns.svc:23456", {}, True),
        ("job-worker-1", "job-worker-0:23456", {}, False),
        ("job-worker-12", "job-worker-1:23456", {}, False),
        ("job-worker-1", "other-worker-0:23456", {}, None),
        ("laptop", "10.0.0.1:23456", {}, None),
        ("laptop", "10.0.0.1:23456", {"node_rank": 0}, True),
        ("job-worker-0", "job-worker-0:23456", {"node_rank": 1}, False),
    ],
)
def test_the_pods_index_says_who_holds_the_rendezvous(host, endpoint, settings, expected, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    assert rendezvous.is_host(plan(endpoint, **settings)) is expected


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("h:1", ("h", 1)),
        ("h", ("h", 29400)),
        ("[::1]:5", ("::1", 5)),
        ("10.0.0.1:65535", ("10.0.0.1", 65535)),
        ("h:name", ("h:name", 29400)),
    ],
)
def test_an_endpoint_is_split(endpoint, expected):
    assert rendezvous.split_endpoint(endpoint) == expected


def test_a_name_that_is_not_there_yet_is_waited_for_and_said(monkeypatch, caplog, free_port):
    real, calls = socket.getaddrinfo, []

    def not_yet(host, *arguments, **settings):
        if host == "job-worker-0":
            calls.append(host)
            if len(calls) < 4:
                raise socket.gaierror(-2, "Name or service not known")
            host = "127.0.0.1"
        return real(host, *arguments, **settings)

    monkeypatch.setattr(socket, "getaddrinfo", not_yet)
    monkeypatch.setattr(rendezvous, "_SECONDS_BETWEEN_LINES", 0.05)
    with caplog.at_level(logging.WARNING):
        assert rendezvous.local_address(plan(f"job-worker-0:{free_port}", node_rank=0)) == "127.0.0.1"
    assert len(calls) == 4
    assert "waiting for the rendezvous at job-worker-0:" in caplog.text
    assert "job-worker-0 has no address" in caplog.text


def test_a_name_that_never_comes_is_an_error_that_names_endpoint_time_and_knob(monkeypatch):
    def broken(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", broken)
    with pytest.raises(RendezvousError) as caught:
        launch(plan("job-worker-0:23456", node_rank=1, join_timeout=0.3), print)
    text = str(caught.value)
    assert "the rendezvous at job-worker-0:23456 was not reached within join_timeout = 0.3 s" in text
    assert "job-worker-0 has no address" in text
    assert "set rdzv_endpoint to where node 0 is, or join_timeout higher" in text


def test_a_port_that_nobody_answers_is_an_error(free_port):
    with pytest.raises(RendezvousError, match=f"port {free_port} does not answer"):
        launch(plan(f"127.0.0.1:{free_port}", node_rank=1, join_timeout=0.3), print)


def test_nodes_that_do_not_come_are_an_error_that_names_the_knob(free_port, caplog, monkeypatch):
    monkeypatch.setattr(rendezvous, "_SECONDS_BETWEEN_LINES", 0.2)
    endpoint = f"127.0.0.1:{free_port}"
    with caplog.at_level(logging.WARNING), pytest.raises(RendezvousError) as caught:
        launch(plan(endpoint, node_rank=0, join_timeout=1, read_timeout=7), print)
    text = str(caught.value)
    assert text.startswith(f"2 nodes did not find each other at the rendezvous {endpoint}: RendezvousTimeoutError")
    assert "join_timeout = 1 s" in text
    assert "read_timeout = 7 s" in text
    assert f"waiting at the rendezvous {endpoint} for 2 nodes to join" in caplog.text


def test_a_limit_of_the_run_holds_while_nodes_are_waited_for(free_port):
    with pytest.raises(LaunchTimeoutError, match="timeout: the nodes did not find each other"):
        launch(plan(f"127.0.0.1:{free_port}", node_rank=0, timeout=1), print)


def test_the_time_limits_reach_torch(monkeypatch):
    seen = []
    monkeypatch.setattr(rendezvous._registry, "get_rendezvous_handler", seen.append)
    rendezvous.make_rendezvous(plan("h:1", node_rank=0), "10.0.0.9")
    rendezvous.make_rendezvous(plan("h:1", node_rank=1, rdzv_configs={"join_timeout": 5, "is_host": True}), "10.0.0.9")
    first, second = seen
    assert first.local_addr == "10.0.0.9"
    assert first.config == {"join_timeout": 900, "read_timeout": 900, "timeout": 900, "is_host": True}
    assert second.config == {"join_timeout": 5, "read_timeout": 900, "timeout": 900, "is_host": True}


def test_the_address_that_is_given_is_taken(free_port):
    assert rendezvous.local_address(plan(f"127.0.0.1:{free_port}", node_rank=0, local_addr="10.9.8.7")) == "10.9.8.7"


NCCL = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "TORCH_NCCL_ENABLE_MONITORING")


@pytest.mark.parametrize(
    ("settings", "given", "expected"),
    [
        ({}, {}, ["1", "300", None]),
        (
            {
                "nccl_heartbeat_timeout_sec": 60,
                "nccl_enable_monitoring": True,
                "nccl_async_error_handling": False,
            },
            {},
            ["0", "60", "1"],
        ),
        ({"nccl_heartbeat_timeout_sec": None, "nccl_enable_monitoring": False}, {}, ["1", None, "0"]),
        ({}, dict.fromkeys(NCCL, "3"), ["3", "3", "3"]),
    ],
)
def test_nccls_settings_are_given_to_the_ranks_and_a_users_own_win(settings, given, expected, monkeypatch):
    for name in NCCL:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    found = launch(LaunchPlan(**settings), lambda: [os.environ.get(name) for name in NCCL]).value
    assert found == expected


def test_the_time_of_a_collective_is_the_default_of_nccl():
    def default():
        from torch.distributed import distributed_c10d

        return distributed_c10d._get_default_timeout("nccl").total_seconds()

    assert launch(LaunchPlan(nccl_collective_timeout_sec=77), default).value == 77.0
    assert launch(LaunchPlan(), default).value != 77.0


def test_twenty_launches_at_once_all_pass():
    found = {}

    def one(number):
        def train():
            import torch

            torch.distributed.init_process_group("gloo")
            total = torch.full((1,), float(number))
            torch.distributed.all_reduce(total)
            leave_group()
            return total.item()

        found[number] = launch(LaunchPlan(nproc_per_node=2, timeout=300), train).value

    threads = [threading.Thread(target=one, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: 2.0 * number for number in range(20)}


LAUNCH = """
import sys
from flyte_torchrun.launch import LaunchPlan, launch
def train(number):
    import torch
    torch.distributed.init_process_group("gloo")
    total = torch.full((1,), float(number))
    torch.distributed.all_reduce(total)
    if torch.__version__ >= "2.9":  # before, torch may hang there
        torch.distributed.destroy_process_group()
    return total.item()
print(launch(LaunchPlan(nproc_per_node=2, nodes=int(sys.argv[2])), train, int(sys.argv[1])).value)
"""


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
def test_twenty_programs_at_once_all_pass(program, nodes):
    programs = [program(LAUNCH, number, nodes) for number in range(20)]
    ends = [process.communicate(timeout=500) for process in programs]
    assert [output for output, _ in ends] == [f"{2.0 * nodes * number}\n" for number in range(20)], ends
