"""Building values: what is allowed, and what is said of the rest."""

import copy
import dataclasses
import pickle
from datetime import timedelta

import pytest
from flyteidl.core import tasks_pb2
from flyteidl.plugins import common_pb2
from flyteidl.plugins.kubeflow import common_pb2 as kubeflow_common_pb2
from flyteidl_torchrun.v1 import launch_pb2

from flyte_torchrun import contract
from flyte_torchrun.contract import (
    CleanPodPolicy,
    CommonReplicaSpec,
    ContractError,
    DistributedPyTorchTrainingTask,
    ElasticConfig,
    FieldTypeError,
    LaunchOptions,
    NodeRange,
    PayloadError,
    ReplicaSpec,
    ResourceEntry,
    ResourceName,
    Resources,
    RestartPolicy,
    RunPolicy,
    StartMethod,
    SymbolicNprocPerNode,
    UnsupportedVersionError,
    ValidationError,
    Violation,
    parse_nnodes,
)

INT32_MAX = 2**31 - 1
HELPERS = (
    CommonReplicaSpec,
    DistributedPyTorchTrainingTask,
    ElasticConfig,
    LaunchOptions,
    ReplicaSpec,
    ResourceEntry,
    Resources,
    RunPolicy,
)


def test_the_public_names_are_these():
    assert contract.__all__ == sorted(contract.__all__)
    assert set(contract.__all__) == {
        *(helper.__name__ for helper in HELPERS),
        *("CleanPodPolicy", "ResourceName", "RestartPolicy", "StartMethod", "SymbolicNprocPerNode"),
        *("ContractError", "FieldTypeError", "PayloadError", "UnsupportedVersionError", "ValidationError", "Violation"),
        *("NodeRange", "parse_nnodes"),
    }


@pytest.mark.parametrize("helper", HELPERS)
def test_a_helper_is_frozen_slotted_and_keyword_only(helper):
    assert helper.__dataclass_params__.frozen
    assert "__slots__" in vars(helper)
    assert all(field.kw_only for field in dataclasses.fields(helper))


def test_the_attributes_are_the_messages_fields():
    for helper in HELPERS:
        names = [field.name for field in dataclasses.fields(helper) if field.name != "unknown_fields"]
        extension = ["launch_options"] if helper is DistributedPyTorchTrainingTask else []
        message = helper.message_class("flyteidl")
        assert names == [field.name for field in message.DESCRIPTOR.fields] + extension


ENUMS = {
    RestartPolicy: common_pb2.RestartPolicy.DESCRIPTOR,
    CleanPodPolicy: kubeflow_common_pb2.CleanPodPolicy.DESCRIPTOR,
    ResourceName: tasks_pb2.Resources.ResourceName.DESCRIPTOR,
    StartMethod: launch_pb2.StartMethod.DESCRIPTOR,
    SymbolicNprocPerNode: launch_pb2.SymbolicNprocPerNode.DESCRIPTOR,
}


@pytest.mark.parametrize("enum", ENUMS)
def test_an_enum_has_the_schemas_names_and_numbers(enum):
    schema = {value.name: value.number for value in ENUMS[enum].values if not value.name.endswith("UNSPECIFIED")}
    assert {member.wire_name: member.value for member in enum} == schema


@pytest.mark.parametrize("enum", ENUMS)
def test_an_enum_is_made_from_number_name_and_wire_name(enum):
    for member in enum:
        spellings = [member.value, member.name, member.name.lower(), member.wire_name, member]
        assert [enum(spelling) for spelling in spellings] == [member] * 5
    assert RestartPolicy("OnFailure") is RestartPolicy.FAILURE is RestartPolicy.ON_FAILURE


@pytest.mark.parametrize("value", [9, -1, "SOMETIMES", "", None, 1.5, "RESTART_POLICY_"])
def test_an_unknown_member_is_named(value):
    with pytest.raises(ValueError, match="is not a RestartPolicy; allowed: NEVER, ON_FAILURE, ALWAYS"):
        RestartPolicy(value)


def test_members_are_distinct_and_hashable():
    members = [*RestartPolicy, *CleanPodPolicy, *StartMethod]
    assert len(set(members)) == len(members)
    assert CleanPodPolicy.NONE != RestartPolicy.NEVER
    assert CleanPodPolicy.NONE != 0
    assert pickle.loads(pickle.dumps(RestartPolicy.NEVER)) is RestartPolicy.NEVER
    assert repr(CleanPodPolicy.NONE) == "CleanPodPolicy.NONE"


