"""The helpers against bare protobuf: reading and writing a typical template, and the import."""

from flyteidl.core import tasks_pb2
from flyteidl.plugins.kubeflow import pytorch_pb2
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Struct
from rows import alternate, header, python, row

from flyte_torchrun.contract import (
    CleanPodPolicy,
    DistributedPyTorchTrainingTask,
    ElasticConfig,
    ReplicaSpec,
    Resources,
    RestartPolicy,
    RunPolicy,
)

BATCH = 200
TYPICAL = DistributedPyTorchTrainingTask(
    worker_replicas=ReplicaSpec(
        replicas=4,
        image="registry.example/training:1",
        resources=Resources.from_quantities(
            requests={"cpu": "8", "memory": "64Gi", "gpu": "4"}, limits={"cpu": "8", "memory": "64Gi", "gpu": "4"}
        ),
        restart_policy=RestartPolicy.ON_FAILURE,
    ),
    run_policy=RunPolicy(clean_pod_policy=CleanPodPolicy.RUNNING, ttl_seconds_after_finished=600, backoff_limit=3),
    elastic_config=ElasticConfig(min_replicas=2, max_replicas=4, nproc_per_node=4, max_restarts=3),
)
TEMPLATE = TYPICAL.to_template(tasks_pb2.TaskTemplate(type="pytorch"))


def helpers():
    for _ in range(BATCH):
        DistributedPyTorchTrainingTask.from_template(TEMPLATE).to_template(TEMPLATE)


def bare_protobuf():
    for _ in range(BATCH):
        message = ParseDict(MessageToDict(TEMPLATE.custom), pytorch_pb2.DistributedPyTorchTrainingTask())
        template = tasks_pb2.TaskTemplate()
        template.CopyFrom(TEMPLATE)
        custom = Struct()
        custom.update(MessageToDict(message))
        template.custom.CopyFrom(custom)


if __name__ == "__main__":
    header("contract against bare protobuf", "ms")
    row("read and write a typical template", *alternate(helpers, bare_protobuf, 15), scale=1000 / BATCH)
    ours = python("-c", "import flyte_torchrun.contract")
    modules = "import flyteidl.plugins.kubeflow.pytorch_pb2, google.protobuf.json_format"
    row("import, in a fresh process", *alternate(ours, python("-c", modules), 15), scale=1000)
    first = "from flyte_torchrun.contract import *; ReplicaSpec(replicas=1).to_proto()"
    row(
        "import and first message, in a fresh process",
        *alternate(python("-c", first), python("-c", modules), 15),
        scale=1000,
    )
