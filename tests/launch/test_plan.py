"""The plan: checked whole, before anything starts."""

import os
import pickle

import pytest
import torch

from flyte_torchrun import launch
from flyte_torchrun.launch import LaunchPlan, PlanError, RankError, cgroup, resolve_nproc
from flyte_torchrun.launch.errors import describe_exit
from flyte_torchrun.launch.plan import RDZV_CONFIGS, usable_cpus


def test_the_public_names_are_these():
    assert launch.__all__ == [
        "LaunchError",
        "LaunchPlan",
        "LaunchResult",
        "LaunchTerminatedError",
        "LaunchTimeoutError",
        "NodeLostError",
        "PlanError",
        "RankError",
        "RendezvousError",
        "SerializationError",
        "TimelineEvent",
        "TorchNotInstalledError",
        "launch",
        "resolve_nproc",
    ]


def test_every_wrong_setting_is_reported_at_once():
    with pytest.raises(PlanError) as caught:
        LaunchPlan(
            nproc_per_node=0,
            min_nodes=3,
            max_nodes=2,
            start_method="thread",
            max_restarts=-1,
            monitor_interval=0,
            rdzv_backend="zookeeper",
            rdzv_configs={"time_out": 5},
            run_id="",
            join_timeout=float("inf"),
            read_timeout=-1,
            shutdown_grace=-0.5,
            omp_num_threads=0,
            preload=("not a module",),
            timeout=0,
            hang_timeout=True,
            node_rank=-1,
            local_addr="",
            log_dir=5,
            log_ranks=(),
            nccl_heartbeat_timeout_sec=0,
            nccl_enable_monitoring="yes",
            nccl_async_error_handling=1.5,
            nccl_collective_timeout_sec=0.5,
        )
    wrong = {path: value for path, value, _ in caught.value.violations}
    assert wrong == {
        "nproc_per_node": 0,
        "max_nodes": 2,
        "start_method": "thread",
        "max_restarts": -1,
        "monitor_interval": 0,
        "rdzv_backend": "zookeeper",
        "rdzv_configs.time_out": 5,
        "run_id": "",
        "join_timeout": float("inf"),
        "read_timeout": -1,
        "shutdown_grace": -0.5,
        "omp_num_threads": 0,
        "preload": "not a module",
        "timeout": 0,
        "hang_timeout": True,
        "node_rank": -1,
        "local_addr": "",
        "log_dir": 5,
        "log_ranks": (),
        "nccl_heartbeat_timeout_sec": 0,
        "nccl_enable_monitoring": "yes",
        "nccl_async_error_handling": 1.5,
        "nccl_collective_timeout_sec": 0.5,
        "rdzv_endpoint": None,
    }
    assert all(path in str(caught.value) for path in wrong)


@pytest.mark.parametrize("nproc", ["gpus", "4(x2)", "", 1.0, None, True, -1])
def test_a_bad_number_of_ranks_is_named(nproc):
    with pytest.raises(PlanError, match=r"nproc_per_node: .* allowed: a whole number from 1, or auto, gpu, cpu"):
        LaunchPlan(nproc_per_node=nproc)


def test_a_word_is_resolved_on_this_machine():
    assert not torch.cuda.is_available(), "this test describes a machine without a GPU"
    assert resolve_nproc(3) == 3
    assert resolve_nproc("cpu") == resolve_nproc("auto") == usable_cpus() <= len(os.sched_getaffinity(0))
    with pytest.raises(PlanError, match="no usable GPU"):
        resolve_nproc("gpu")


def test_the_known_rendezvous_settings_are_those_that_torch_reads():
    import inspect
    import re

    from torch.distributed.elastic import rendezvous
    from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend, dynamic_rendezvous, static_tcp_rendezvous

    text = "".join(map(inspect.getsource, (c10d_rendezvous_backend, dynamic_rendezvous, static_tcp_rendezvous)))
    read = set(re.findall(r'\.get(?:_as_int|_as_bool)?\(\s*"([a-z_]+)"', text))
    read |= {f"{name}_timeout" for name in re.findall(r'_get_timeout\(params, "([a-z_]+)"', text)}
    assert rendezvous
    assert {"store_type", "is_host", "read_timeout", "join_timeout", "last_call_timeout"} <= read
    assert read - {"join_timeout"} <= RDZV_CONFIGS


def test_the_plan_keeps_nothing_of_the_callers():
    configs = {"timeout": 5}
    plan = LaunchPlan(rdzv_configs=configs, preload=["json"])
    configs["timeout"] = 6
    assert plan.rdzv_configs == {"timeout": 5}
    assert plan.preload == ("json",)


