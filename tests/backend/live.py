"""The same case asked of the real Go programs (conformance/) and of ours."""

import itertools
import json

from conformance.programs import DEFINITIONS, OPERATORS, READERS
from flyte_torchrun.backend import Overrides, PlatformDefaults, render
from flyte_torchrun.backend.operator import (
    deleted_next,
    goes_on,
    make_pods,
    refusals_of_definition,
    refusals_of_operator,
    warnings_of,
    with_defaults,
)
from flyte_torchrun.schema import operator_of
from tests.backend.vectors import flyte_of, without_payload


def context_of(case):
    """What the reader's program is told of the execution and the platform."""
    overrides, platform = Overrides(**case["overrides"]), PlatformDefaults(**case["platform"])
    return {
        "name": overrides.name,
        "namespace": f"{overrides.project}-{overrides.domain}",
        "service_account": platform.service_account,
        "platform": {"requests": dict(platform.requests), "limits": dict(platform.limits)},
        "resources": {"requests": dict(overrides.requests), "limits": dict(overrides.limits)},
        "container_image": overrides.container_image or "",
        **({"extended_resources": overrides.extended_resources} if overrides.extended_resources is not None else {}),
        "environment": dict(overrides.environment),
        "labels": dict(overrides.labels),
        "annotations": dict(overrides.annotations),
        "project": overrides.project,
        "domain": overrides.domain,
        "execution": overrides.execution,
        "task": case["template"]["id"],
        "paths": dict(overrides.paths),
    }


def readers_answers(reader, cases):
    """Each case's job, or the error's text, from the real reader."""
    asked = ({"id": "", "template": case["template"], "context": context_of(case)} for case in cases)
    answers = READERS[reader].ask(asked)
    return [written(answer["job"]) if "job" in answer else without_payload(answer["error"]) for answer in answers]


def written(job):
    """A job without what Go writes of nothing: null timestamps, and the status that nobody has set."""
    job = without_null(job)
    job.pop("status", None)
    return job


def without_null(value):
    if isinstance(value, dict):
        return {key: without_null(item) for key, item in value.items() if item is not None}
    return [without_null(item) for item in value] if isinstance(value, list) else value


def our_answer(reader, case):
    rendering = render(
        case["template"],
        flyte=flyte_of(reader),
        platform=PlatformDefaults(**case["platform"]),
        overrides=Overrides(**case["overrides"]),
    )
    return rendering.job or without_payload(rendering.refusal.messages[0])


def operators_answers(release, jobs):
    """What the real operator, and the API server with its definition, make of each job."""
    asked = [{"id": "", "job": job} for job in jobs]
    found = []
    for said, refused in zip(OPERATORS[release].ask(asked), DEFINITIONS[release].ask(asked), strict=True):
        completed = said.get("job") or {}
        found.append(
            {
                "definition": refused["errors"],
                "errors": said["errors"],
                "warnings": said["warnings"],
                "failure": said.get("failure", "").removeprefix("reconcile: "),
                "spec": without_null(completed.get("spec")),
                "pods": [
                    {
                        "name": pod["metadata"]["name"],
                        "labels": pod["metadata"].get("labels", {}),
                        "annotations": pod["metadata"].get("annotations", {}),
                        "spec": without_null(pod["spec"]),
                    }
                    for pod in said["pods"]
                ],
                "deletedNext": said["deletedNext"],
            }
        )
    return found


def our_operators_answer(release, job):
    operator = operator_of(release)[0]
    errors = refusals_of_operator(job, operator)
    answer = {
        "definition": refusals_of_definition(job, operator),
        "errors": errors,
        "warnings": warnings_of(job, operator),
        "failure": "",
        "spec": None,
        "pods": [],
        "deletedNext": [],
    }
    if errors and not goes_on(operator):
        return answer
    completed = with_defaults(job, operator)
    answer["spec"] = completed["spec"]
    if any(spec["replicas"] > 64 for spec in completed["spec"]["pytorchReplicaSpecs"].values()):
        return answer | {"failure": "more than 64 pods of a type"}
    try:
        pods = list(make_pods(completed, operator))
    except ValueError as error:
        return answer | {"failure": str(error)}
    answer["pods"] = [
        {"name": pod.name, "labels": dict(pod.labels), "annotations": dict(pod.annotations), "spec": dict(pod.spec)}
        for pod in pods
    ]
    return answer | {"deletedNext": deleted_next(completed)}


def smaller(value):
    """The value with one thing less, in all ways."""
    if isinstance(value, dict):
        for key in value:
            yield {name: item for name, item in value.items() if name != key}
        for key, item in value.items():
            for less in smaller(item):
                yield {**value, key: less}
    elif isinstance(value, list):
        for index in range(len(value)):
            yield [*value[:index], *value[index + 1 :]]
        for index, item in enumerate(value):
            for less in smaller(item):
                yield [*value[:index], less, *value[index + 1 :]]


def shrunk(case, differs, answer):
    """The smallest case found that still differs.

    Args:
        case: JSON.
        differs: says of a list of cases which of them do.
        answer: fails for what is no case any more, after something was taken out.
    """
    while True:
        candidates = [less for less in itertools.islice(smaller(case), 1000) if is_case(less, answer)]
        found = itertools.compress(candidates, differs(candidates))
        if (less := next(found, None)) is None:
            return case
        case = less


def is_case(value, answer):
    try:
        context_of(value) if "template" in value else None
        answer(value)
    except (AttributeError, KeyError, TypeError, ValueError):
        return False
    return True


def shown(value):
    return json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True)
