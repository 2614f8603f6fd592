"""What runs in a rank: the task function, in the Flyte context that it would have without ranks."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import flyte
import flyte.types
from flyte._context import ContextData, internal_ctx
from flyte._initialize import get_init_config, is_initialized
from flyte.models import TaskContext
from flyte.report import Report
from flyte.syncify import syncify

__all__ = ["RankContext", "RankOutput", "run_task_function"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankContext:
    """The part of the SDK's context that a rank takes over from the process that launches it, as plain data.

    Attributes:
        data: what a task can see (group, task, raw data path, metadata); clients are made anew in the rank.
        settings: what `flyte.init` was told, as far as it needs no client.
    """

    data: ContextData
    settings: Mapping[str, Any]

    @classmethod
    def current(cls, task: TaskContext) -> RankContext:
        """That of the task which runs in this process."""
        settings = {}
        if is_initialized():
            config = get_init_config()
            names = ("org", "project", "domain", "root_dir", "storage")
            settings = {name: getattr(config, name) for name in names}
        data = internal_ctx().data
        # A checkpoint's helper and other things that the SDK keeps for this process are made anew, too.
        changes: dict[str, Any] = {"task_context": replace(task, data={})}
        if hasattr(data, "tracker"):
            changes["tracker"] = None
        return cls(data=data.replace(**changes), settings=settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOutput:
    """What comes back from rank 0: the task function's return value, and its report."""

    value: Any
    report: Report


def _revive_background_loop() -> None:
    """The SDK starts a thread for its event loop when it is imported; a forked rank has the loop and not the thread."""
    loop = syncify._bg_loop
    if not loop.thread.is_alive():
        type(loop).__init__(loop, name=loop.thread.name)


def run_task_function(
    context: RankContext, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> RankOutput:
    """Runs the task function in this rank, in the given context."""
    _revive_background_loop()
    if context.settings:
        flyte.init(**context.settings)
    task = context.data.task_context
    assert task is not None
    with internal_ctx().replace_task_context(task) as current:
        current._data = context.data
        value = function(*args, **kwargs)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
        return RankOutput(value=value, report=task.report)
