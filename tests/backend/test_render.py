"""What `render` shows beside the job: pods, refusals at each gate, notes, a table and YAML."""

import dataclasses
import subprocess
import sys

import pytest
import yaml
from flyteidl.core import tasks_pb2
from flyteidl2.core import tasks_pb2 as tasks2_pb2
from google.protobuf import json_format

from flyte_torchrun.backend import Note, Overrides, PlatformDefaults, Refusal, render, render_all
from flyte_torchrun.contract import (
    CleanPodPolicy,
    DistributedPyTorchTrainingTask,
    ElasticConfig,
    ReplicaSpec,
    ResourceEntry,
    ResourceName,
    Resources,
    RestartPolicy,
    RunPolicy,
)
from flyte_torchrun.schema import OPERATORS, READERS, ReleaseError

CONTAINER = {"image": "img:1", "args": ["pyflyte-execute"], "resources": {"requests": [{"name": "GPU", "value": "1"}]}}


def template(custom, version=1, **others):
    return {"type": "pytorch", "taskTypeVersion": version, "custom": custom, "container": CONTAINER, **others}


ELASTIC = template(
    {
        "workerReplicas": {"replicas": 2},
        "elasticConfig": {
            "rdzvBackend": "c10d",
            "minReplicas": 1,
            "maxReplicas": 3,
            "nprocPerNode": 4,
            "maxRestarts": 0,
        },
    }
)
PLAIN = template({"workerReplicas": {"replicas": 1, "resources": {}}, "masterReplicas": {"resources": {}}})


def test_the_pods_of_an_elastic_job_know_their_rendezvous():
    pods = render(ELASTIC, overrides=Overrides(name="job")).pods
    assert [(pod.name, pod.role, pod.index, pod.node_rank) for pod in pods] == [
        ("job-worker-0", "Worker", 0, None),
        ("job-worker-1", "Worker", 1, None),
    ]
    assert {key: value for key, value in pods[1].environment.items() if key.startswith("PET_")} == {
        "PET_RDZV_ENDPOINT": "job-worker-0:23456",
        "PET_RDZV_BACKEND": "c10d",
        "PET_NNODES": "1:3",
        "PET_MAX_RESTARTS": "0",
        "PET_NPROC_PER_NODE": "4",
    }
    assert pods[1].environment["_F_WN"] == "job-worker-1"
    assert [container["name"] for container in pods[0].containers] == ["pytorch"]
    assert pods[0].labels["training.kubeflow.org/job-role"] == "master"


def test_the_pods_of_a_job_with_a_master_know_their_rank():
    pods = render(PLAIN, operator="1.7", overrides=Overrides(name="job")).pods
    assert [(pod.name, pod.node_rank, pod.environment["RANK"], pod.environment["WORLD_SIZE"]) for pod in pods] == [
        ("job-master-0", 0, "0", "2"),
        ("job-worker-0", 1, "1", "2"),
    ]
    assert [[each["name"] for each in pod.init_containers] for pod in pods] == [[], ["init-pytorch"]]
    assert "nslookup job-master-0" in pods[1].init_containers[0]["command"][2]


@pytest.mark.parametrize(
    ("given", "flyte", "operator", "expected"),
    [
        (
            template({"workerReplicas": {"replicas": "two"}}),
            "1.16.8",
            "1.9.3",
            Refusal(
                "reader",
                "BadTaskSpecification",
                (
                    '[BadTaskSpecification] invalid TaskSpecification [{"workerReplicas":{"replicas":"two"}}], Err:'
                    " [invalid character 'w' in literal true (expecting 'r')]",
                ),
            ),
        ),
        (template({}), "1.14", "1.9.3", Refusal("reader", None, ("number of workers must be greater than 0",))),
        (
            {**ELASTIC, "container": {**CONTAINER, "env": [{"key": "A", "value": "1"}, {"key": "A", "value": "2"}]}},
            "1.16.8",
            "1.9.3",
            Refusal(
                "api server",
                "Invalid",
                (
                    "spec.pytorchReplicaSpecs[Worker].template.spec.containers[0].env[1]: Duplicate value: "
                    'map[string]interface {}{"name":"A"}',
                ),
            ),
        ),
        (
            PLAIN,
            "1.8",
            "1.8",
            Refusal("operator", None, ("spec.pytorchReplicaSpecs[Master].replicas: Forbidden: must be 1",)),
        ),
    ],
)
def test_a_refusal_names_the_gate_and_has_the_backends_words(given, flyte, operator, expected):
    rendering = render(given, flyte=flyte, operator=operator)
    assert (rendering.refusal, rendering.pods, rendering.pod_count) == (expected, (), 0)
    assert (rendering.job is None) == (expected.gate == "reader")
    for message in expected.messages:
        assert message in rendering.to_table()


