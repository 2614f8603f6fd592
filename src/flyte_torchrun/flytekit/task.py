"""The flytekit tasks behind the configurations: their template, their pod, their run."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from flytekit import PodTemplate
from flytekit.configuration import SerializationSettings
from flytekit.core.promise import async_flyte_entity_call_handler, flyte_entity_call_handler
from flytekit.core.python_function_task import AsyncPythonFunctionTask
from flytekit.extend import TaskPlugins

from flyte_torchrun.flytekit.config import Elastic, PyTorch
from flyte_torchrun.flytekit.module_transformer import install_module_transformer
from flyte_torchrun.flytekit.shared_memory import with_shared_memory
from flyte_torchrun.plugin.job import Job

__all__ = ["TorchrunTask"]

Config = TypeVar("Config", Elastic, PyTorch)


class TorchrunTask(AsyncPythonFunctionTask[Config], Generic[Config]):
    """A task whose function runs in the ranks of a worker group.

    Its type, payload and pod are derived from `task_config` whenever they are asked for, so that
    `with_overrides(task_config=...)` changes all of them. Several nodes make a `pytorch` task of version 1, one node a
    plain `python-task`; both carry the payload in `custom`.
    """

    def __init__(self, task_config: Config, task_function: Callable[..., Any], **arguments: Any) -> None:
        self._user_pod_template: PodTemplate | None = None
        super().__init__(task_config=task_config, task_function=task_function, task_type_version=1, **arguments)
        install_module_transformer()

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """A coroutine function's task is awaited, any other is called, as in flytekit."""
        if inspect.iscoroutinefunction(self.task_function):
            return async_flyte_entity_call_handler(self, *args, **kwargs)
        return flyte_entity_call_handler(self, *args, **kwargs)

    @property
    def job(self) -> Job:
        """What the task's configuration means."""
        return self.task_config.job()

    @property
    def task_type(self) -> str:
        """`python-task` when the task's own pod is the whole group, else `pytorch`."""
        return "python-task" if self.job.is_one_node else "pytorch"

    @property
    def pod_template(self) -> PodTemplate | None:
        """The user's pod template, with a memory-backed /dev/shm in a copy unless that is off or set elsewhere."""
        job = self.job
        if not job.increase_shared_mem or self.shared_memory:
            return self._user_pod_template
        return with_shared_memory(self._user_pod_template, job.shared_memory_size)

    @pod_template.setter
    def pod_template(self, template: PodTemplate | None) -> None:
        self._user_pod_template = template

    def get_custom(self, settings: SerializationSettings) -> dict[str, Any]:
        """The payload as it goes into the task template's `custom`."""
        payload = self.job.payload(self._gpus())
        return {} if payload is None else payload.to_custom(version=1)

    def execute(self, **inputs: Any) -> Any:
        """Runs the task function in its ranks; see `flyte_torchrun.flytekit.run`."""
        from flyte_torchrun.flytekit.run import run

        install_module_transformer()
        return run(self.job, self.task_function, inputs)

    async def async_execute(self, *args: Any, **inputs: Any) -> Any:
        """The same for a caller with an event loop, which goes on meanwhile."""
        return await asyncio.to_thread(self.execute, **inputs)

    def _gpus(self) -> int:
        """GPUs that a node requests, for a symbolic nproc_per_node on the wire: the worker's, else the task's."""
        worker = self.job.worker_gpus()
        numbers = [worker, *(resources.gpu for resources in (self.resources.limits, self.resources.requests))]
        return next((int(str(number)) for number in numbers if number is not None), 0)


for _config in (Elastic, PyTorch):
    TaskPlugins.register_pythontask_plugin(_config, TorchrunTask)
