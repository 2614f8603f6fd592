"""Distributed PyTorch for the Flyte 2 SDK: `plugin_config=Elastic(...)` of a `flyte.TaskEnvironment`.

Whoever uses `flyteplugins.pytorch` changes the import.
"""

from flyte_torchrun.contract import CleanPodPolicy, RestartPolicy
from flyte_torchrun.flyte import task as _task  # registers the task for its configuration
from flyte_torchrun.flyte.config import Elastic, Replica, RunPolicy

__all__ = ["CleanPodPolicy", "Elastic", "Replica", "RestartPolicy", "RunPolicy"]

del _task
