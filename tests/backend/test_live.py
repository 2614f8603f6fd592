"""Random templates through the real readers, operators and definitions: they and ours agree."""

import difflib
import os
import time

import pytest
from hypothesis import HealthCheck, given, settings

from conformance.programs import OPERATORS, READERS, is_go_here
from tests.backend import live, strategies

EXAMPLES = int(os.environ.get("FLYTE_TORCHRUN_LIVE_CASES", "2000"))

pytestmark = [
    pytest.mark.skipif(not is_go_here(), reason="NO GO HERE: only the recorded answers are compared"),
    pytest.mark.timeout(3000),
]


@pytest.fixture(scope="module")
def cases():
    """The cases, drawn once for all programs."""
    drawn = []

    @settings(max_examples=EXAMPLES, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(strategies.cases())
    def draw(case):
        drawn.append(case)

    draw()
    assert len(drawn) >= EXAMPLES
    return drawn


def difference(theirs, ours):
    return "\n".join(
        difflib.unified_diff(live.shown(theirs).split("\n"), live.shown(ours).split("\n"), "Go", "ours", n=2)
    )


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_and_ours_agree(reader, cases, record_property):
    def differs(some):
        answers = live.readers_answers(reader, some)
        return [theirs != live.our_answer(reader, case) for theirs, case in zip(answers, some, strict=True)]

    started = time.monotonic()
    found = differs(cases)
    record_property("seconds", time.monotonic() - started)
    if any(found):
        case = live.shrunk(cases[found.index(True)], lambda some: valid_only(some, differs))
        [theirs] = live.readers_answers(reader, [case])
        pytest.fail(
            f"{sum(found)} of {len(found)} cases differ on {reader}; the first, made small:\n{live.shown(case)}\n"
            + difference(theirs, live.our_answer(reader, case))
        )


@pytest.mark.parametrize("release", OPERATORS)
def test_an_operator_and_ours_agree(release, cases):
    jobs = {}
    for reader in READERS:
        for case in cases:
            job = live.our_answer(reader, case)
            if isinstance(job, dict):
                jobs[live.shown(job)] = job
    jobs = list(jobs.values())

    def differs(some):
        answers = live.operators_answers(release, some)
        return [theirs != live.our_operators_answer(release, job) for theirs, job in zip(answers, some, strict=True)]

    assert len(jobs) > EXAMPLES / 4
    found = differs(jobs)
    if any(found):
        job = live.shrunk(jobs[found.index(True)], lambda some: valid_only(some, differs))
        [theirs] = live.operators_answers(release, [job])
        pytest.fail(
            f"{sum(found)} of {len(found)} jobs differ on {release}; the first, made small:\n{live.shown(job)}\n"
            + difference(theirs, live.our_operators_answer(release, job))
        )


def valid_only(some, differs):
    """What is no template any more, after something was taken out, does not count."""
    kept = []
    for case in some:
        try:
            differs([case])
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError):
            kept.append(False)
        else:
            kept.append(True)
    answers = iter(differs([case for case, is_kept in zip(some, kept, strict=True) if is_kept]))
    return [is_kept and next(answers) for is_kept in kept]