def test_an_operator_that_only_logs_its_errors_goes_on():
    given = {**ELASTIC, "container": {"args": ["x"]}}
    old, new = render(given, operator="1.5"), render(given, operator="1.7")
    assert (old.refusal, len(old.pods)) == (None, 2)
    assert old.warnings == ("PyTorchJobSpec is not valid: Image is undefined in the container of Worker",)
    assert new.refusal == Refusal("operator", None, old.warnings)


def test_a_worker_too_many_is_made_and_deleted_over_and_over():
    rendering = render(PLAIN, flyte="1.3", operator="1.7", overrides=Overrides(name="job"))
    assert [pod.name for pod in rendering.pods] == ["job-master-0", "job-worker-0"]
    assert rendering.deleted_next == ("job-worker-0",)
    assert (
        Note("taskTypeVersion", "changed", "it is not looked at: the payload is read as version 0") in rendering.notes
    )
    assert "deleted again at the next look: job-worker-0" in rendering.to_table()


def test_notes_say_what_does_not_arrive_and_where():
    common = {"replicas": 2, "image": "w:1", "restartPolicy": "RESTART_POLICY_ALWAYS"}
    custom = {
        "workerReplicas": {"replicas": 4, "common": common},
        "masterReplicas": {"replicas": 3},
        "runPolicy": {"backoffLimit": 0, "ttlSecondsAfterFinished": 5},
        "elasticConfig": {"nprocPerNode": 2, "min_replicas": 1, "minReplicas": 2},
        "torchrun": {"startMethod": "spawn"},
    }
    notes = {str(note).split(": ")[0]: note.effect for note in render(template(custom)).notes}
    assert notes == {
        "torchrun": "dropped",
        "elasticConfig.min_replicas": "dropped",
        "elasticConfig.maxReplicas": "changed",
        "elasticConfig.maxRestarts": "changed",
        "elasticConfig.rdzvBackend": "changed",
        "masterReplicas": "dropped",
        "masterReplicas.replicas": "changed",
        "runPolicy.backoffLimit": "dropped",
        "workerReplicas.replicas": "dropped",
    }
    older = {note.path for note in render(template(custom), flyte="1.12").notes}
    assert "workerReplicas.common" in older
    assert "workerReplicas.replicas" not in older


def test_wiped_and_replaced_resources_are_told():
    wiped = render(template({"workerReplicas": {"replicas": 1}}), flyte="1.8").notes
    assert Note("workerReplicas.resources", "changed", "unset: all that the task asks for is wiped") in wiped
    gpu = {"workerReplicas": {"replicas": 1, "resources": {"limits": [{"name": "GPU", "value": "1"}]}}}
    texts = [note.text for note in render(template(gpu), flyte="1.16.8").notes]
    assert texts == [
        "cpu is not in it, and becomes the platform's 2, whatever the task asks",
        "memory is not in it, and becomes the platform's 200Mi, whatever the task asks",
    ]
    assert render(template(gpu), flyte="1.14").notes == ()


