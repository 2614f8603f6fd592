"""Nothing is lost: helper to template and back, helper to JSON and back, and what others wrote."""

import copy
import json
import pickle
from pathlib import Path

import pytest
from flyteidl.core import tasks_pb2
from flyteidl.plugins import pytorch_pb2
from flyteidl.plugins.kubeflow import pytorch_pb2 as kubeflow_pytorch_pb2
from flyteidl2.core import tasks_pb2 as flyte2_tasks_pb2
from google.protobuf.json_format import MessageToDict, ParseDict
from hypothesis import given, settings
from hypothesis import strategies as st

from flyte_torchrun.contract import (
    CleanPodPolicy,
    DistributedPyTorchTrainingTask,
    ElasticConfig,
    LaunchOptions,
    PayloadError,
    ReplicaSpec,
    Resources,
    RestartPolicy,
    RunPolicy,
    UnsupportedVersionError,
    ValidationError,
)
from tests.contract import strategies

VECTORS = Path(__file__).parents[1] / "vectors"
CASES = {case["id"]: case["template"] for case in json.loads((VECTORS / "cases.json").read_text())}
UNREADABLE = json.loads((VECTORS / "unreadable.json").read_text())["errors"]
WRITERS = json.loads((VECTORS / "writers.json").read_text())
MESSAGES = {0: pytorch_pb2.DistributedPyTorchTrainingTask, 1: kubeflow_pytorch_pb2.DistributedPyTorchTrainingTask}

Task = DistributedPyTorchTrainingTask


def meaning(custom, version):
    """What a reader of that version makes of a payload."""
    return ParseDict(custom, MESSAGES[version](), ignore_unknown_fields=True)


@settings(max_examples=2000, deadline=None)
@given(strategies.tasks, st.sampled_from([tasks_pb2.TaskTemplate, flyte2_tasks_pb2.TaskTemplate]))
def test_a_task_survives_the_bytes_of_a_template(task, template_class):
    template = task.to_template(template_class())
    assert Task.from_template(template_class.FromString(template.SerializeToString())) == task


@settings(max_examples=2000, deadline=None)
@given(strategies.tasks)
def test_a_task_survives_its_json(task):
    assert Task.from_custom(json.loads(json.dumps(task.to_custom())), 1) == task


@settings(max_examples=500, deadline=None)
@given(strategies.tasks)
def test_the_payload_means_what_the_message_says(task):
    assert meaning(task.to_custom(), 1) == task.to_proto()


@settings(max_examples=500, deadline=None)
@given(strategies.tasks)
def test_a_task_survives_pickling_and_has_a_hash_and_a_readable_repr(task):
    again = pickle.loads(pickle.dumps(task))
    assert again == task
    assert hash(again) == hash(task)
    assert repr(again) == repr(task)


@settings(max_examples=500, deadline=None)
@given(strategies.launch_options)
def test_launch_options_survive_their_message(options):
    without_unknown = LaunchOptions(
        **{field.name: getattr(options, field.name) for field, _ in LaunchOptions.schema.fields}
    )
    assert LaunchOptions.from_proto(options.to_proto()) == without_unknown


def test_explicit_zeros_and_none_are_visible_in_the_payload():
    task = Task(
        worker_replicas=ReplicaSpec(replicas=2, restart_policy=RestartPolicy.NEVER, resources=Resources()),
        run_policy=RunPolicy(
            clean_pod_policy=CleanPodPolicy.NONE,
            ttl_seconds_after_finished=0,
            active_deadline_seconds=0,
            backoff_limit=0,
        ),
        elastic_config=ElasticConfig(min_replicas=2, max_replicas=2, nproc_per_node=1, max_restarts=0),
    )
    custom = task.to_custom()
    assert custom == {
        "workerReplicas": {"replicas": 2, "resources": {}, "restartPolicy": "RESTART_POLICY_NEVER"},
        "runPolicy": {
            "cleanPodPolicy": "CLEANPOD_POLICY_NONE",
            "ttlSecondsAfterFinished": 0,
            "activeDeadlineSeconds": 0,
            "backoffLimit": 0,
        },
        "elasticConfig": {
            "rdzvBackend": "c10d",
            "minReplicas": 2,
            "maxReplicas": 2,
            "nprocPerNode": 1,
            "maxRestarts": 0,
        },
    }
    template = task.to_template(tasks_pb2.TaskTemplate())
    assert Task.from_template(template) == task
    assert MessageToDict(template.custom) == custom


def test_unset_stays_unset():
    task = Task(worker_replicas=ReplicaSpec(replicas=2), run_policy=RunPolicy())
    assert task.to_custom() == {"workerReplicas": {"replicas": 2}, "runPolicy": {}}
    assert Task.from_custom(task.to_custom(), 1) == task


@pytest.mark.parametrize("package", ["flyteidl", "flyteidl2"])
def test_a_message_of_either_package_can_be_written_and_read(package):
    task = Task(
        worker_replicas=ReplicaSpec(
            replicas=2,
            image="img:1",
            resources=Resources.from_quantities(requests={"cpu": "2"}, limits={"gpu": "1"}),
            restart_policy=RestartPolicy.ALWAYS,
        ),
        run_policy=RunPolicy(clean_pod_policy=CleanPodPolicy.ALL, backoff_limit=1),
        elastic_config=ElasticConfig(min_replicas=1, max_replicas=2, nproc_per_node=3),
    )
    message = task.to_proto(package)
    assert message.DESCRIPTOR.full_name == f"{package}.plugins.kubeflow.DistributedPyTorchTrainingTask"
    assert Task.from_proto(message) == task
    for helper in (task.worker_replicas, task.run_policy, task.elastic_config, task.worker_replicas.resources):
        assert type(helper).from_proto(helper.to_proto(package)) == helper


