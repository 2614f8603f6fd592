"""The Flyte 2 task behind the configuration: its template, and its run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# The modules of flyte.extend, which itself loads image builders and takes a fifth of a second.
from flyte._task import AsyncFunctionTaskTemplate
from flyte._task_plugins import TaskPluginRegistry
from flyte.models import SerializationContext

from flyte_torchrun.flyte.config import Elastic

__all__ = ["TorchrunTask"]


@dataclass(kw_only=True)
class TorchrunTask(AsyncFunctionTaskTemplate):
    """A task whose function runs in the ranks of a worker group.

    Several nodes make a `pytorch` task of version 1, one node a plain `python-task`; both have the payload in `custom`.
    """

    task_type: str = "pytorch"
    task_type_version: int = 1
    plugin_config: Elastic
    debuggable: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.task_type = "python-task" if self.plugin_config.job().is_one_node else "pytorch"

    def custom_config(self, sctx: SerializationContext) -> dict[str, Any]:
        """The payload as it goes into the task template's `custom`."""
        payload = self.plugin_config.job().payload(self._gpus())
        return {} if payload is None else payload.to_custom(version=1)

    async def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the task function in its ranks; see `flyte_torchrun.flyte.run`."""
        from flyte_torchrun.flyte.run import run

        return await run(self, args, kwargs)

    def _gpus(self) -> int:
        """GPUs that a node requests, for a symbolic nproc_per_node on the wire."""
        device = None if self.resources is None else self.resources.get_device()
        worker = self.plugin_config.job().worker_gpus()
        return int(worker) if worker is not None else 0 if device is None else device.quantity


TaskPluginRegistry.register(Elastic, TorchrunTask)
