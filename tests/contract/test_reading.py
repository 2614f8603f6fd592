"""Reading payloads: as lenient as the released backends, as strict where they fail, and never a crash."""

import json
import math
import subprocess
import sys

import pytest
from flyteidl.core import tasks_pb2
from google.protobuf.struct_pb2 import Struct
from hypothesis import given, settings
from hypothesis import strategies as st

from flyte_torchrun.contract import (
    ContractError,
    DistributedPyTorchTrainingTask,
    LaunchOptions,
    PayloadError,
    ReplicaSpec,
    RestartPolicy,
    UnsupportedVersionError,
    ValidationError,
)

Task = DistributedPyTorchTrainingTask


def workers(value, **more):
    return Task.from_custom({"workerReplicas": {"replicas": value, **more}}, 1).worker_replicas


@pytest.mark.parametrize("value", [3, 3.0, "3", " 3 ", "\t3\n"])
def test_a_whole_number_is_read_in_every_form_that_readers_take(value):
    assert workers(value) == ReplicaSpec(replicas=3)


@pytest.mark.parametrize(
    "value", [2.5, "2.0", "1e3", True, False, "two", "", "+3", "03", "0x3", [3], {"a": 3}, 2**31, -(2**31) - 1, 1e300]
)
def test_what_readers_cannot_read_is_named_with_its_path(value):
    with pytest.raises(PayloadError) as caught:
        workers(value)
    (violation,) = caught.value.violations
    assert (violation.path, violation.value) == ("worker_replicas.replicas", value)


def test_an_enum_is_read_from_its_wire_name_and_its_number():
    for value in ("RESTART_POLICY_ALWAYS", 2, 2.0):
        assert workers(1, restartPolicy=value).restart_policy is RestartPolicy.ALWAYS


@pytest.mark.parametrize("value", ["ALWAYS", "restart_policy_always", "2", "", 2.5, True])
def test_an_unknown_enum_name_is_refused_with_the_allowed_ones(value):
    with pytest.raises(PayloadError, match=r"worker_replicas\.restart_policy: .*RESTART_POLICY_ON_FAILURE"):
        workers(1, restartPolicy=value)


def test_an_unknown_enum_number_is_a_violation_that_can_be_inspected():
    custom = {"workerReplicas": {"replicas": 1, "restartPolicy": 9}}
    with pytest.raises(ValidationError, match=r"worker_replicas\.restart_policy: 9"):
        Task.from_custom(custom, 1)
    assert Task.from_custom(custom, 1, allow_violations=True).to_custom() == custom


def test_both_spellings_of_a_key_are_read_and_the_camel_case_one_wins():
    assert Task.from_custom({"worker_replicas": {"replicas": 2}}, 1).worker_replicas == ReplicaSpec(replicas=2)
    both = {"worker_replicas": {"replicas": 2}, "workerReplicas": {"replicas": 3}}
    task = Task.from_custom(both, 1)
    assert task.to_custom() == {"workerReplicas": {"replicas": 3}}
    both["workerReplicas"] = None
    assert Task.from_custom(both, 1, allow_violations=True).worker_replicas is None


def test_null_is_unset():
    custom = {"workerReplicas": {"replicas": 1, "image": None, "resources": None}, "runPolicy": None}
    assert Task.from_custom(custom, 1).to_custom() == {"workerReplicas": {"replicas": 1}}


def test_unknown_keys_survive_at_every_level():
    custom = {
        "workerReplicas": {
            "replicas": 1,
            "nodeSelector": {"a": "b"},
            "resources": {"requests": [{"name": "CPU", "value": "1", "unit": None}], "claims": []},
        },
        "runPolicy": {"suspend": True},
        "elasticConfig": {
            "rdzvBackend": "c10d",
            "minReplicas": 1,
            "maxReplicas": 1,
            "nprocPerNode": 1,
            "maxRestarts": 0,
            "rdzvConf": [1.5, "x", {"deep": [None]}],
        },
        "torchrun": {"fromTheFuture": {"a": [1, 2]}},
        "ein Schlüssel": "ünïcode",
    }
    template = Task.from_custom(custom, 1).to_template(tasks_pb2.TaskTemplate())
    assert Task.from_template(template).to_custom() == custom


