"""Whatever a template holds: a job, or a refusal in words; never another error, and within bounded time."""

import math

import pytest
from flyteidl.core import tasks_pb2
from google.protobuf import json_format
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flyte_torchrun.backend import render, render_all

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "containers", "env", "resources", "limits", "x", "ports"]), inner, max_size=3
        )
    ),
    max_leaves=12,
)
PARTS = st.sampled_from(
    [
        "containers",
        "initContainers",
        "volumes",
        "tolerations",
        "affinity",
        "restartPolicy",
        "hostAliases",
        "nodeSelector",
    ]
)
IN_CONTAINER = st.sampled_from(["env", "ports", "resources", "args", "volumeMounts", "image", "command", "x"])


@settings(max_examples=600, deadline=None)
@given(st.dictionaries(PARTS, JSON, max_size=3), st.dictionaries(IN_CONTAINER, JSON, max_size=3), st.booleans())
@example(spec={"containers": [None, None]}, container={}, has_container=False)
def test_a_pod_of_any_shape_is_a_job_or_a_refusal(spec, container, has_container):
    if has_container:
        spec = {**spec, "containers": [{"name": "main", "image": "x", **container}]}
    template = {
        "type": "pytorch",
        "taskTypeVersion": 1,
        "custom": {"workerReplicas": {"replicas": 1}},
        "k8sPod": {"podSpec": spec},
        "config": {"primary_container_name": "main"},
    }
    for rendering in render_all(template, operator=">=1.8"):
        assert (rendering.refusal is None) == bool(rendering.pods)


@settings(max_examples=600, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["workers", "workerReplicas", "elasticConfig", "runPolicy", "x"]), JSON, max_size=4)
)
def test_a_payload_of_any_shape_is_a_job_or_a_refusal(custom):
    template = {"type": "pytorch", "taskTypeVersion": 1, "custom": custom, "container": {"image": "x"}}
    for version in (0, 1, 2):
        for rendering in render_all({**template, "taskTypeVersion": version}, operator="1.9.3"):
            assert (rendering.refusal is None) == bool(rendering.pods) or rendering.pod_count == 0


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_lacks_is_refused(number):
    template = tasks_pb2.TaskTemplate(type="pytorch", task_type_version=1)
    template.custom.update({"workerReplicas": {"replicas": 1.0}})
    template.custom["workerReplicas"]["replicas"] = number
    template.container.image = "x"
    refusal = render(template).refusal
    assert (refusal.gate, refusal.code) == ("reader", "BadTaskSpecification")


def test_an_empty_value_of_a_struct_is_refused():
    template = tasks_pb2.TaskTemplate(type="pytorch", task_type_version=1)
    template.custom.fields["workerReplicas"].SetInParent()
    template.container.image = "x"
    assert "nil Value" in str(render(template).refusal)


def test_a_deep_payload_is_read_or_refused():
    deep = {"x": 1}
    for _ in range(30):
        deep = {"x": deep}
    template = json_format.ParseDict(
        {"type": "pytorch", "custom": deep, "container": {"image": "x"}}, tasks_pb2.TaskTemplate()
    )
    assert render(template, flyte="1.14").refusal.messages == ("number of workers must be greater than 0",)
