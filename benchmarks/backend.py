"""Rendering: one release, all of them, the import, and the share of the real Go code's time per case."""

import json
import statistics
import time
from pathlib import Path

from rows import figure, python, seconds

from flyte_torchrun.backend import render, render_all

CASES = json.loads((Path(__file__).parents[1] / "tests" / "vectors" / "cases.json").read_text())
TYPICAL = next(case["template"] for case in CASES if case["id"] == "v1_pytorch")
ROUNDS = 15


def median(call, rounds=ROUNDS):
    return statistics.median(seconds(call) for _ in range(rounds))


def against_go():
    """Per case of a batch: all of a case's JSON, read and answered; starting the program apart."""
    from conformance.programs import READERS
    from tests.backend import live

    cases = [
        {"template": case["template"], "overrides": {}, "platform": {}} for case in CASES if not case.get("ctx")
    ] * 10
    for reader in READERS:
        theirs, ours = [], []
        for _ in range(5):
            start = seconds(lambda reader=reader: live.readers_answers(reader, cases[:1]))
            theirs.append(seconds(lambda reader=reader: live.readers_answers(reader, cases)) - start)
            began = time.perf_counter()
            for case in cases:
                live.our_answer(reader, case)
            ours.append(time.perf_counter() - began)
        go, mine = (statistics.median(times) / len(cases) * 1000 for times in (theirs, ours))
        print(f"{reader:<66} {mine:10.3f} ms  Go {go:.3f} ms, ratio {mine / go:.2f}", flush=True)


if __name__ == "__main__":
    print("what becomes of a template: median of several")
    figure("one release of Flyte and of the operator", median(lambda: render(TYPICAL)) * 1000, "ms", "<= 3")
    figure("all readers with all operators", median(lambda: render_all(TYPICAL)), "s", "<= 0.3")
    nothing = median(python("-c", "import flyteidl.core.tasks_pb2"))
    ours = median(python("-c", "import flyte_torchrun.backend, flyteidl.core.tasks_pb2"))
    figure("import, above that of flyteidl's messages", (ours - nothing) * 1000, "ms")
    against_go()
