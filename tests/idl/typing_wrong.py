"""A program with one mistake in each marked line, for type checkers."""

from flyteidl.plugins.kubeflow import common_pb2, pytorch_pb2
from flyteidl_torchrun.v1 import launch_pb2

from flyte_torchrun.contract import ElasticConfig, RestartPolicy

elastic = pytorch_pb2.ElasticConfig(nproc_per_node="gpu")  # wrong
task = pytorch_pb2.DistributedPyTorchTrainingTask(workers=2)  # wrong
policy = common_pb2.RunPolicy(clean_pod_policy="ALL")  # wrong
name: int = pytorch_pb2.ElasticConfig().rdzv_backend  # wrong
present = launch_pb2.LaunchOptions().HasField("preload")  # wrong
options = launch_pb2.LaunchOptions(start_method=1.5)  # wrong
helper = ElasticConfig(min_replicas=1, max_replicas=2)  # wrong
restart = RestartPolicy.SOMETIMES  # wrong
