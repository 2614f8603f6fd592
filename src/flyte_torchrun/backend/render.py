"""What a release of Flyte and one of the training-operator make of a task template, without a cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flyte_torchrun.backend.errors import ReaderError
from flyte_torchrun.backend.operator import (
    Pod,
    deleted_next,
    goes_on,
    lacks_port,
    make_pods,
    refusals_of_definition,
    refusals_of_operator,
    warnings_of,
    with_defaults,
)
from flyte_torchrun.backend.platform import Overrides, PlatformDefaults
from flyte_torchrun.backend.pod import PodMaker
from flyte_torchrun.backend.reader import CONTAINER_NAME, Note, Payloads, build_job
from flyte_torchrun.schema import Operator, Reader, operator_of, operators_in, reader_of, readers_in, release_in

__all__ = ["Refusal", "Rendering", "as_message", "render", "render_all"]

_TASK_TYPE = "pytorch"
_DEFAULTS = PlatformDefaults()
_NO_OVERRIDES = Overrides()
_MOST_PODS = 256
_SHOWN = (
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "PET_NODE_RANK",
    "PET_NNODES",
    "PET_NPROC_PER_NODE",
    "PET_RDZV_BACKEND",
    "PET_RDZV_ENDPOINT",
    "PET_MAX_RESTARTS",
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a task becomes nothing.

    Attributes:
        gate: who refuses it: `reader` (Flyte's plugin), `api server` (the operator's CustomResourceDefinition),
            `operator` (its webhook, or from 1.5 to 1.7 its controller).
        code: the reader's class of the error, such as BadTaskSpecification; None: it has none.
        messages: the words, at least one.
    """

    gate: str
    code: str | None
    messages: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.gate}: {'; '.join(self.messages)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """What becomes of a task.

    Attributes:
        flyte: the release of Flyte.
        reader: what it does, as data.
        operator: the release of the training-operator.
        job: the PyTorchJob that Flyte sends, as Kubernetes' JSON; None: the reader refuses the task, or makes a plain
            pod of it.
        pods: the pods, at most the first 256 of each role.
        pod_count: how many pods there are in all.
        notes: what does not arrive as it was written.
        warnings: what the operator says of a job that it takes.
        deleted_next: the pods that the operator deletes again at its next look, while none has ended.
        refusal: why there are no pods; None: it is accepted.
    """

    flyte: str
    reader: Reader
    operator: str
    job: Mapping[str, Any] | None
    pods: tuple[Pod, ...]
    pod_count: int
    notes: tuple[Note, ...]
    warnings: tuple[str, ...] = ()
    deleted_next: tuple[str, ...] = ()
    refusal: Refusal | None = None

    def to_yaml(self) -> str:
        """The job, or the plain pod, as `kubectl apply -f` takes it.

        Raises:
            ValueError: there is none, since the reader refuses the task.
            ModuleNotFoundError: PyYAML is not installed.
        """
        import yaml

        manifest = self.job
        if manifest is None:
            if not self.pods:
                raise ValueError(f"nothing to write: {self.refusal}")
            pod = self.pods[0]
            metadata = {"name": pod.name, "labels": dict(pod.labels), "annotations": dict(pod.annotations)}
            manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod.spec}
        return yaml.safe_dump(json.loads(json.dumps(manifest)), sort_keys=False, allow_unicode=True, width=1000)

    def to_table(self) -> str:
        """The pods with what the ranks' launcher gets to know, for a terminal; or the refusal."""
        lines = [f"Flyte {self.flyte} ({self.reader.name}), training-operator {self.operator}"]
        if self.refusal is not None:
            lines += [f"refused by the {self.refusal.gate}:", *(f"  {message}" for message in self.refusal.messages)]
        else:
            lines += _table(self.pods)
            if self.pod_count > len(self.pods):
                lines.append(f"... {self.pod_count} pods in all")
        lines += [f"warning: {warning}" for warning in self.warnings]
        lines += [f"deleted again at the next look: {name}" for name in self.deleted_next]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines) + "\n"


def render(
    template: Any,
    *,
    flyte: str = "1.16.8",
    operator: str = "1.9.3",
    platform: PlatformDefaults = _DEFAULTS,
    overrides: Overrides = _NO_OVERRIDES,
) -> Rendering:
    """What becomes of a task on one platform.

    Args:
        template: a flyteidl or flyteidl2 TaskTemplate, its proto3 JSON as a dict, or a template of flytekit's.
        flyte: a release of Flyte from 1.0 to 1.16.8 or from 2.0.7 to 2.0.43; of a series such as `1.10` the newest.
        operator: a release of the training-operator from 1.5.0 to 1.9.3; of a series the newest.
        platform: what the administrator has set.
        overrides: what the execution adds.

    Raises:
        ReleaseError: a release is not known.
        TypeError: the template is none.
    """
    reader, release = reader_of(flyte)
    record, operator_release = operator_of(operator)
    message = as_message(template)
    made = _Made(PodMaker(message, reader, platform, overrides), Payloads(message))
    return made.rendering(release, record, operator_release, _Answers(has_pods=True))


