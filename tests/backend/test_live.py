"""Random templates through the real readers, operators and definitions: they and ours agree."""

import difflib
import os
import re
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
        case = live.shrunk(cases[found.index(True)], differs, lambda some: live.our_answer(reader, some))
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
        job = live.shrunk(jobs[found.index(True)], differs, lambda some: live.our_operators_answer(release, some))
        [theirs] = live.operators_answers(release, [job])
        pytest.fail(
            f"{sum(found)} of {len(found)} jobs differ on {release}; the first, made small:\n{live.shown(job)}\n"
            + difference(theirs, live.our_operators_answer(release, job))
        )


def test_a_difference_is_found_and_made_small(cases):
    """8 and 9 differ in what an empty `resources` does: Go is asked for one, ours for the other."""

    def differs(some):
        answers = live.readers_answers("flyte-v1.16.8", some)
        ours = [live.our_answer("flyte-v1.16.0-b2", case) for case in some]
        return [theirs != mine for theirs, mine in zip(without_names(answers), without_names(ours), strict=True)]

    def without_names(answers):
        """Without the four variables that only the older one sets."""
        texts = [live.shown(answer) for answer in answers]
        return [
            re.sub(r"\{\s*\"name\": \"FLYTE_INTERNAL_(PROJECT|DOMAIN|NAME|VERSION)\"[^}]*\},?", "", text)
            for text in texts
        ]

    found = differs(cases)
    assert any(found)
    small = live.shrunk(cases[found.index(True)], differs, lambda case: live.our_answer("flyte-v1.16.0-b2", case))
    assert len(live.shown(small)) < 900
