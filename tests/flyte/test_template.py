"""The template: equal to what the SDK's own plugin writes, plus what that one loses."""

from pathlib import Path

import flyte
import pytest
from flyte._internal.runtime.task_serde import translate_task_to_wire
from flyte.models import SerializationContext
from google.protobuf import json_format

from flyte_torchrun.compat import Verdict, check
from flyte_torchrun.contract import DistributedPyTorchTrainingTask, ValidationError
from flyte_torchrun.flyte import CleanPodPolicy, Elastic, Replica, RestartPolicy, RunPolicy

CONTEXT = SerializationContext(version="1", project="p", domain="d", org="o", root_dir=Path(__file__).parent)


def template(elastic, name="e", **settings):
    environment = flyte.TaskEnvironment(
        name=name, image=flyte.Image.from_base("x:1"), plugin_config=elastic, **settings
    )

    @environment.task
    async def train(x: int) -> int:
        return x

    return translate_task_to_wire(train, CONTEXT).task_template


def custom(template):
    return json_format.MessageToDict(template.custom)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("settings", "policy"),
    [
        ({"nnodes": 2, "nproc_per_node": 4}, None),
        ({"nnodes": "2:4", "nproc_per_node": 1, "max_restarts": 5}, {"ttl_seconds_after_finished": 60}),
        ({"nnodes": 1, "nproc_per_node": 2}, None),
        ({"nnodes": 3, "nproc_per_node": 2, "rdzv_backend": "etcd"}, {"clean_pod_policy": "all", "backoff_limit": 2}),
        ({"nnodes": 2, "nproc_per_node": 2}, {"clean_pod_policy": "Running", "active_deadline_seconds": 9}),
    ],
)
def test_it_means_what_the_peers_template_means(settings, policy):
    from flyteplugins.pytorch import task as peer

    ours = template(Elastic(**settings, run_policy=policy and RunPolicy(**policy)))
    theirs = template(peer.Elastic(**settings, run_policy=policy and peer.RunPolicy(**policy)))
    assert (ours.type, ours.task_type_version) == (theirs.type, theirs.task_type_version)
    mine, peers = (DistributedPyTorchTrainingTask.from_template(each) for each in (ours, theirs))
    assert (mine.worker_replicas, mine.elastic_config, mine.run_policy) == (
        peers.worker_replicas,
        peers.elastic_config,
        peers.run_policy,
    )
    for each in (ours, theirs):
        each.custom.Clear()
    assert ours.container.args == theirs.container.args


def test_what_the_peer_loses_is_there_and_reads_back():
    elastic = Elastic(
        nnodes="2:4",
        nproc_per_node="auto",
        max_restarts=0,
        start_method="spawn",
        preload=("json",),
        timeout=60,
        run_policy=RunPolicy(clean_pod_policy=CleanPodPolicy.NONE, ttl_seconds_after_finished=0),
        replica=Replica(image="w:1", resources=flyte.Resources(cpu=2, gpu=1), restart_policy=RestartPolicy.ON_FAILURE),
    )
    written = template(elastic, resources=flyte.Resources(cpu=1, gpu=8))
    found = custom(written)
    assert found["elasticConfig"]["maxRestarts"] == 0
    assert found["runPolicy"] == {"cleanPodPolicy": "CLEANPOD_POLICY_NONE", "ttlSecondsAfterFinished": 0}
    assert found["workerReplicas"] == {
        "replicas": 4,
        "image": "w:1",
        "resources": {"requests": [{"name": "CPU", "value": "2"}, {"name": "GPU", "value": "1"}]},
        "restartPolicy": "RESTART_POLICY_ON_FAILURE",
    }
    assert found["elasticConfig"]["nprocPerNode"] == 1
    task = DistributedPyTorchTrainingTask.from_template(written)
    assert task.launch_options.preload == ("json",)
    assert task.launch_options.symbolic_nproc_per_node.name == "AUTO"
    assert custom(task.to_template(written)) == found


def test_a_symbolic_number_of_ranks_is_written_as_the_gpus_of_the_task():
    written = template(Elastic(nnodes=2, nproc_per_node="gpu"), resources=flyte.Resources(gpu="T4:4"))
    assert custom(written)["elasticConfig"]["nprocPerNode"] == 4


@pytest.mark.parametrize("nnodes", [1, "1", "1:1"])
def test_one_node_is_no_pytorch_job(nnodes):
    written = template(Elastic(nnodes=nnodes, nproc_per_node=2))
    assert (written.type, custom(written)["elasticConfig"]["nprocPerNode"]) == ("python-task", 2)


def test_flyte_2_honours_it_and_the_releases_without_a_plugin_run_one_pod():
    written = template(Elastic(nnodes=2, nproc_per_node=2))
    assert check(written, flyte="2.0.43", operator="1.9").verdict is Verdict.HONOURED
    [finding] = check(written, flyte="2.0.7", operator="1.9").findings
    assert "one plain pod" in finding.reason


def test_a_run_policy_that_the_peer_does_not_know_is_refused():
    assert RunPolicy(clean_pod_policy="all").clean_pod_policy is CleanPodPolicy.ALL
    with pytest.raises(ValidationError, match="clean_pod_policy: 'some' is not allowed; allowed: None, all, Running"):
        RunPolicy(clean_pod_policy="some")


def test_all_violations_are_told_at_once():
    with pytest.raises(ValidationError) as caught:
        Elastic(
            nnodes="4:2",
            nproc_per_node=0,
            start_method="thread",
            timeout=-1,
            rdzv_configs={"x": 1},
            shared_memory_size="1Gi",
        )
    names = {violation.path for violation in caught.value.violations}
    assert {"nnodes", "start_method", "rdzv_configs.x", "shared_memory_size"} <= names
