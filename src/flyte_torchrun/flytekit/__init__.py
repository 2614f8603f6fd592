"""The flytekit task: `from flyte_torchrun.flytekit import Elastic`, then `@task(task_config=Elastic(...))`.

Whoever uses `flytekitplugins.kfpytorch` changes that one import. Importing this package and registering tasks needs no
torch; running one does.
"""

from flyte_torchrun.contract import CleanPodPolicy, RestartPolicy, RunPolicy
from flyte_torchrun.flytekit.config import Elastic, ElasticPolicy, Master, PyTorch, Worker
from flyte_torchrun.flytekit.task import TorchrunTask

__all__ = [
    "CleanPodPolicy",
    "Elastic",
    "ElasticPolicy",
    "Master",
    "PyTorch",
    "RestartPolicy",
    "RunPolicy",
    "TorchrunTask",
    "Worker",
]
