"""What changes for a task between two platforms."""

import pytest

from flyte_torchrun.compat import Change, diff
from flyte_torchrun.schema import ReleaseError

CONTAINER = {"image": "img:1", "resources": {"limits": [{"name": "GPU", "value": "1"}]}}
ELASTIC = {
    "type": "pytorch",
    "taskTypeVersion": 1,
    "custom": {"workerReplicas": {"replicas": 2}, "elasticConfig": {"minReplicas": 2, "maxReplicas": 2}},
    "container": CONTAINER,
}
PLAIN = {**ELASTIC, "custom": {"workerReplicas": {"replicas": 1, "resources": {}}}}
WORKER = "spec.pytorchReplicaSpecs.Worker"


def by_path(changes):
    return {change.path: (change.before, change.after) for change in changes}


def test_nothing_changes_on_the_same_platform():
    assert diff(ELASTIC, flyte=("1.16.8", "1.16.8"), operator="1.8") == []
    assert diff(ELASTIC, flyte=("1.11.0", "1.12.0")) == []


def test_wiped_gpus_are_seen():
    changes = by_path(diff(ELASTIC, flyte=("1.8", "1.16.8")))
    container = f"{WORKER}.template.spec.containers[pytorch]"
    assert changes[f"{container}.resources.limits.nvidia.com/gpu"] == (None, "1")
    assert changes[f"{container}.resources"] == ({}, None)
    assert changes[f"{container}.env[_F_WN].fieldRef.fieldPath"] == (None, "metadata.name")
    assert changes[f"{container}.env[FLYTE_INTERNAL_NAME]"] == ("", None)
    assert f"{WORKER}.replicas" not in changes


def test_variables_that_come_twice_are_told_apart():
    changes = by_path(diff(ELASTIC, flyte=("1.7", "1.8"), operator="1.8"))
    assert {path.rpartition(".env[")[2] for path in changes} >= {
        "FLYTE_ATTEMPT_NUMBER#2]",
        "FLYTE_INTERNAL_EXECUTION_ID#2]",
    }


def test_what_an_operator_does_differently_is_in_the_pods():
    changes = diff(PLAIN, operator=("1.5", "1.8"), flyte="1.16.8")
    pod = "pods[execution-n0-0-worker-0]"
    assert Change(f"{pod}.env[PYTHONUNBUFFERED]", "0", "1") in changes
    assert Change(f"{pod}.env[PET_NODE_RANK]", None, "1") in changes
    assert str(changes[0]) == 'pods[execution-n0-0-master-0].env[PYTHONUNBUFFERED]: "0" -> "1"'


def test_a_refusal_is_a_change():
    changes = by_path(diff(PLAIN, flyte=("1.8", "1.16.8"), operator="1.9.3"))
    assert changes["refusal"] == ("operator: spec.pytorchReplicaSpecs[Master].replicas: Forbidden: must be 1", None)
    assert by_path(diff(ELASTIC, flyte=("1.16.8", "2.0.10")))["kind"] == (None, "Pod")


def test_two_releases_are_needed_or_one():
    with pytest.raises(ReleaseError, match=r"flyte: \('1', '2', '2'\) is not allowed; allowed: one release, or two"):
        diff(ELASTIC, flyte=("1", "2", "2"))
