"""Writing a task for the releases that have to read it."""

import pytest
from flyteidl.core import tasks_pb2
from google.protobuf import json_format

from flyte_torchrun.backend import render
from flyte_torchrun.compat import LossError, LossWarning, Verdict, check, for_target, to_template
from flyte_torchrun.contract import (
    CommonReplicaSpec,
    DistributedPyTorchTrainingTask,
    ElasticConfig,
    ReplicaSpec,
    Resources,
    RestartPolicy,
    RunPolicy,
)
from flyte_torchrun.schema import ReleaseError

CONTAINER = {"container": {"image": "x", "resources": {"requests": [{"name": "CPU", "value": "500m"}]}}}
EMPTY = json_format.ParseDict(CONTAINER, tasks_pb2.TaskTemplate())
ELASTIC = ElasticConfig(rdzv_backend="c10d", min_replicas=2, max_replicas=2, nproc_per_node=1, max_restarts=0)


def task(**settings):
    return DistributedPyTorchTrainingTask(**{"worker_replicas": ReplicaSpec(replicas=2), **settings})


def custom(template):
    return json_format.MessageToDict(template.custom)


@pytest.mark.parametrize(
    ("target", "version", "keys"),
    [
        ("flyte>=1.6,<2", 0, {"workers", "elasticConfig"}),
        ("flyte>=1.9", 1, {"workerReplicas", "elasticConfig"}),
        (">=1.9,<2", 1, {"workerReplicas", "elasticConfig"}),
        ("1.16.8", 1, {"workerReplicas", "elasticConfig"}),
        ("2.0.43", 1, {"workerReplicas", "elasticConfig"}),
    ],
)
def test_the_payload_is_what_all_of_the_target_reads(target, version, keys):
    written = to_template(task(elastic_config=ELASTIC), EMPTY, target=target)
    assert (written.task_type_version, set(custom(written))) == (version, keys)
    report = check(written, flyte=target.removeprefix("flyte"), operator="1.8")
    without_plugin = {"R10"}
    assert {each.verdict for each in report.findings if set(each.flyte) != without_plugin} <= {Verdict.ADVICE}
    assert EMPTY.type == ""  # the template that was given stays as it was


def test_what_only_the_newest_read_is_written_where_all_read_it():
    common = CommonReplicaSpec(replicas=2, image="w:1", resources=Resources(), restart_policy=RestartPolicy.ALWAYS)
    written = to_template(task(worker_replicas=ReplicaSpec(common=common)), EMPTY, target=">=1.9,<2")
    assert custom(written) == {
        "workerReplicas": {"replicas": 2.0, "image": "w:1", "restartPolicy": "RESTART_POLICY_ALWAYS"}
    }


def test_what_a_reader_would_wipe_is_written_in_the_replica_too():
    written = to_template(task(elastic_config=ELASTIC), EMPTY, target=">=1.8,<2")
    for flyte in ("1.8", "1.12", "1.16.8"):
        job = render(written, flyte=flyte).job
        container = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
        assert container["resources"]["requests"]["cpu"] == "500m"


def test_a_field_that_would_be_lost_raises_or_warns_with_the_same_findings():
    policy = task(run_policy=RunPolicy(backoff_limit=3))
    with pytest.raises(LossError, match=r"task: rejected by Flyte 1\.6\.0 to 1\.6\.2") as caught:
        to_template(policy, EMPTY, target=">=1.6,<2")
    with pytest.warns(LossWarning) as warned:
        to_template(policy, EMPTY, target=">=1.6,<2", on_loss="warn")
    assert [str(each.message) for each in warned] == [str(finding) for finding in caught.value.findings]
    zero = task(run_policy=RunPolicy(ttl_seconds_after_finished=0))
    with pytest.raises(LossError, match=r"runPolicy\.ttlSecondsAfterFinished: dropped by .* 0 reads as unset"):
        to_template(zero, EMPTY, target="1.16.8")
    with pytest.raises(ReleaseError):
        to_template(policy, EMPTY, target="flyte>=9")


def test_an_old_payload_is_written_anew_for_newer_releases():
    old = DistributedPyTorchTrainingTask(worker_replicas=ReplicaSpec(replicas=2)).to_template(EMPTY, version=0)
    written, findings = for_target(old, ">=1.10,<2")
    assert (written.task_type_version, custom(written), findings) == (1, {"workerReplicas": {"replicas": 2.0}}, ())
