"""Running a task: from its configuration and its surroundings to a worker group, and back to one result."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import flytekit
from flytekit.core.context_manager import FlyteContextManager
from flytekit.exceptions.base import FlyteException
from flytekit.exceptions.base import FlyteRecoverableException as AnyRecoverableException
from flytekit.exceptions.user import FlyteRecoverableException
from flytekit.extend import IgnoreOutputs

from flyte_torchrun.flytekit import rank
from flyte_torchrun.flytekit.rank import RankContext, RankOutput, outputs_of, run_task_function
from flyte_torchrun.flytekit.timeline_deck import show_timeline
from flyte_torchrun.launch import (
    LaunchTerminatedError,
    LaunchTimeoutError,
    NodeLostError,
    RankError,
    RendezvousError,
    launch,
)
from flyte_torchrun.plugin.job import Job
from flyte_torchrun.plugin.plans import plan_of

__all__ = ["RankFailedException", "run"]

_RECOVERABLE = f"{AnyRecoverableException.__module__}.{AnyRecoverableException.__qualname__}"


class RankFailedException(FlyteException):
    """A rank failed in a pod: the message begins with the user's exception, and the timestamp is the rank's own."""

    _ERROR_CODE = "USER:RuntimeError"

    def __str__(self) -> str:
        return str(self.args[0])


def run(job: Job, function: Callable[..., Any], inputs: Mapping[str, Any]) -> Any:
    """Runs the task function in the ranks that belong to this pod (or, locally, to the whole job).

    Returns:
        What global rank 0 returned.

    Raises:
        IgnoreOutputs: global rank 0 ran in another pod, or this pod is evicted.
        Exception: the first real error of a rank: locally the user's own exception, in a pod RankFailedException, or
            FlyteRecoverableException when the user's exception is one or another pod was lost.
    """
    context = FlyteContextManager.current_context()
    is_local = context.execution_state is None or context.execution_state.is_local_execution()
    if job.elastic is None and not is_local and "RANK" in os.environ:
        return _run_as_the_operators_rank(function, inputs)
    # flytekit takes a second to load: the rank server does it once.
    plan = plan_of(job, is_local=is_local, run_id=_run_id(), preload=(rank.__name__,))
    try:
        result = launch(plan, run_task_function, RankContext.current(), function, inputs)
    except RankError as error:
        show_timeline(error.timeline, error, is_local=is_local)
        raise _reported(error, is_local) from error
    except (NodeLostError, RendezvousError) as error:
        show_timeline(error.timeline, error, is_local=is_local)
        if is_local:
            raise
        # Nothing is known to be wrong with the program, and another attempt may find all its pods.
        raise FlyteRecoverableException(str(error)) from error
    except LaunchTimeoutError as error:
        show_timeline(error.timeline, error, is_local=is_local)
        raise
    except LaunchTerminatedError as error:
        # An eviction is no error of the user's. Only where this process is the pod's first does the signal not end it.
        raise IgnoreOutputs(str(error)) from error
    if not result.is_rank_zero_here:
        raise IgnoreOutputs("global rank 0 ran in another pod")
    show_timeline(result.timeline, None, is_local=is_local)
    return _take_over(result.value)


def _run_as_the_operators_rank(function: Callable[..., Any], inputs: Mapping[str, Any]) -> Any:
    """A PyTorchJob without elastic policy: the operator gave this pod its rank, and the pod is the rank."""
    value = rank.call(function, inputs)
    if os.environ["RANK"] != "0":
        raise IgnoreOutputs(f"this pod is rank {os.environ['RANK']}, and rank 0 writes the outputs")
    return value


def _run_id() -> str:
    """The same in every pod of one attempt, another in the next: a retry must never meet a closed rendezvous."""
    execution = flytekit.current_context().execution_id
    name = execution.name if execution is not None and execution.name else "local"
    return f"{name}-{os.environ.get('FLYTE_ATTEMPT_NUMBER', '0')}"


def _take_over(output: RankOutput) -> Any:
    """Puts what rank 0 made beside its value into this process's context."""
    flytekit.current_context().decks.extend(output.decks)
    tracker = FlyteContextManager.current_context().output_metadata_tracker
    if tracker is not None:
        for value, metadata in zip(outputs_of(output.value), output.metadata, strict=True):
            if metadata is not None:
                tracker.add(value, metadata)
    return output.value


def _reported(error: RankError, is_local: bool) -> Exception:
    cause = error.__cause__
    if _RECOVERABLE in error.exception_bases:
        return FlyteRecoverableException(str(error), timestamp=error.timestamp)
    if is_local and isinstance(cause, Exception):
        return cause
    return RankFailedException(str(error), timestamp=error.timestamp)
