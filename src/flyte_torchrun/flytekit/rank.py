"""What runs in a rank: the task function, in the Flyte context that it would have without ranks."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import flytekit
from flytekit.core.checkpointer import SyncCheckpoint
from flytekit.core.context_manager import (
    ExecutionParameters,
    ExecutionState,
    FlyteContextManager,
    OutputMetadata,
    OutputMetadataTracker,
)
from flytekit.core.data_persistence import FileAccessProvider
from flytekit.deck import Deck
from flytekit.deck.deck import TimeLineDeck
from flytekit.models.core.identifier import Identifier, WorkflowExecutionIdentifier

from flyte_torchrun.flytekit.module_transformer import install_module_transformer

__all__ = ["RankContext", "RankOutput", "call", "outputs_of", "run_task_function"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankContext:
    """The part of flytekit's context that a rank takes over from the process that launches it.

    It is plain data, so that it reaches the rank under every start method; clients (statistics, file access) are made
    anew in the rank.
    """

    mode: ExecutionState.Mode | None
    execution_id: WorkflowExecutionIdentifier | None
    execution_date: datetime | None
    task_id: Identifier | None
    working_directory: str
    raw_output_prefix: str
    output_metadata_prefix: str | None
    checkpoint: tuple[str, str | None] | None
    enable_deck: bool

    @classmethod
    def current(cls) -> RankContext:
        """That of the task which runs in this process."""
        context = FlyteContextManager.current_context()
        parameters = flytekit.current_context()
        directory = parameters.working_directory
        checkpoint = parameters._checkpoint
        return cls(
            mode=context.execution_state.mode if context.execution_state else None,
            execution_id=parameters.execution_id,
            execution_date=parameters.execution_date,
            task_id=parameters.task_id,
            working_directory=str(getattr(directory, "name", directory)),
            raw_output_prefix=context.file_access.raw_output_prefix,
            output_metadata_prefix=parameters.output_metadata_prefix,
            checkpoint=(checkpoint._checkpoint_dest, checkpoint._checkpoint_src) if checkpoint else None,
            enable_deck=parameters.enable_deck,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOutput:
    """What comes back from rank 0.

    Attributes:
        value: the task function's return value.
        decks: the decks that the task function made.
        metadata: what the task function said of the value, and of each item when it is a tuple (artifacts, dynamic
            partitions); None: nothing.
    """

    value: Any
    decks: tuple[Deck, ...]
    metadata: tuple[OutputMetadata | None, ...]


def run_task_function(context: RankContext, function: Callable[..., Any], inputs: Mapping[str, Any]) -> RankOutput:
    """Runs the task function in this rank, in the given context."""
    install_module_transformer()
    current = FlyteContextManager.current_context()
    parameters = ExecutionParameters(
        execution_id=context.execution_id,
        execution_date=context.execution_date,
        task_id=context.task_id,
        tmp_dir=context.working_directory,
        stats=current.user_space_params.stats if current.user_space_params else None,
        logging=flytekit.current_context().logging,
        raw_output_prefix=context.raw_output_prefix,
        output_metadata_prefix=context.output_metadata_prefix,
        checkpoint=SyncCheckpoint(*context.checkpoint) if context.checkpoint else None,
        decks=[],
        enable_deck=context.enable_deck,
    )
    state = current.new_execution_state(context.working_directory).with_params(
        mode=context.mode, user_space_params=parameters
    )
    tracker = OutputMetadataTracker()
    builder = current.with_execution_state(state).with_output_metadata_tracker(tracker)
    builder = builder.with_file_access(
        FileAccessProvider(
            context.working_directory, context.raw_output_prefix, execution_metadata=_execution_metadata(context)
        )
    )
    with FlyteContextManager.with_context(builder):
        value = call(function, inputs)
        decks = tuple(deck for deck in flytekit.current_context().decks if not isinstance(deck, TimeLineDeck))
        return RankOutput(value=value, decks=decks, metadata=tuple(tracker.get(output) for output in outputs_of(value)))


def call(function: Callable[..., Any], inputs: Mapping[str, Any]) -> Any:
    """Calls the task function; a coroutine function is run to its end in an event loop of its own."""
    value = function(**inputs)
    return asyncio.run(value) if inspect.iscoroutine(value) else value


def outputs_of(value: Any) -> tuple[Any, ...]:
    """A return value, and its items when it is a tuple: the objects that can carry output metadata."""
    return (value, *value) if isinstance(value, tuple) else (value,)


def _execution_metadata(context: RankContext) -> dict[str, str]:
    """What flytekit attaches to files that it writes from a pod."""
    execution = context.execution_id
    if execution is None:
        return {}
    names = {"project": execution.project, "domain": execution.domain, "name": execution.name}
    return {f"flyte-execution-{key}": value for key, value in names.items() if value}