def violations(make):
    with pytest.raises(ValidationError) as caught:
        make()
    assert all(str(violation) in str(caught.value) for violation in caught.value.violations)
    assert pickle.loads(pickle.dumps(caught.value)).violations == caught.value.violations
    return {violation.path: violation.value for violation in caught.value.violations}


def test_an_elastic_config_reports_everything_at_once():
    assert violations(
        lambda: ElasticConfig(
            rdzv_backend="zookeeper", min_replicas=3, max_replicas=2, nproc_per_node=0, max_restarts=-1
        )
    ) == {"rdzv_backend": "zookeeper", "min_replicas": 3, "nproc_per_node": 0, "max_restarts": -1}


@pytest.mark.parametrize("value", [0, -1, INT32_MAX + 1, 2**40])
def test_counts_are_positive_and_of_32_bits(value):
    assert violations(lambda: ReplicaSpec(replicas=value)) == {"replicas": value}
    assert "min_replicas" in violations(lambda: ElasticConfig(min_replicas=value, max_replicas=5, nproc_per_node=1))


def test_the_largest_count_is_allowed():
    largest = ElasticConfig(min_replicas=1, max_replicas=INT32_MAX, nproc_per_node=INT32_MAX, max_restarts=INT32_MAX)
    assert ElasticConfig.from_proto(largest.to_proto()) == largest


@pytest.mark.parametrize(
    "value", ["", "1.2.3", "1GB", "-1", "1 Gi", "Gi", "1e", "ten", "1Gi ", "+-1", "1_000", "٣", "1e5e5", "0x10", "."]
)
def test_a_bad_quantity_is_named(value):
    assert violations(lambda: Resources.from_quantities(limits={"memory": value})) == {"value": value}


@pytest.mark.parametrize(
    "value", ["0", "1", "500m", "1.5Gi", ".5", "5.", "+1", "1e3", "1E-3", "2Ki", "3n", "4u", "12E"]
)
def test_a_good_quantity_is_taken_as_it_is(value):
    assert Resources.from_quantities(requests={"cpu": value}).requests == (
        ResourceEntry(name=ResourceName.CPU, value=value),
    )


def test_a_task_names_the_path_of_each_violation():
    broken = {
        "workerReplicas": {
            "replicas": 2,
            "image": "",
            "resources": {"requests": [{"name": "CPU", "value": "1"}], "limits": [{"name": "MEMORY", "value": "x"}]},
        },
        "masterReplicas": {"replicas": 2},
        "runPolicy": {"backoffLimit": -1},
        "torchrun": {"ompNumThreads": 0, "timeout": "0s", "rdzvConfigs": {"a": 1e300}, "preload": ["not a name"]},
    }
    assert violations(lambda: DistributedPyTorchTrainingTask.from_custom(broken, 1)) == {
        "worker_replicas.image": "",
        "worker_replicas.resources.limits[0].value": "x",
        "master_replicas.replicas": 2,
        "run_policy.backoff_limit": -1,
        "launch_options.omp_num_threads": 0,
        "launch_options.timeout": timedelta(0),
        "launch_options.rdzv_configs.a": 1e300,
        "launch_options.preload[0]": "not a name",
    }


def test_a_task_has_workers():
    assert violations(DistributedPyTorchTrainingTask) == {"worker_replicas": None}
    without_number = ReplicaSpec()
    assert violations(lambda: DistributedPyTorchTrainingTask(worker_replicas=without_number)) == {
        "worker_replicas.replicas": None
    }


