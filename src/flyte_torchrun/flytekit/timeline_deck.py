"""The launch as a Flyte deck."""

from __future__ import annotations

from collections.abc import Sequence

import flytekit
from flytekit.core.context_manager import FlyteContextManager
from flytekit.deck import Deck
from flytekit.deck.deck import _output_deck

from flyte_torchrun.launch import LaunchError, TimelineEvent
from flyte_torchrun.plugin.timeline_page import NAME, render_timeline

__all__ = ["show_timeline"]


def show_timeline(timeline: Sequence[TimelineEvent], error: LaunchError | None, *, is_local: bool) -> None:
    """Puts the timeline among the task's decks, if it has any.

    After an error flytekit writes the decks itself in a pod, but not in a local run.
    """
    parameters = flytekit.current_context()
    if not parameters.enable_deck or not timeline:
        return
    Deck(NAME, render_timeline(timeline, error))
    if error is not None and is_local and FlyteContextManager.current_context().execution_state is not None:
        _output_deck(NAME, parameters)
