"""Every recorded answer of a released backend is ours, too."""

import pytest

from flyte_torchrun.backend import render
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
from tests.backend import live
from tests.backend.vectors import (
    PLATFORM,
    cases,
    flyte_of,
    load,
    overrides_of,
    own_answers,
    readers_recorded,
    recorded_job,
    without_payload,
)

COMPARED = [
    (reader, case)
    for reader in readers_recorded()
    for case in cases()
    if f"{reader}/{case}" not in load("differences.json")
]


@pytest.mark.parametrize(("reader", "case"), COMPARED)
def test_a_reader_makes_the_recorded_job_or_error(reader, case):
    given = cases()[case]
    recorded = load("readers.json")["readers"][reader][case]
    rendering = render(given["template"], flyte=flyte_of(reader), platform=PLATFORM, overrides=overrides_of(given))
    if "error" in recorded:
        assert rendering.refusal is not None, rendering.job
        assert rendering.refusal.gate == "reader"
        assert without_payload(rendering.refusal.messages[0]) == without_payload(recorded["error"])
    else:
        assert rendering.job == recorded_job(recorded["job"])


def recorded_results():
    recorded = load("operators.json")
    return [(release, job) for release, jobs in recorded["operators"].items() for job in jobs]


def as_recorded(pod, before):
    """A pod in the vectors' form: what the operator appended to the container called pytorch."""
    written = {"name": pod.name, "env": {}, "restartPolicy": pod.spec["restartPolicy"]}
    sidecars, shadows = {}, {}
    for container, own in zip(pod.containers, before["containers"], strict=True):
        added = container["env"][len(own.get("env", ())) :]
        if container["name"] != "pytorch":
            sidecars[container["name"]] = len(added)
            continue
        written["env"].update({variable["name"]: variable.get("value", "") for variable in added})
        own_values = {each["name"]: each.get("value", "") for each in own.get("env", ())}
        shadows.update({name: value for name, value in own_values.items() if name in written["env"]})
    optional = {
        "sidecars": sidecars,
        "shadows": shadows,
        "initContainers": [container["name"] for container in pod.init_containers],
        "role": pod.labels.get("training.kubeflow.org/job-role"),
    }
    return {**written, **{key: value for key, value in optional.items() if value}}


@pytest.mark.parametrize(("release", "key"), recorded_results())
def test_an_operator_makes_the_recorded_pods_or_errors(release, key):
    recorded = load("operators.json")
    expected = dict(recorded["results"][recorded["operators"][release][key]])
    job, operator = recorded_job(key), operator_of(release)[0]
    assert refusals_of_definition(job, operator) == recorded["crd"][release].get(key, [])
    refused = refusals_of_operator(job, operator)
    result = {"valid": not refused, "hpa": False, "pods": []}
    if refused:
        result["errors"] = refused
    if warnings := warnings_of(job, operator):
        result["warnings"] = warnings
    if not refused or goes_on(operator):
        completed = with_defaults(job, operator)
        result |= completed_as_recorded(completed)
        if "podError" in expected:
            with pytest.raises(ValueError, match=expected.pop("podError")):
                list(make_pods(completed, operator))
        else:
            result |= pods_as_recorded(job, completed, operator)
    assert result == expected


def completed_as_recorded(completed):
    specs, spec = completed["spec"]["pytorchReplicaSpecs"], completed["spec"]
    defaulted = {"cleanPodPolicy": spec["runPolicy"]["cleanPodPolicy"]}
    defaulted |= {name: spec[name] for name in ("elasticPolicy", "nprocPerNode") if name in spec}
    replicas = {role: spec["replicas"] for role, spec in specs.items()}
    return {"defaulted": defaulted, **({"replicas": replicas} if replicas else {})}


def pods_as_recorded(job, completed, operator):
    """The pods; of more than 16 of a role, 0, 1 and the last, without the labels that were not recorded then."""
    specs = completed["spec"]["pytorchReplicaSpecs"]
    result = {"pods": []}
    for role, spec in sorted(specs.items()):
        is_sampled = spec["replicas"] > 16
        wanted = (0, 1, spec["replicas"] - 1) if is_sampled else range(max(spec["replicas"], 1))
        template = job["spec"]["pytorchReplicaSpecs"][role]["template"]["spec"]
        for pod in make_pods(completed, operator, wanted):
            if pod.role == role:
                result["pods"].append(as_recorded(pod, template))
                if is_sampled:
                    result["pods"][-1].pop("role", None)
                    result["sampled"] = True
    if deleted := deleted_next(completed):
        result["deletedNext"] = deleted
    return result


def own_cases():
    return {case["id"]: case for case in load("own_cases.json")}


@pytest.mark.parametrize(
    ("program", "case"), [(program, case) for program, answers in own_answers().items() for case in answers]
)
def test_our_own_cases_are_answered_as_the_real_backend_did(program, case):
    recorded, given = own_answers()[program][case], own_cases()[case]
    if program.startswith("training-operator-"):
        job = live.our_answer("flyte-v1.16.8", given)
        assert live.our_operators_answer(program.removeprefix("training-operator-"), job) == recorded
    else:
        assert live.our_answer(program, given) == recorded


def test_every_difference_from_a_recorded_answer_is_listed_with_a_reason_and_is_one():
    for name, reason in load("differences.json").items():
        reader, case = name.split("/")
        recorded = load("readers.json")["readers"][reader][case]
        given = cases()[case]
        rendering = render(given["template"], flyte=flyte_of(reader), platform=PLATFORM, overrides=overrides_of(given))
        assert rendering.job != (recorded_job(recorded["job"]) if "job" in recorded else None), (
            f"{name} agrees: {reason}"
        )