def test_every_unreadable_value_is_reported_at_once():
    custom = {
        "workerReplicas": {"replicas": "x", "image": 5, "resources": {"limits": [{"name": "TPU"}, 7]}},
        "masterReplicas": [],
        "torchrun": {"timeout": "5", "preload": "json", "rdzvConfigs": {"a": [1]}, "increaseSharedMem": "true"},
    }
    with pytest.raises(PayloadError) as caught:
        Task.from_custom(custom, 1)
    assert {violation.path: violation.value for violation in caught.value.violations} == {
        "worker_replicas.replicas": "x",
        "worker_replicas.image": 5,
        "worker_replicas.resources.limits[0].name": "TPU",
        "worker_replicas.resources.limits[1]": 7,
        "master_replicas": [],
        "launch_options.timeout": "5",
        "launch_options.preload": "json",
        "launch_options.rdzv_configs.a": [1],
        "launch_options.increase_shared_mem": "true",
    }


@pytest.mark.parametrize("text", ["1.5s", "0.000001s", "3s", "100000.5s", "1.500000000s"])
def test_a_duration_is_read_to_the_microsecond(text):
    options = Task.from_custom({"workerReplicas": {"replicas": 1}, "torchrun": {"timeout": text}}, 1).launch_options
    assert options.timeout.total_seconds() == float(text[:-1])


@pytest.mark.parametrize("text", ["1.0000001s", "1", "s", "1.5", "1h", "1e3s", "-", "1.s", 5, "9" * 20 + "s"])
def test_a_duration_that_cannot_be_held_is_named(text):
    with pytest.raises(PayloadError, match=r"launch_options\.timeout"):
        Task.from_custom({"workerReplicas": {"replicas": 1}, "torchrun": {"timeout": text}}, 1)


def test_a_duration_finer_than_a_microsecond_in_a_message_is_named():
    message = LaunchOptions(start_method=None).to_proto()
    message.timeout.nanos = 1
    with pytest.raises(PayloadError, match="microseconds"):
        LaunchOptions.from_proto(message)


@pytest.mark.parametrize("version", [2, -1, True, "1", None])
def test_another_version_is_named(version):
    with pytest.raises(UnsupportedVersionError, match=r"task_type_version: .* allowed: 0, 1"):
        Task.from_custom({"workers": 1}, version)
    with pytest.raises(UnsupportedVersionError):
        Task(worker_replicas=ReplicaSpec(replicas=1)).to_custom(version)


def test_a_missing_payload_is_named():
    with pytest.raises(PayloadError, match="custom: unset"):
        Task.from_template(tasks_pb2.TaskTemplate(type="pytorch", task_type_version=1))
    with pytest.raises(PayloadError, match="custom: unset"):
        Task.from_custom(None, 1)


def test_another_task_type_is_named():
    template = Task(worker_replicas=ReplicaSpec(replicas=1)).to_template(tasks_pb2.TaskTemplate())
    template.type = "spark"
    with pytest.raises(PayloadError, match="type: 'spark'"):
        Task.from_template(template)
    with pytest.raises(ValidationError, match="task_type: 'spark'"):
        Task(worker_replicas=ReplicaSpec(replicas=1)).to_template(template, task_type="spark")


def test_version_0_refuses_what_it_cannot_carry():
    rich = Task.from_custom(
        {
            "workerReplicas": {"replicas": 2, "image": "i", "restartPolicy": "RESTART_POLICY_ALWAYS"},
            "masterReplicas": {"resources": {}},
            "runPolicy": {},
        },
        1,
    )
    with pytest.raises(ValidationError) as caught:
        rich.to_custom(0)
    assert sorted(violation.path for violation in caught.value.violations) == [
        "master_replicas.resources",
        "run_policy",
        "worker_replicas.image",
        "worker_replicas.restart_policy",
    ]


