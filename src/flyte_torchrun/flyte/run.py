"""Running a task: from its configuration and its surroundings to a worker group, and back to one result."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import flyte.errors
from flyte import storage
from flyte._context import internal_ctx
from flyte._internal.runtime.io import error_path
from flyte.models import TaskContext

from flyte_torchrun.flyte import rank
from flyte_torchrun.flyte.rank import RankContext, run_task_function
from flyte_torchrun.launch import (
    LaunchError,
    LaunchPlan,
    LaunchResult,
    LaunchTerminatedError,
    LaunchTimeoutError,
    NodeLostError,
    RankError,
    RendezvousError,
    TimelineEvent,
    launch,
)
from flyte_torchrun.launch.rendezvous import is_host
from flyte_torchrun.plugin.plans import plan_of
from flyte_torchrun.plugin.timeline_page import NAME, render_timeline

if TYPE_CHECKING:
    from flyte_torchrun.flyte.task import TorchrunTask

__all__ = ["run"]

_log = logging.getLogger(__name__)
_NON_RECOVERABLE = "flyte.errors.NonRecoverableError"  # the first SDKs have none


async def run(task: TorchrunTask, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Runs the task function in the ranks that belong to this pod (or, locally, to the whole job).

    Returns:
        What global rank 0 returned.

    Raises:
        SystemExit: in a pod whose ranks write nothing: 0 where global rank 0 or the failed rank is in another pod, and
            143 where this pod is evicted, so that the backend tries again.
        Exception: the first real error of a rank: locally the user's own exception, in a pod a RuntimeUserError whose
            code is the name of the exception's class, or a NonRecoverableError when the user's is one.
    """
    context = internal_ctx().data.task_context
    assert context is not None, "a task's function runs in a task's context"
    is_local = context.mode == "local"
    plan = plan_of(task.plugin_config.job(), is_local=is_local, run_id=_run_id(context), preload=(rank.__name__,))
    if not is_local and is_host(plan) is not False:
        await _clear_stale_error(context.output_path)
    context = context.replace(data=await task.pre(*args, **kwargs))
    try:
        result = await _launched(plan, RankContext.current(context), task.func, args, kwargs)
    except LaunchError as error:
        _show(task, context, error.timeline, error)
        if task.report and not is_local:
            await flyte.report.flush.aio()
        raise _reported(error, is_local) from error
    if not result.is_rank_zero_here:
        raise SystemExit(0)
    context.report.tabs.update(result.value.report.tabs)
    _show(task, context, result.timeline, None)
    await task.post(result.value.value)
    return result.value.value


async def _launched(plan: LaunchPlan, *arguments: Any) -> LaunchResult:
    if threading.current_thread() is threading.main_thread():
        # A pod's: only here SIGTERM can be waited for, and there is nothing else that its event loop has to do.
        return launch(plan, run_task_function, *arguments)
    return await asyncio.to_thread(launch, plan, run_task_function, *arguments)


async def _clear_stale_error(output_path: str) -> None:
    """Removes the error that an earlier start of the pods left: the backend looks for it before it looks for outputs.

    Only the pod that holds the rendezvous does so, before any other can have joined it.
    """
    path = error_path(output_path)
    if not await storage.exists(path):
        return
    files = storage.get_underlying_filesystem(path=path)
    try:
        await (files._rm_file(path) if files.async_impl else asyncio.to_thread(files.rm_file, path))
    except FileNotFoundError:
        return
    _log.warning("removed %s, which an earlier start of this task left", path)


def _run_id(context: TaskContext) -> str:
    """The same in every pod of one attempt, another in the next: a retry must never meet a closed rendezvous."""
    names = (context.action.run_name or "local", context.action.name, os.environ.get("FLYTE_ATTEMPT_NUMBER", "0"))
    return "-".join(names)


def _show(
    task: TorchrunTask, context: TaskContext, timeline: Sequence[TimelineEvent], error: LaunchError | None
) -> None:
    """Puts the timeline into the task's report, if it has one."""
    if task.report and timeline:
        context.report.get_tab(NAME).replace(render_timeline(timeline, error))


def _reported(error: LaunchError, is_local: bool) -> BaseException:
    """The error as the SDK tells it: it lets a task be tried again unless the error is a NonRecoverableError."""
    if isinstance(error, LaunchTerminatedError):
        return SystemExit(128 + signal.SIGTERM)
    if isinstance(error, RankError):
        cause = error.__cause__
        if is_local and isinstance(cause, Exception):
            return cause
        if not is_local and error.is_from_other_node:
            return SystemExit(0)
        if _NON_RECOVERABLE in error.exception_bases:
            return flyte.errors.NonRecoverableError(str(error))
        return flyte.errors.RuntimeUserError(error.exception_type, str(error), f"rank {error.rank}")
    if isinstance(error, (NodeLostError, RendezvousError)):
        return flyte.errors.RuntimeSystemError(type(error).__name__, str(error))
    if isinstance(error, LaunchTimeoutError):
        return flyte.errors.RuntimeUserError(type(error).__name__, str(error))
    return error