@pytest.mark.parametrize("flyte", ["2.0.7", "2.0.23"])
def test_a_release_without_the_plugin_runs_one_plain_pod(flyte):
    rendering = render(ELASTIC, flyte=flyte, overrides=Overrides(name="job"))
    assert (rendering.job, [pod.name for pod in rendering.pods], rendering.refusal) == (None, ["job"], None)
    assert [note.effect for note in rendering.notes] == ["dropped"]
    assert "RANK" not in rendering.pods[0].environment
    assert yaml.safe_load(rendering.to_yaml())["kind"] == "Pod"


def test_a_task_of_another_type_runs_one_plain_pod_anywhere():
    for rendering in render_all({**ELASTIC, "type": "python-task"}):
        assert (rendering.job, rendering.pod_count, rendering.refusal) == (None, 1, None)


def test_yaml_is_the_job_again():
    rendering = render(ELASTIC)
    assert yaml.safe_load(rendering.to_yaml()) == rendering.job
    refused = render(template({}), flyte="1.14")
    with pytest.raises(ValueError, match="nothing to write: reader: number of workers must be greater than 0"):
        refused.to_yaml()


def test_a_table_shows_what_the_ranks_launcher_gets_to_know():
    lines = render(ELASTIC, overrides=Overrides(name="job")).to_table().splitlines()
    assert lines[0] == "Flyte 1.16.8 (R9b), training-operator 1.9.3"
    assert lines[1].split() == [
        *("pod", "image", "PET_NNODES", "PET_NPROC_PER_NODE", "PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT"),
        "PET_MAX_RESTARTS",
    ]
    assert lines[3].split() == ["job-worker-1", "img:1", "1:3", "4", "c10d", "job-worker-0:23456", "0"]


def test_a_job_with_very_many_pods_is_counted_and_not_listed_whole():
    many = template({**ELASTIC["custom"], "workerReplicas": {"replicas": 100_000}})
    rendering = render(many)
    assert (len(rendering.pods), rendering.pod_count) == (256, 100_000)
    assert "... 100000 pods in all" in rendering.to_table()


def test_a_range_renders_every_reader_and_every_operator_in_it():
    everything = render_all(ELASTIC)
    assert len(everything) == len(READERS) * len(OPERATORS)
    some = render_all(ELASTIC, flyte=">=1.8,<1.11", operator="1.8")
    assert [(one.flyte, one.reader.name, one.operator) for one in some] == [
        ("1.8.1", "R3b", "1.8.1"),
        ("1.9.37", "R4a", "1.8.1"),
        ("1.10.6-b0", "R4b", "1.8.1"),
        ("1.10.7", "R5a", "1.8.1"),
    ]
    assert some[-1] == render(ELASTIC, flyte="1.10", operator="1.8")


def test_messages_of_both_flytes_and_their_json_are_taken():
    one = json_format.ParseDict(ELASTIC, tasks_pb2.TaskTemplate())
    two = tasks2_pb2.TaskTemplate.FromString(one.SerializeToString())
    before = one.SerializeToString(deterministic=True)
    assert render(one) == render(two) == render(ELASTIC)
    assert one.SerializeToString(deterministic=True) == before
    for wrong in (None, "x", tasks_pb2.Resources(), {"type": 3}, {"taskTypeVersion": "x"}):
        with pytest.raises(TypeError, match="template: "):
            render(wrong)
    with pytest.raises(ReleaseError):
        render(ELASTIC, flyte="1.16.9")


def test_a_platform_and_an_execution_must_make_sense():
    with pytest.raises(ValueError, match=r"limits\['cpu'\]: 'two' is not allowed; allowed: a Kubernetes quantity"):
        PlatformDefaults(limits={"cpu": "two", "memory": "1Gi"})
    with pytest.raises(ValueError, match=r"requests\['cpu'\]: 1 is not allowed"):
        Overrides(requests={"cpu": 1})
    assert dataclasses.replace(PlatformDefaults(), namespace="x").namespace == "x"


