"""The configurations: their names, their order, their checks."""

import dataclasses
import inspect

import pytest
from flytekit import Resources
from flytekitplugins import kfpytorch as peer

from flyte_torchrun import flytekit as ours
from flyte_torchrun.contract import FieldTypeError, ValidationError
from flyte_torchrun.flytekit import (
    CleanPodPolicy,
    Elastic,
    ElasticPolicy,
    Master,
    PyTorch,
    RestartPolicy,
    RunPolicy,
    Worker,
)


@pytest.mark.parametrize("name", ["Elastic", "PyTorch", "Worker", "Master", "RunPolicy"])
def test_the_peers_fields_have_the_same_names_and_order(name):
    def fields(module):
        return list(inspect.signature(getattr(module, name)).parameters)

    theirs = fields(peer)
    assert [field for field in fields(ours) if field in theirs] == theirs


@pytest.mark.parametrize("name", ["Elastic", "PyTorch", "Worker", "Master"])
def test_the_peers_fields_can_be_positional(name):
    signature = inspect.signature(getattr(ours, name)).parameters
    theirs = inspect.signature(getattr(peer, name)).parameters
    assert [str(signature[field].kind) for field in theirs] == ["POSITIONAL_OR_KEYWORD"] * len(theirs)


def test_the_peers_enum_members_are_there():
    assert {name for name in dir(peer.RestartPolicy) if name.isupper()} <= set(RestartPolicy.__members__)
    assert {name for name in dir(peer.CleanPodPolicy) if name.isupper()} <= set(CleanPodPolicy.__members__)


@pytest.mark.parametrize("nnodes", [1, "1", "1:1", None])
def test_one_node_is_one_value_however_it_is_written(nnodes):
    job = Elastic(nnodes=nnodes).job()
    assert job.is_one_node
    assert job.nodes == Elastic(min_replicas=1, max_replicas=1).job().nodes


def test_a_range_can_be_given_either_way():
    assert Elastic(nnodes="2:4").job().nodes == Elastic(min_replicas=2, max_replicas=4).job().nodes
    assert Elastic(nnodes=3).job().nodes == Elastic(max_replicas=3).job().nodes == Elastic(min_replicas=3).job().nodes


def test_every_violation_is_reported_at_once():
    with pytest.raises(ValidationError) as caught:
        Elastic(
            nnodes="4:2",
            nproc_per_node=0,
            max_restarts=-1,
            start_method="thread",
            monitor_interval=-1,
            omp_num_threads=0,
            shared_memory_size="2GiB",
            rdzv_backend="zookeeper",
            rdzv_configs={"timeout": object()},
        )
    text = str(caught.value)
    for part in ("nnodes", "nproc_per_node", "max_restarts", "start_method", "rdzv_backend"):
        assert part in text
    assert "4:2" in text
    assert "thread" in text
    assert "zookeeper" in text


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"nnodes": 0}, "nnodes"),
        ({"nnodes": "a"}, "nnodes"),
        ({"nnodes": True}, "nnodes"),
        ({"nnodes": 2, "min_replicas": 2}, "nnodes"),
        ({"min_replicas": 3, "max_replicas": 2}, "3"),
        ({"nproc_per_node": "gpus"}, "nproc_per_node"),
        ({"nproc_per_node": 0}, "nproc_per_node"),
        ({"monitor_interval": "often"}, "monitor_interval"),
        ({"monitor_interval": 0}, "monitor_interval"),
        ({"join_timeout": float("nan")}, "join_timeout"),
        ({"timeout": -5}, "timeout"),
        ({"shared_memory_size": "much"}, "shared_memory_size"),
        ({"preload": ("not a module",)}, "preload"),
        ({"log_ranks": ()}, "log_ranks"),
        ({"log_ranks": (-1,)}, "log_ranks"),
        ({"log_dir": ""}, "log_dir"),
        ({"nccl_heartbeat_timeout_sec": 0.5}, "nccl_heartbeat_timeout_sec"),
        ({"nccl_heartbeat_timeout_sec": 0}, "nccl_heartbeat_timeout_sec"),
        ({"nccl_collective_timeout_sec": -1}, "nccl_collective_timeout_sec"),
        ({"rdzv_configs": {"time_out": 900}}, r"rdzv_configs\.time_out: 900"),
    ],
)
def test_a_bad_value_is_named_with_its_field(arguments, named):
    with pytest.raises(ValidationError, match=named):
        Elastic(**arguments)


@pytest.mark.parametrize("name", ["nccl_enable_monitoring", "nccl_async_error_handling"])
def test_a_value_of_a_wrong_type_is_named_with_its_field(name):
    with pytest.raises(FieldTypeError, match=f"{name}: 'yes' is of type str; allowed: a bool"):
        Elastic(**{name: "yes"})


def test_a_configuration_keeps_nothing_of_the_callers():
    configs = {"timeout": 900}
    elastic = Elastic(rdzv_configs=configs)
    configs["timeout"] = 1
    assert elastic.rdzv_configs == {"timeout": 900}


def test_a_copy_with_other_nodes_is_a_valid_configuration():
    assert dataclasses.replace(Elastic(nnodes=2, nproc_per_node=4), nnodes="1:3") == Elastic(
        nnodes="1:3", nproc_per_node=4
    )


def test_workers_are_given_once():
    with pytest.raises(ValidationError, match="only one of the two"):
        PyTorch(num_workers=2, worker=Worker(replicas=2))
    with pytest.raises(ValidationError, match=r"worker\.replicas"):
        PyTorch()
    with pytest.raises(ValidationError, match="-1"):
        PyTorch(num_workers=-1)


def test_a_group_without_workers_describes_no_replicas():
    assert PyTorch(num_workers=0).job().is_one_node
    with pytest.raises(ValidationError, match="0 workers"):
        PyTorch(num_workers=0, master=Master(image="other:1"))


def test_an_elastic_policy_takes_the_number_of_workers_and_the_other_way_round():
    assert PyTorch(num_workers=3, elastic_policy=ElasticPolicy()).job().nodes == Elastic(nnodes=3).job().nodes
    ranged = PyTorch(elastic_policy=ElasticPolicy(min_replicas=1, max_replicas=4)).job()
    assert ranged.nodes == Elastic(nnodes="1:4").job().nodes
    assert ranged.worker is not None
    assert ranged.worker.replicas == 4


def test_a_master_beside_an_elastic_policy_is_said_to_be_ignored():
    with pytest.warns(UserWarning, match="master"):
        PyTorch(num_workers=2, master=Master(image="other:1"), elastic_policy=ElasticPolicy())


def test_an_elastic_policy_reports_every_violation_at_once():
    with pytest.raises(ValidationError) as caught:
        ElasticPolicy(n_proc_per_node=0, max_restarts=-2, min_replicas=3, max_replicas=1)
    assert {"nproc_per_node", "max_restarts"} <= {
        violation.path.split(".")[-1] for violation in caught.value.violations
    }
    assert len(caught.value.violations) == 3


def test_a_replicas_resources_are_written_only_when_there_are_some():
    job = PyTorch(worker=Worker(replicas=2, requests=Resources()), master=Master(requests=Resources(cpu="2"))).job()
    assert job.worker is not None
    assert job.master is not None
    assert job.worker.resources is None
    assert job.master.resources is not None


def test_the_run_policy_of_the_two_kinds_is_one_class():
    policy = RunPolicy(clean_pod_policy=CleanPodPolicy.NONE, backoff_limit=0)
    assert Elastic(nnodes=2, run_policy=policy).job().run_policy is PyTorch(num_workers=1, run_policy=policy).run_policy
