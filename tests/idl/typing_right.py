"""A program that uses every message and enum, for type checkers."""

from flyteidl.core import tasks_pb2
from flyteidl.plugins import common_pb2, pytorch_pb2
from flyteidl.plugins.kubeflow import common_pb2 as kubeflow_common_pb2
from flyteidl.plugins.kubeflow import pytorch_pb2 as kubeflow_pytorch_pb2
from flyteidl_torchrun.v1 import launch_pb2
from google.protobuf import duration_pb2

from flyte_torchrun.contract import DistributedPyTorchTrainingTask, ElasticConfig, ReplicaSpec

policy: common_pb2.RestartPolicy.ValueType = common_pb2.RESTART_POLICY_ALWAYS
clean: kubeflow_common_pb2.CleanPodPolicy.ValueType = kubeflow_common_pb2.CLEANPOD_POLICY_ALL
moved: kubeflow_common_pb2.RestartPolicy.ValueType = kubeflow_common_pb2.RESTART_POLICY_NEVER
resources = tasks_pb2.Resources(requests=[tasks_pb2.Resources.ResourceEntry(name=tasks_pb2.Resources.CPU, value="1")])
common = common_pb2.CommonReplicaSpec(replicas=1, image="i", resources=resources, restart_policy=policy)
replica = kubeflow_pytorch_pb2.DistributedPyTorchTrainingReplicaSpec(replicas=1, restart_policy=policy, common=common)
elastic = kubeflow_pytorch_pb2.ElasticConfig(rdzv_backend="c10d", min_replicas=1, max_replicas=2, nproc_per_node=1)
run_policy = kubeflow_common_pb2.RunPolicy(clean_pod_policy=clean, backoff_limit=1)
task = kubeflow_pytorch_pb2.DistributedPyTorchTrainingTask(
    worker_replicas=replica, master_replicas=replica, run_policy=run_policy, elastic_config=elastic
)
old = pytorch_pb2.DistributedPyTorchTrainingTask(workers=2, elastic_config=pytorch_pb2.ElasticConfig(max_restarts=3))
start: launch_pb2.StartMethod.ValueType = launch_pb2.START_METHOD_SPAWN
symbol: launch_pb2.SymbolicNprocPerNode.ValueType = launch_pb2.SYMBOLIC_NPROC_PER_NODE_GPU
options = launch_pb2.LaunchOptions(
    start_method=start,
    symbolic_nproc_per_node=symbol,
    omp_num_threads=1,
    timeout=duration_pb2.Duration(seconds=1),
    preload=["json"],
)
limits: int = task.elastic_config.max_restarts + old.workers
has: bool = options.HasField("omp_num_threads")
helper: DistributedPyTorchTrainingTask = DistributedPyTorchTrainingTask.from_proto(task)
built = DistributedPyTorchTrainingTask(
    worker_replicas=ReplicaSpec(replicas=2),
    elastic_config=ElasticConfig(min_replicas=1, max_replicas=2, nproc_per_node=8),
)
template: tasks_pb2.TaskTemplate = built.to_template(tasks_pb2.TaskTemplate())
