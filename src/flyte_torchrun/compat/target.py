"""Writing a task for the releases that have to read it."""

from __future__ import annotations

import warnings
from typing import Any, Literal, TypeVar

from flyte_torchrun.compat.check import Finding, Verdict, check
from flyte_torchrun.contract import (
    CommonReplicaSpec,
    ContractError,
    DistributedPyTorchTrainingTask,
    ReplicaSpec,
    Resources,
    ValidationError,
)
from flyte_torchrun.schema import Reader, ReplicaResources, readers_in

__all__ = ["LossError", "LossWarning", "for_target", "to_template"]

Template = TypeVar("Template")


class LossError(ContractError, ValueError):
    """A release of the target would not honour all that is set.

    Attributes:
        findings: what it would not honour.
    """

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        self.findings = findings
        super().__init__(findings)

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings))


class LossWarning(UserWarning):
    """The same, as a warning."""


def to_template(
    task: DistributedPyTorchTrainingTask,
    template: Template,
    *,
    target: str,
    on_loss: Literal["raise", "warn"] = "raise",
) -> Template:
    """A copy of the template with the task in it, written so that all releases of the target read it.

    The helper's own `to_template` writes version 1 in the replica fields 1 to 4, whoever reads it; this chooses.

    Args:
        task: what to write.
        template: a flyteidl or flyteidl2 TaskTemplate.
        target: releases of Flyte, such as `>=1.6`, `1.10` or `flyte>=1.6`.
        on_loss: what to do where a field that is set would be lost.

    Raises:
        LossError: a field would be lost, and `on_loss` is `raise`.
        ReleaseError: no known release is in the target.
        ValidationError: the task's values make no sense.
    """
    written: Any = task.to_template(template, task_type=getattr(template, "type", "") or "pytorch")
    result, findings = for_target(written, target)
    if findings and on_loss == "raise":
        raise LossError(findings)
    for finding in findings:
        warnings.warn(str(finding), LossWarning, stacklevel=2)
    return result  # type: ignore[no-any-return]


def for_target(template: Any, target: str) -> tuple[Any, tuple[Finding, ...]]:
    """The template written for the target, and what its releases would not honour.

    Releases without the PyTorch plugin (Flyte 2.0.7 to 2.0.23) read nothing, whatever is written: `check` says so, this
    does not.

    Raises:
        ReleaseError: no known release is in the target.
        ContractError: the payload cannot be read.
    """
    releases = target.strip().removeprefix("flyte").strip()
    readers = readers_in(releases)
    task = DistributedPyTorchTrainingTask.from_template(template, allow_violations=True)
    result: Any = type(template)()
    result.CopyFrom(template)
    try:
        if all(reader.is_version_read for reader in readers):
            result = _plainly(task, _given(template, readers)).to_template(result, version=1, task_type=template.type)
        else:
            result = _plainly(task, None).to_template(result, version=0, task_type=template.type)
    except ValidationError:  # version 0 has no place for it: then the check below says what is lost
        result = _plainly(task, None).to_template(result, version=1, task_type=template.type)
    report = check(result, flyte=releases)
    reading = {reader.name for reader in readers if reader.is_linked}
    lost = (each for each in report.findings if each.verdict > Verdict.ADVICE and not each.operators)
    return result, tuple(finding for finding in lost if reading & set(finding.flyte))


def _given(template: Any, readers: tuple[Reader, ...]) -> Resources | None:
    """What a replica that asks for nothing has to ask for: the task's own resources, where a reader would wipe them."""
    wipes = any(reader.replica_resources is ReplicaResources.REPLACE_OR_WIPE for reader in readers)
    return Resources.from_proto(template.container.resources) if wipes and template.HasField("container") else None


def _plainly(task: DistributedPyTorchTrainingTask, own: Resources | None) -> DistributedPyTorchTrainingTask:
    """The task in the fields that most releases read: 1 to 4 in place of `common`, and no empty resources.

    Args:
        task: what is meant.
        own: what a replica that asks for nothing is given: the task's own, where a reader would wipe them.
    """
    values: dict[str, Any] = {field.name: getattr(task, field.name) for field, _ in task.schema.fields}
    for name in ("worker_replicas", "master_replicas"):
        spec: ReplicaSpec | None = values[name]
        if spec is None:
            continue
        of_spec: ReplicaSpec | CommonReplicaSpec = spec.common or spec
        asked = of_spec.resources
        if asked is None or not (asked.requests or asked.limits):
            asked = own if own is not None and (own.requests or own.limits) else None
        values[name] = ReplicaSpec.unchecked(
            {
                "replicas": of_spec.replicas,
                "image": of_spec.image,
                "resources": asked,
                "restart_policy": of_spec.restart_policy,
                "common": None,
                "unknown_fields": spec.unknown_fields,
            }
        )
    if task.elastic_config is not None:
        values["master_replicas"] = None
    return DistributedPyTorchTrainingTask.unchecked({**values, "unknown_fields": task.unknown_fields})
