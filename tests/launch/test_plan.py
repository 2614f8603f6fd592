"""The plan: checked whole, before anything starts."""

import os
import pickle

import pytest
import torch

from flyte_torchrun import launch
from flyte_torchrun.launch import LaunchPlan, PlanError, RankError, resolve_nproc
from flyte_torchrun.launch.errors import describe_exit
from flyte_torchrun.launch.plan import RDZV_CONFIGS, usable_cpus


def test_the_public_names_are_these():
    assert launch.__all__ == [
        "LaunchError",
        "LaunchPlan",
        "LaunchResult",
        "LaunchTerminatedError",
        "LaunchTimeoutError",
        "PlanError",
        "RankError",
        "RendezvousError",
        "SerializationError",
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