def render_all(
    template: Any,
    *,
    flyte: str = ">=1.0",
    operator: str = ">=1.5",
    platform: PlatformDefaults = _DEFAULTS,
    overrides: Overrides = _NO_OVERRIDES,
    has_pods: bool = True,
) -> list[Rendering]:
    """What becomes of a task on each reader and each operator in two ranges, oldest first.

    Args:
        template: as for `render`.
        flyte: a release, a series such as `1.10`, or a range such as `>=1.6,<1.9`.
        operator: the same.
        platform: what the administrator has set.
        overrides: what the execution adds.
        has_pods: whether the pods are made; else it is only said whether they would be.

    Raises:
        ReleaseError: no known release is in a range.
        TypeError: the template is none.
    """
    message = as_message(template)
    operators = [(record, release_in(record, operator)) for record in operators_in(operator)]
    found = []
    payloads = Payloads(message)
    answers = _Answers(has_pods=has_pods)
    for reader in readers_in(flyte):
        made = _Made(PodMaker(message, reader, platform, overrides), payloads)
        release = release_in(reader, flyte)
        found += [made.rendering(release, *each, answers) for each in operators]
    return found


class _Made:
    """What a reader makes of a task, whichever operator is next."""

    def __init__(self, maker: PodMaker, payloads: Payloads) -> None:
        template, reader = maker.template, maker.reader
        self.reader = reader
        self.job: dict[str, Any] | None = None
        self.pod: Pod | None = None
        self.notes: tuple[Note, ...] = ()
        self.refusal: Refusal | None = None
        try:
            if template.type == _TASK_TYPE and reader.is_linked:
                self.job, notes = build_job(maker, payloads)
                self.notes = tuple(notes)
            else:
                self.pod = _plain_pod(maker)
                why = (
                    "the release has no PyTorch plugin" if template.type == _TASK_TYPE else f"of type {template.type!r}"
                )
                self.notes = (Note("custom", "dropped", f"{why}: the task runs as one plain pod"),)
        except ReaderError as error:
            self.refusal = Refusal("reader", error.code, (str(error),))

    def rendering(self, flyte: str, operator: Operator, release: str, answers: _Answers) -> Rendering:
        """With one operator."""
        values: dict[str, Any] = {"pods": (), "pod_count": 0, "refusal": self.refusal}
        if self.pod is not None:
            values |= {"pods": (self.pod,), "pod_count": 1}
        elif self.job is not None:
            values |= answers.of(self.job, operator)
        return Rendering(flyte=flyte, reader=self.reader, operator=release, job=self.job, notes=self.notes, **values)


class _Answers:
    """What the operators make of jobs; each is asked once about a job, which many readers make."""

    def __init__(self, *, has_pods: bool) -> None:
        self._has_pods = has_pods
        self._known: list[tuple[dict[str, Any], dict[str, dict[str, Any]]]] = []

    def of(self, job: dict[str, Any], operator: Operator) -> dict[str, Any]:
        """As values of a `Rendering`."""
        answers = next((answers for known, answers in self._known if known == job), None)
        if answers is None:
            answers = {}
            self._known.append((job, answers))
        if operator.first not in answers:
            answers[operator.first] = _operated(job, operator, has_pods=self._has_pods)
        return answers[operator.first]


def _operated(job: dict[str, Any], operator: Operator, *, has_pods: bool) -> dict[str, Any]:
    """What the API server and the operator make of a job."""
    if refused := refusals_of_definition(job, operator):
        return {"refusal": Refusal("api server", "Invalid", tuple(refused))}
    warnings = warnings_of(job, operator)
    if refused := refusals_of_operator(job, operator):
        if not goes_on(operator):
            return {"refusal": Refusal("operator", None, tuple(refused)), "warnings": tuple(warnings)}
        warnings += refused
    if lacks_port(job):
        return {"refusal": Refusal("operator", None, ("port not found",)), "warnings": tuple(warnings)}
    pods = tuple(make_pods(with_defaults(job, operator), operator, range(_MOST_PODS))) if has_pods else ()
    specs = job["spec"]["pytorchReplicaSpecs"].values()
    return {
        "pods": pods,
        "pod_count": sum(max(spec.get("replicas", 1), 1) for spec in specs),
        "warnings": tuple(warnings),
        "deleted_next": tuple(deleted_next(job)),
    }


def _plain_pod(maker: PodMaker) -> Pod:
    made = maker.make()
    name = maker.overrides.name
    metadata = {key: made.metadata.get(key, {}) for key in ("labels", "annotations")}
    return Pod(name=name, role="", index=0, node_rank=None, spec=made.spec, **metadata)


def as_message(template: Any) -> Any:
    """A template as a message of flyteidl or flyteidl2.

    Raises:
        TypeError: it is none.
    """
    from flyteidl.core import tasks_pb2
    from google.protobuf import json_format

    if isinstance(template, Mapping):
        try:
            return json_format.ParseDict(dict(template), tasks_pb2.TaskTemplate(), ignore_unknown_fields=True)
        except json_format.ParseError as error:
            raise TypeError(f"template: no proto3 JSON of a TaskTemplate: {error}") from error
    if hasattr(template, "to_flyte_idl"):
        template = template.to_flyte_idl()
    name = getattr(getattr(template, "DESCRIPTOR", None), "full_name", None)
    if name not in ("flyteidl.core.TaskTemplate", "flyteidl2.core.TaskTemplate"):
        raise TypeError(f"template: expected a TaskTemplate of flyteidl or flyteidl2, or a dict, not {type(template)}")
    return template


def _table(pods: tuple[Pod, ...]) -> list[str]:
    columns = [name for name in _SHOWN if any(name in pod.environment for pod in pods)]
    rows = [["pod", "image", *columns]]
    for pod in pods:
        main = next((each for each in pod.containers if each["name"] == CONTAINER_NAME), pod.containers[0])
        values = [pod.environment.get(name, "-") or '""' for name in columns]
        rows.append([pod.name, main.get("image", ""), *values])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
