"""Records what the real backend makes of our own cases; see scripts/record."""

import difflib
import json
import sys
from pathlib import Path

from conformance.programs import OPERATORS, READERS
from tests.backend import live

VECTORS = Path(__file__).parents[1] / "tests" / "vectors"


def recorded():
    """Answers by program and case; operators get the jobs of the newest reader."""
    cases = json.loads((VECTORS / "own_cases.json").read_text())
    names = [case["id"] for case in cases]
    answers = {reader: dict(zip(names, live.readers_answers(reader, cases), strict=True)) for reader in READERS}
    jobs = {name: answer for name, answer in answers[list(READERS)[-1]].items() if isinstance(answer, dict)}
    for release in OPERATORS:
        said = live.operators_answers(release, list(jobs.values()))
        answers[f"training-operator-{release}"] = dict(zip(jobs, said, strict=True))
    return answers


def written(answers):
    """One line for each answer; `=` where it is that of the program before."""
    lines = []
    for kind in (list(READERS), [f"training-operator-{release}" for release in OPERATORS]):
        for program, before in zip(kind, [None, *kind], strict=False):
            for name, answer in answers[program].items():
                same = before is not None and answers[before].get(name) == answer
                text = "=" if same else answer
                lines.append(json.dumps([program, name, text], sort_keys=True, ensure_ascii=False))
    return "[\n" + ",\n".join(lines) + "\n]\n"


def main():
    path = VECTORS / "own_answers.json"
    before = path.read_text() if path.exists() else ""
    after = written(recorded())
    difference = list(difflib.unified_diff(before.split("\n"), after.split("\n"), "recorded", "now", n=0, lineterm=""))
    print("\n".join(line[:1000] for line in difference) or "nothing has changed")
    if "--check" in sys.argv:
        sys.exit(bool(difference))
    path.write_text(after)


if __name__ == "__main__":
    main()
