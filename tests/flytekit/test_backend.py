"""What our tasks set arrives at every backend that can carry it."""

import pytest
from flytekit import Resources

from flyte_torchrun.backend import render, render_all
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
from flyte_torchrun.schema import READERS
from tests.flytekit.test_template import template_of

RUN_POLICY = RunPolicy(clean_pod_policy=CleanPodPolicy.ALL, ttl_seconds_after_finished=60, backoff_limit=2)
CARRIES = [reader for reader in READERS if reader.is_version_read and reader.is_linked]


@pytest.mark.parametrize("reader", CARRIES, ids=lambda reader: reader.name)
def test_an_elastic_task_arrives(reader):
    config = Elastic(nnodes="2:4", nproc_per_node=8, max_restarts=0, run_policy=RUN_POLICY, increase_shared_mem=False)
    template = template_of(config, requests=Resources(cpu="1", mem="500Mi"))
    # Flyte 1.7 writes each of its own variables twice, which operator 1.9's definition refuses.
    for rendering in render_all(template, flyte=reader.last, operator="<1.9" if reader.name == "R3a" else ">=1.5"):
        assert rendering.refusal is None
        spec = rendering.job["spec"]
        assert spec["elasticPolicy"] == {
            "minReplicas": 2,
            "maxReplicas": 4,
            "nProcPerNode": 8,
            "maxRestarts": 0,
            "rdzvBackend": "c10d",
        }
        assert spec["runPolicy"] == {"cleanPodPolicy": "All", "ttlSecondsAfterFinished": 60, "backoffLimit": 2}
        assert rendering.pod_count == 4
        container = spec["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
        # Readers of Flyte 1.7 and 1.8 wipe what the task asks for, unless the replica asks itself.
        expected = {} if reader.name in ("R3a", "R3b") else {"cpu": "1", "memory": "500Mi"}
        assert container["resources"].get("requests", {}) == expected


@pytest.mark.parametrize("reader", CARRIES, ids=lambda reader: reader.name)
@pytest.mark.parametrize("elastic", [None, ElasticPolicy(rdzv_backend="c10d", min_replicas=1, max_replicas=2)])
def test_a_task_with_workers_arrives(reader, elastic):
    config = PyTorch(
        worker=Worker(
            replicas=2,
            image="w:1",
            requests=Resources(cpu="500m", mem="100Mi"),
            restart_policy=RestartPolicy.FAILURE,
        ),
        **({"master": Master(restart_policy=RestartPolicy.ALWAYS)} if elastic is None else {}),
        run_policy=RUN_POLICY,
        elastic_policy=elastic,
        increase_shared_mem=False,
    )
    spec = render(template_of(config), flyte=reader.last).job["spec"]
    worker = spec["pytorchReplicaSpecs"]["Worker"]
    container = worker["template"]["spec"]["containers"][0]
    assert (worker["replicas"], worker["restartPolicy"], container["image"]) == (2, "OnFailure", "w:1")
    assert container["resources"]["requests"] == {"cpu": "500m", "memory": "100Mi"}
    assert spec["runPolicy"] == {"cleanPodPolicy": "All", "ttlSecondsAfterFinished": 60, "backoffLimit": 2}
    if elastic is None:
        assert spec["pytorchReplicaSpecs"]["Master"]["restartPolicy"] == "Always"
        assert "elasticPolicy" not in spec
    else:
        assert set(spec["pytorchReplicaSpecs"]) == {"Worker"}
        assert (spec["elasticPolicy"]["minReplicas"], spec["elasticPolicy"]["maxReplicas"]) == (1, 2)