def test_two_plans_name_two_runs():
    assert LaunchPlan().run_id != LaunchPlan().run_id


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (-9, "SIGKILL", "out of memory"),
        (-6, "SIGABRT", "NCCL"),
        (-64, "SIGRTMAX", "killed by"),
        (0, "SystemExit", "before its function returned"),
        (3, "SystemExit", "exit code 3"),
    ],
)
def test_an_exit_code_is_explained(code, kind, text):
    assert describe_exit(code)[0] == kind
    assert text in describe_exit(code)[1]


def test_a_rank_error_survives_pickling():
    error = RankError(
        exception_type="ValueError",
        message="no",
        rank=3,
        local_rank=1,
        host="h",
        attempt=2,
        timestamp=1.5,
        traceback="tb",
        exception_bases=["builtins.ValueError"],
    )
    again = pickle.loads(pickle.dumps(error))
    assert vars(again) == vars(error)
    assert str(again) == "ValueError: no\nin rank 3 (local rank 1 on h, attempt 2)\n\ntb"


OPERATOR = {
    "PET_RDZV_ENDPOINT": "job-worker-0:23456",
    "PET_RDZV_BACKEND": "c10d",
    "PET_NNODES": "2:4",
    "PET_NPROC_PER_NODE": "8",
    "PET_MAX_RESTARTS": "3",
}


def test_a_plan_is_made_of_what_the_operator_writes():
    plan = LaunchPlan.from_environment(OPERATOR, run_id="r")
    assert plan == LaunchPlan(
        rdzv_endpoint="job-worker-0:23456", min_nodes=2, max_nodes=4, nproc_per_node=8, max_restarts=3, run_id="r"
    )


def test_torchruns_other_variables_are_read_and_settings_win(monkeypatch):
    for name, value in {
        "PET_NNODES": "3",
        "PET_NPROC_PER_NODE": "auto",
        "PET_RDZV_ENDPOINT": "h:1",
        "PET_RDZV_ID": "other",
        "PET_NODE_RANK": "2",
        "PET_MONITOR_INTERVAL": "0.5",
    }.items():
        monkeypatch.setenv(name, value)
    plan = LaunchPlan.from_environment(min_nodes=1, max_nodes=3, run_id="mine")
    assert (plan.min_nodes, plan.max_nodes, plan.nproc_per_node) == (1, 3, "auto")
    assert (plan.run_id, plan.node_rank, plan.monitor_interval) == ("mine", 2, 0.5)


def test_every_wrong_variable_is_named():
    wrong = {"PET_NNODES": "two", "PET_NPROC_PER_NODE": "all", "PET_MAX_RESTARTS": "", "PET_NODE_RANK": "x"}
    with pytest.raises(PlanError) as caught:
        LaunchPlan.from_environment({**OPERATOR, **wrong})
    assert {path: value for path, value, _ in caught.value.violations} == wrong
    with pytest.raises(PlanError, match="max_nodes: 1 is not allowed; allowed: at least min_nodes, which is 4"):
        LaunchPlan.from_environment({**OPERATOR, "PET_NNODES": "4:1"})


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, (None, None, None)),
        (
            {
                "proc": "0::/pod/container",
                "pod/memory.max": "2147483648",
                "pod/container/memory.max": "max",
                "pod/container/cpu.max": "150000 100000",
                "pod/cpu.max": "max 100000",
                "pod/container/memory.events": "low 0\noom 4\noom_kill 3",
            },
            (1.5, 2**31, 3),
        ),
        # In a container the path that /proc names is outside of the mount, and the mount's root is the own group.
        ({"proc": "0::/elsewhere", "memory.max": "1000", "cpu.max": "50000 100000"}, (0.5, 1000, None)),
        (
            {
                "proc": "4:memory:/own\n1:cpu:/own",
                "memory/own/memory.limit_in_bytes": "4096",
                "memory/memory.limit_in_bytes": "9223372036854771712",
                "memory/own/memory.oom_control": "oom_kill_disable 0\noom_kill 1",
            },
            (None, 4096, 1),
        ),
    ],
)
def test_limits_of_control_groups_are_read(files, expected, tmp_path, monkeypatch):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    real = cgroup._read
    monkeypatch.setattr(cgroup, "_ROOT", tmp_path)
    monkeypatch.setattr(cgroup, "_read", lambda path: real(tmp_path / "proc" if path.is_relative_to("/proc") else path))
    assert (cgroup.cpu_quota(), cgroup.memory_limit(), cgroup.oom_kills()) == expected
