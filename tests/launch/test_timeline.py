"""The timeline: what happened when, whichever way the launch ended."""

import dataclasses
import os

import pytest
import torch

from flyte_torchrun.launch import LaunchPlan, LaunchTimeoutError, RankError, TimelineEvent, launch


def plan(ranks=2, **settings):
    return LaunchPlan(nproc_per_node=ranks, shutdown_grace=2.0, **settings)


def names(timeline, **where):
    return [event.name for event in timeline if all(getattr(event, key) == value for key, value in where.items())]


def test_a_launch_tells_its_events_in_order():
    def speak():
        print("here I am")
        return torch.zeros(1000)

    launch(plan(), speak)
    timeline = launch(plan(), speak).timeline
    assert all(type(event) is TimelineEvent and event.end >= event.start for event in timeline)
    assert [event.start for event in timeline] == sorted(event.start for event in timeline)
    launcher = names(timeline, rank=None)
    assert launcher == ["rank server", "torch", "inputs", "rendezvous", "result"]
    for rank in range(2):
        assert names(timeline, rank=rank) == ["rank", "function", "first output"]
        process, function, output = (event for event in timeline if event.rank == rank)
        assert process.start <= function.start <= output.start <= process.end
        assert (process.detail, function.detail, process.attempt) == ("exit code 0", "", 0)
    assert next(event.detail for event in timeline if event.name == "result").endswith(" bytes")
    assert dataclasses.asdict(timeline[0])["name"] == "rank server"


def test_an_error_carries_the_timeline_with_restarts_and_exit_codes():
    def fail():
        if os.environ["RANK"] == "1":
            raise ValueError(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}")

    with pytest.raises(RankError) as caught:
        launch(plan(max_restarts=1), fail)
    timeline = caught.value.timeline
    assert [(event.detail, event.attempt) for event in timeline if event.name == "restart"] == [
        ("ValueError: attempt 0", 1)
    ]
    ends = [(event.attempt, event.detail) for event in timeline if event.name == "rank" and event.rank == 1]
    assert ends == [(0, "exit code 1"), (1, "exit code 1")]
    functions = [(event.attempt, event.detail) for event in timeline if event.name == "function" and event.rank == 1]
    assert functions == [(0, "did not return"), (1, "did not return")]
    assert "result" not in names(timeline)


def test_a_run_that_took_too_long_tells_that_its_ranks_were_ended():
    def stay():
        while True:
            torch.ones(1)

    with pytest.raises(LaunchTimeoutError) as caught:
        launch(plan(timeout=0.5), stay)
    assert "end of ranks" in names(caught.value.timeline)
    assert [event.detail for event in caught.value.timeline if event.name == "rank"] == ["exit code -15"] * 2


def test_nodes_on_this_machine_tell_which_event_is_whose():
    timeline = launch(LaunchPlan(nproc_per_node=1, nodes=2), lambda: None).timeline
    assert names(timeline, node=0)[:2] == names(timeline, node=1)[:2] == ["rendezvous", "rank"]
    assert {(event.node, event.rank) for event in timeline if event.name == "rank"} in (
        {(0, 0), (1, 1)},
        {(0, 1), (1, 0)},
    )
    assert names(timeline).count("rank server") == 1
