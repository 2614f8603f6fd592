"""What released backends made of given templates (tests/vectors), and the same asked of ours."""

import functools
import json
import re
from pathlib import Path

from flyte_torchrun.backend import Overrides, PlatformDefaults

VECTORS = Path(__file__).parents[1] / "vectors"
# The readers of the vectors are named by their own releases; flyteplugins ran in these releases of Flyte.
FLYTE_OF_PLUGIN = {
    "flyteplugins-v1.0.31": "1.3.0",
    "flyteplugins-v1.0.45": "1.5.1",
    "flyteplugins-v1.0.56": "1.6.2",
    "flyteplugins-v1.0.64": "1.7.0",
    "flyteplugins-v1.1.0": "1.7.0",
    "flyteplugins-v1.1.8": "1.8.1",
    "flyteplugins-v1.1.33": "1.9.1",
}
PLATFORM = PlatformDefaults(namespace="ns")


@functools.cache
def load(name):
    return json.loads((VECTORS / name).read_text())


def cases():
    return {case["id"]: case for case in load("cases.json")}


def flyte_of(reader):
    """The release of Flyte that runs a reader of the vectors."""
    return FLYTE_OF_PLUGIN.get(reader) or reader.removeprefix("flyte-v")


def recorded_job(key):
    """A job of the vectors, whole."""
    recorded = load("readers.json")
    job = json.loads(json.dumps(recorded["jobs"][key]))
    for spec in job["spec"]["pytorchReplicaSpecs"].values():
        if "$template" in spec["template"]:
            spec["template"] = json.loads(json.dumps(recorded["templates"][spec["template"]["$template"]]))
    return job


def overrides_of(case):
    """What a case's execution adds, as the vectors were recorded."""
    context = case.get("ctx", {})
    resources = context.get("resources", {})
    return Overrides(
        name=context.get("name", "the-job"),
        requests=resources.get("requests", {}),
        limits=resources.get("limits", {}),
        container_image=context.get("container_image"),
        extended_resources=context.get("extended_resources"),
        interruptible=context.get("interruptible", False),
        environment=context.get("exec_env", {}),
        labels=context.get("labels", {}),
        annotations=context.get("annotations", {}),
        project="p",
        domain="d",
        execution="exec",
    )


def without_payload(error):
    """The error without the payload, whose text in Go varies from binary to binary."""
    return re.sub(r"invalid TaskSpecification \[.*\], Err: ", "invalid TaskSpecification [...], Err: ", error)


def readers_recorded():
    return sorted(load("readers.json")["readers"])


def own_answers():
    """What the programs of conformance/ made of our own cases, by program and case."""
    answers = {}
    order = []
    for program, case, answer in load("own_answers.json"):
        if program not in answers:
            order.append(program)
            answers[program] = {}
        answers[program][case] = answers[order[order.index(program) - 1]][case] if answer == "=" else answer
    return answers