def test_common_and_the_older_fields_agree():
    common = CommonReplicaSpec(replicas=2, image="a", restart_policy=RestartPolicy.NEVER)
    assert ReplicaSpec(replicas=2, common=common).common == common
    assert violations(lambda: ReplicaSpec(replicas=3, image="b", common=common)) == {"replicas": 3, "image": "b"}


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: ElasticConfig(min_replicas="2", max_replicas=2, nproc_per_node=1), "min_replicas: '2' is of type str"),
        (lambda: ElasticConfig(min_replicas=2, max_replicas=2, nproc_per_node="gpu"), "nproc_per_node: 'gpu'"),
        (lambda: ElasticConfig(min_replicas=True, max_replicas=2, nproc_per_node=1), "min_replicas: True"),
        (lambda: ElasticConfig(min_replicas=1.0, max_replicas=2, nproc_per_node=1), "min_replicas: 1.0"),
        (lambda: ReplicaSpec(image=b"img"), "image: b'img'"),
        (lambda: ReplicaSpec(restart_policy="ALWAYS"), "restart_policy: 'ALWAYS'"),
        (lambda: ReplicaSpec(restart_policy=CleanPodPolicy.ALL), "restart_policy: CleanPodPolicy.ALL"),
        (lambda: ReplicaSpec(resources={"cpu": 1}), "resources"),
        (lambda: LaunchOptions(timeout=5), "timeout: 5"),
        (lambda: LaunchOptions(increase_shared_mem=1), "increase_shared_mem: 1"),
        (lambda: LaunchOptions(rdzv_configs=[1]), "rdzv_configs"),
        (lambda: LaunchOptions(preload="json"), "preload: 'json'"),
        (lambda: RunPolicy.from_proto(tasks_pb2.Resources()), "RunPolicy.from_proto"),
        (lambda: RunPolicy.from_proto({"backoffLimit": 1}), "RunPolicy.from_proto"),
        (lambda: DistributedPyTorchTrainingTask.from_template({}), "template"),
    ],
)
def test_a_value_of_the_wrong_type_is_named(make, named):
    with pytest.raises(FieldTypeError) as caught:
        make()
    assert named in str(caught.value)
    assert isinstance(caught.value, TypeError)


def test_the_kinds_of_error_are_apart():
    kinds = (ValidationError, PayloadError, UnsupportedVersionError, FieldTypeError)
    assert all(issubclass(kind, ContractError) for kind in kinds)
    assert [kind for kind in kinds if issubclass(kind, ValueError)] == [*kinds[:3]]
    assert not any(issubclass(one, other) for one in kinds for other in kinds if one is not other)


def test_a_long_value_does_not_flood_the_message():
    assert len(str(Violation("image", "x" * 10_000, "a container image"))) < 400


def test_sequences_and_mappings_are_copied_and_frozen():
    configs = {"timeout": 900}
    names = ["json"]
    options = LaunchOptions(rdzv_configs=configs, preload=names)
    configs["timeout"] = 1
    names.append("os")
    assert options.rdzv_configs == {"timeout": 900}
    assert options.preload == ("json",)
    with pytest.raises((TypeError, AttributeError)):
        options.rdzv_configs["timeout"] = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.timeout = None
    assert copy.deepcopy(options) == options


def test_a_repr_shows_what_is_set_and_can_be_evaluated():
    task = DistributedPyTorchTrainingTask(
        worker_replicas=ReplicaSpec(replicas=2, restart_policy=RestartPolicy.NEVER),
        elastic_config=ElasticConfig(min_replicas=1, max_replicas=2, nproc_per_node=1),
    )
    assert repr(task) == (
        "DistributedPyTorchTrainingTask(worker_replicas=ReplicaSpec(replicas=2, restart_policy=RestartPolicy.NEVER), "
        "elastic_config=ElasticConfig(rdzv_backend='c10d', min_replicas=1, max_replicas=2, nproc_per_node=1, "
        "max_restarts=0))"
    )
    assert eval(repr(task), vars(contract)) == task


def test_unknown_fields_have_one_form_and_no_known_key():
    assert RunPolicy(unknown_fields={"x": '{"b": 1.0, "a": [2]}'}) == RunPolicy(unknown_fields={"x": '{"a":[2],"b":1}'})
    assert violations(lambda: RunPolicy(unknown_fields={"x": "{", "backoffLimit": "1", "backoff_limit": "1"})) == {
        "unknown_fields.x": "{",
        "unknown_fields.backoffLimit": "1",
        "unknown_fields.backoff_limit": "1",
    }


@pytest.mark.parametrize("value", [1, "1", "1:1", "01"])
def test_one_node_is_one_value(value):
    assert parse_nnodes(value) == NodeRange(min_nodes=1, max_nodes=1)


def test_a_range_of_nodes_is_read_and_shown():
    assert parse_nnodes("2:4") == NodeRange(min_nodes=2, max_nodes=4)
    assert [str(parse_nnodes(value)) for value in (3, "3:3", "2:4")] == ["3", "3", "2:4"]
    assert parse_nnodes(INT32_MAX).max_nodes == INT32_MAX


@pytest.mark.parametrize(
    "value",
    [0, -1, "0", "4:1", "a", "", "1:", ":1", "1:2:3", "1.5", " 1", "1-2", True, 2.0, None, INT32_MAX + 1],
)
def test_a_bad_number_of_nodes_is_named(value):
    assert violations(lambda: parse_nnodes(value)) == {"nnodes": value}