def test_what_an_execution_adds_is_in_the_pods():
    overrides = Overrides(
        name="e-n0-1",
        requests={"cpu": "1"},
        container_image="over:1",
        environment={"Z": "1", "B": ""},
        labels={"team": "x"},
        attempt=1,
        project="p",
        domain="d",
        execution="e",
        paths={"output_prefix": "s3://mine"},
    )
    given = {**ELASTIC, "container": {**CONTAINER, "args": ["{{.outputPrefix}}", "{{.input}}"]}}
    [pod, _] = render(given, overrides=overrides).pods
    assert pod.containers[0]["args"] == ["s3://mine", "s3://bucket/input/inputs.pb"]
    assert pod.containers[0]["image"] == "over:1"
    assert pod.containers[0]["resources"]["requests"]["cpu"] == "1"
    assert (pod.environment["Z"], pod.environment["B"], pod.environment["FLYTE_ATTEMPT_NUMBER"]) == ("1", "", "1")
    assert pod.environment["FLYTE_INTERNAL_EXECUTION_ID"] == "e"
    assert pod.labels["team"] == "x"


def helper(**settings):
    """What a person sets on purpose, all of it."""
    asked = Resources(requests=(ResourceEntry(name=ResourceName.CPU, value="500m"),))
    return DistributedPyTorchTrainingTask(
        worker_replicas=ReplicaSpec(replicas=3, image="w:1", resources=asked, restart_policy=RestartPolicy.ON_FAILURE),
        run_policy=RunPolicy(
            clean_pod_policy=CleanPodPolicy.ALL,
            ttl_seconds_after_finished=60,
            active_deadline_seconds=90,
            backoff_limit=2,
        ),
        **settings,
    )


# From here on the schema has them.
CARRIES = [reader for reader in READERS if reader.is_version_read and reader.is_linked]


@pytest.mark.parametrize("reader", CARRIES, ids=lambda reader: reader.name)
def test_what_a_helper_sets_arrives_on_every_reader_that_can_carry_it(reader):
    elastic = ElasticConfig(rdzv_backend="c10d", min_replicas=1, max_replicas=3, nproc_per_node=2, max_restarts=0)
    empty = json_format.ParseDict({"container": CONTAINER}, tasks_pb2.TaskTemplate())
    rendering = render(helper(elastic_config=elastic).to_template(empty), flyte=reader.last)
    spec = rendering.job["spec"]
    worker = spec["pytorchReplicaSpecs"]["Worker"]
    container = worker["template"]["spec"]["containers"][0]
    assert (worker["replicas"], worker["restartPolicy"], container["image"]) == (3, "OnFailure", "w:1")
    assert container["resources"]["requests"]["cpu"] == "500m"
    assert spec["runPolicy"] == {
        "cleanPodPolicy": "All",
        "ttlSecondsAfterFinished": 60,
        "activeDeadlineSeconds": 90,
        "backoffLimit": 2,
    }
    assert spec["elasticPolicy"] == {
        "rdzvBackend": "c10d",
        "minReplicas": 1,
        "maxReplicas": 3,
        "nProcPerNode": 2,
        "maxRestarts": 0,
    }
    for operator in OPERATORS:
        pods = render(helper(elastic_config=elastic).to_template(empty), flyte=reader.last, operator=operator.last)
        if has_variables_twice(reader, operator):
            assert pods.refusal.gate == "api server"
        else:
            assert (pods.refusal, pods.pod_count) == (None, 3)


def has_variables_twice(reader, operator):
    """Flyte 1.7 writes each of its own twice, which operator 1.9's definition refuses."""
    return reader.decorates_containers_twice and operator.first == "1.9.0"


def test_nothing_that_is_not_needed_is_imported():
    program = (
        "import sys; from flyte_torchrun.backend import render; from flyte_torchrun.compat import diff;"
        "render({'type': 'pytorch', 'custom': {'workers': 1}, 'container': {'image': 'x'}});"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'torch', 'flytekit', 'flyte', 'grpc', 'yaml'}))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "[]\n"