def test_a_message_of_version_0_can_be_read():
    message = pytorch_pb2.DistributedPyTorchTrainingTask(workers=3)
    assert Task.from_proto(message) == Task(worker_replicas=ReplicaSpec(replicas=3))
    message.elastic_config.CopyFrom(pytorch_pb2.ElasticConfig(rdzv_backend="c10d", min_replicas=1, max_replicas=3))
    with pytest.raises(ValidationError, match=r"elastic_config\.nproc_per_node: 0"):
        Task.from_proto(message)


def test_zero_in_a_message_reads_as_unset():
    message = kubeflow_pytorch_pb2.DistributedPyTorchTrainingTask()
    message.worker_replicas.replicas = 1
    message.run_policy.SetInParent()
    task = Task.from_proto(message)
    assert task.run_policy == RunPolicy(clean_pod_policy=CleanPodPolicy.NONE)
    assert task.worker_replicas == ReplicaSpec(replicas=1, restart_policy=RestartPolicy.NEVER)


@settings(max_examples=300, deadline=None)
@given(strategies.tasks)
def test_a_template_keeps_everything_else_and_the_callers_is_not_touched(task):
    given_template = ParseDict(CASES["labels_annotations"], tasks_pb2.TaskTemplate())
    before = copy.deepcopy(given_template)
    written = task.to_template(given_template)
    assert given_template == before
    assert (written.type, written.task_type_version) == ("pytorch", 1)
    for field in ("type", "task_type_version", "custom"):
        written.ClearField(field)
        before.ClearField(field)
    assert written == before


def test_nothing_of_the_callers_is_kept():
    payload = {
        "workerReplicas": {"replicas": 2, "resources": {"requests": [{"name": "CPU", "value": "1"}]}},
        "x": {"y": [1]},
    }
    task = Task.from_custom(payload, 1)
    before = task.to_custom()
    payload["x"]["y"].append(2)
    payload["workerReplicas"]["resources"]["requests"].clear()
    assert task.to_custom() == before
    before["x"]["y"].append(3)
    assert task.to_custom() != before
    entries = [*task.worker_replicas.resources.requests]
    resources = Resources(requests=entries)
    entries.clear()
    assert resources == task.worker_replicas.resources


@pytest.mark.parametrize("writer", WRITERS, ids=[writer["writer"] for writer in WRITERS])
def test_what_a_released_writer_wrote_keeps_its_meaning(writer):
    custom, version = writer["custom"], writer["version"]
    task = Task.from_custom(custom, version)
    is_version_1 = "workers" not in custom
    assert meaning(task.to_custom(int(is_version_1)), int(is_version_1)) == meaning(custom, int(is_version_1))
    if not is_version_1:
        workers = meaning(task.to_custom(1), 1).worker_replicas.replicas
        assert workers == custom["workers"]
    assert task.violations() == ()


@pytest.mark.parametrize("case", CASES)
def test_what_the_real_reader_reads_is_read_without_loss_and_the_rest_is_refused(case):
    """The reader's own answers were recorded from the Go code of Flyte 1.16.8."""
    template = ParseDict(CASES[case], tasks_pb2.TaskTemplate())
    if case in UNREADABLE:
        with pytest.raises((PayloadError, UnsupportedVersionError)):
            Task.from_template(template, allow_violations=True)
        return
    task = Task.from_template(template, allow_violations=True)
    version = 0 if template.task_type_version == 0 and case != "v1_payload_under_v0" else 1
    original = MessageToDict(template.custom)
    assert meaning(task.to_custom(version), version) == meaning(original, version)
    assert Task.from_custom(task.to_custom(version), version, allow_violations=True) == task


def test_every_case_that_makes_no_sense_is_a_violation_in_the_normal_reading():
    refused = {}
    for case in CASES.keys() - UNREADABLE.keys():
        template = ParseDict(CASES[case], tasks_pb2.TaskTemplate())
        try:
            Task.from_template(template)
        except ValidationError as error:
            refused[case] = sorted(violation.path for violation in error.violations)
    workers = ["worker_replicas.replicas"]
    elastic = "elastic_config."
    assert refused == {
        "common_empty": [f"worker_replicas.{name}" for name in ("image", "replicas", "replicas", "restart_policy")],
        "common_partial": ["worker_replicas.image", "worker_replicas.restart_policy"],
        "el_backend_empty": [f"{elastic}rdzv_backend"],
        "el_backend_unicode": [f"{elastic}rdzv_backend"],
        "el_empty": [f"{elastic}{name}" for name in ("max_replicas", "min_replicas", "nproc_per_node", "rdzv_backend")],
        "el_min_gt_max": [f"{elastic}min_replicas"],
        "el_no_maxReplicas": [f"{elastic}max_replicas", f"{elastic}min_replicas"],
        "el_no_minReplicas": [f"{elastic}min_replicas"],
        "el_no_min_max": [f"{elastic}max_replicas", f"{elastic}min_replicas"],
        "el_no_rdzvBackend": [f"{elastic}rdzv_backend"],
        "el_nproc_0": [f"{elastic}nproc_per_node"],
        "res_bad_quantity": ["worker_replicas.resources.requests[0].value"],
        "restart_number_9": ["worker_replicas.restart_policy"],
        "v0_empty_custom": ["workers"],
        "v0_payload_under_v1": ["worker_replicas"],
        "v0_workers_0": ["workers"],
        "v0_workers_neg": ["workers"],
        "v1_elastic_worker_0": workers,
        "v1_pytorch_workers_0": workers,
        "v1_worker_0": workers,
        "v1_worker_neg": workers,
    }