def test_a_payload_of_version_0_keeps_what_its_readers_ignore():
    custom = {"workers": 2, "runPolicy": {"backoffLimit": 1}, "workerReplicas": 5, "extra": [1]}
    task = Task.from_custom(custom, 0)
    assert task.run_policy is None
    assert task.to_custom(0) == custom
    with pytest.raises(ValidationError, match=r"unknown_fields: \['runPolicy', 'workerReplicas'\]"):
        task.to_custom(1)  # there they would begin to count


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_has_not_is_named(number):
    struct = Struct()
    struct["workerReplicas"] = {"replicas": number}
    for custom in (struct, {"workerReplicas": {"replicas": number}}):
        with pytest.raises(PayloadError, match=r"workerReplicas\.replicas"):
            Task.from_custom(custom, 1)


@pytest.mark.parametrize("depth", [99, 150, 5000])
def test_deep_nesting_is_bounded(depth):
    value = 1
    for _ in range(depth):
        value = {"a": value}
    custom = {"workerReplicas": {"replicas": 1}, "x": value}
    if depth < 100:
        assert Task.from_custom(custom, 1).to_custom() == custom
    else:
        with pytest.raises(PayloadError, match="levels of nesting"):
            Task.from_custom(custom, 1)


@pytest.mark.parametrize("custom", [{1: 2}, {"x": object()}, {"x": b"1"}, {"x": {1, 2}}, [], "{}", 5])
def test_what_is_no_json_object_is_named(custom):
    with pytest.raises(PayloadError):
        Task.from_custom(custom, 1)


known_keys = [
    "workerReplicas",
    "masterReplicas",
    "replicas",
    "image",
    "resources",
    "requests",
    "limits",
    "name",
    "value",
    "restartPolicy",
    "common",
    "runPolicy",
    "cleanPodPolicy",
    "backoffLimit",
    "elasticConfig",
    "minReplicas",
    "torchrun",
    "timeout",
    "rdzvConfigs",
    "workers",
]
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(known_keys), inner, max_size=4),
    max_leaves=12,
)
keys = st.sampled_from(["workerReplicas", "runPolicy", "torchrun", "workers", "x"])


@settings(max_examples=3000, deadline=None)
@given(st.dictionaries(keys, anything), st.sampled_from([0, 1]))
def test_any_json_is_read_or_refused_by_one_clear_error(custom, version):
    try:
        task = Task.from_custom(custom, version, allow_violations=True)
    except ContractError:
        return
    if version == 1:
        written = task.to_custom()
        json.dumps(written, allow_nan=False)
        assert Task.from_custom(written, 1, allow_violations=True) == task


HIDE = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {hidden!r}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Hide())
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == {hidden!r} else real(name, package)
from {kept}.core import tasks_pb2
from flyte_torchrun.contract import *
task = DistributedPyTorchTrainingTask(worker_replicas=ReplicaSpec(replicas=2, restart_policy=RestartPolicy.ALWAYS))
template = task.to_template(tasks_pb2.TaskTemplate())
assert DistributedPyTorchTrainingTask.from_template(template) == task
assert DistributedPyTorchTrainingTask.from_proto(task.to_proto()) == task
print(task.to_proto().DESCRIPTOR.full_name)
"""


@pytest.mark.parametrize(("kept", "hidden"), [("flyteidl", "flyteidl2"), ("flyteidl2", "flyteidl")])
def test_one_of_the_two_packages_is_enough(kept, hidden):
    script = HIDE.format(kept=kept, hidden=hidden)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{kept}.plugins.kubeflow.DistributedPyTorchTrainingTask"


def test_importing_loads_neither_torch_nor_grpc_nor_flytekit():
    script = "import sys, flyte_torchrun.contract; print(sorted({'torch', 'grpc', 'flytekit'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
