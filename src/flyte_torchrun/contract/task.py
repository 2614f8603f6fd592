"""The payload of a distributed PyTorch task, and its place in a task template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from flyte_torchrun.contract.enums import RestartPolicy
from flyte_torchrun.contract.errors import (
    FieldTypeError,
    PayloadError,
    UnsupportedVersionError,
    ValidationError,
    Violation,
)
from flyte_torchrun.contract.frozen import FrozenMapping
from flyte_torchrun.contract.message import Field, Message, Nested, Schema, as_text
from flyte_torchrun.contract.policy import ElasticConfig, LaunchOptions, RunPolicy
from flyte_torchrun.contract.replicas import ReplicaSpec
from flyte_torchrun.contract.structs import fill, plain, to_json

__all__ = ["DistributedPyTorchTrainingTask"]

Template = TypeVar("Template")

_TASK_TYPES = ("pytorch", "python-task")
_VERSIONS = (0, 1)
# A payload that has one of these, and no `workers`, is of version 1 whatever its template says.
_VERSION_1_KEYS = ("workerReplicas", "worker_replicas", "masterReplicas", "master_replicas")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DistributedPyTorchTrainingTask(Message):
    """A distributed PyTorch task: what a task template's `custom` holds, whichever version wrote it.

    Attributes:
        worker_replicas: the workers, at least one.
        master_replicas: the master, one pod; None: a pod like the task's own. Readers leave it out of an elastic job.
        run_policy: how the operator runs the job; None: its defaults.
        elastic_config: makes the job elastic; None: it is not.
        launch_options: how the ranks are started, our extension; None: none is written.
        unknown_fields: keys that the schema does not know, each with its value as JSON text. Every helper has these;
            what was read is written again.
    """

    worker_replicas: ReplicaSpec | None = None
    master_replicas: ReplicaSpec | None = None
    run_policy: RunPolicy | None = None
    elastic_config: ElasticConfig | None = None
    launch_options: LaunchOptions | None = None
    unknown_fields: Mapping[str, str] = FrozenMapping()

    schema: ClassVar[Schema] = Schema(
        "plugins.kubeflow.pytorch_pb2",
        "DistributedPyTorchTrainingTask",
        Field("worker_replicas", Nested(ReplicaSpec), has_presence=True),
        Field("master_replicas", Nested(ReplicaSpec), has_presence=True),
        Field("run_policy", Nested(RunPolicy), has_presence=True),
        Field("elastic_config", Nested(ElasticConfig), has_presence=True),
        Field("launch_options", Nested(LaunchOptions), json_name="torchrun"),
    )

    def check_together(self) -> Iterator[Violation]:
        workers = self.worker_replicas and (self.worker_replicas.common or self.worker_replicas)
        if workers is None or workers.replicas is None:
            where = "worker_replicas" if workers is None else "worker_replicas.replicas"
            yield Violation(where, None, "at least 1 worker: unset reads as 0")
        master = self.master_replicas and (self.master_replicas.common or self.master_replicas)
        if master is not None and master.replicas not in (None, 1):
            yield Violation("master_replicas.replicas", master.replicas, "1: a job has one master")

    @classmethod
    def from_proto(cls, pb: Any, *, allow_violations: bool = False) -> DistributedPyTorchTrainingTask:
        """As in every helper; the message of version 0 is taken too."""
        if "workers" not in getattr(getattr(pb, "DESCRIPTOR", None), "fields_by_name", ()):
            return super(DistributedPyTorchTrainingTask, cls).from_proto(pb, allow_violations=allow_violations)
        custom = {"workers": pb.workers or None}
        if pb.HasField("elastic_config"):
            custom["elasticConfig"] = ElasticConfig.read_message(pb.elastic_config).write()
        return cls.from_custom(custom, 0, allow_violations=allow_violations)

    @classmethod
    def from_custom(
        cls, custom: Any, version: int, *, allow_violations: bool = False
    ) -> DistributedPyTorchTrainingTask:
        """Reads the payload of a task template.

        Args:
            custom: a google.protobuf.Struct or a JSON object as a dict.
            version: the template's task_type_version, 0 or 1. A payload of version 1 under version 0, which flytekit
                1.7.0, 1.7.1 and 1.2.14 to 1.2.17 wrote, is read as what was meant.
            allow_violations: read what backends read although it makes no sense, such as 0 workers; `violations()` then
                lists it.

        Raises:
            UnsupportedVersionError: another version.
            PayloadError: the payload cannot be read; every unreadable value is listed.
            ValidationError: it makes no sense; every violation is listed.
        """
        if version not in _VERSIONS or isinstance(version, bool):
            raise UnsupportedVersionError(f"task_type_version: {version!r} is not supported; allowed: 0, 1")
        if custom is None:
            raise PayloadError([Violation("custom", None, "the payload, a JSON object")])
        values = to_json(custom) if hasattr(custom, "DESCRIPTOR") else plain(custom)
        if not isinstance(values, dict):
            raise PayloadError([Violation("custom", custom, "a JSON object")])
        problems: list[Violation] = []
        is_version_1_layout = any(values.get(key) is not None for key in _VERSION_1_KEYS)
        if version == 0 and (values.get("workers") is not None or not is_version_1_layout):
            helper = cls._read_version_0(values, problems)
            renamed = {"worker_replicas.replicas": "workers", "worker_replicas": "workers"}
        else:
            helper, renamed = cls.read(values, problems), {}
        error: type[PayloadError | ValidationError] = PayloadError
        found = tuple(problems)
        if not found and not allow_violations:
            error, found = ValidationError, helper.violations()
        if found:
            raise error(replace(violation, path=renamed.get(violation.path, violation.path)) for violation in found)
        return helper

    @classmethod
    def _read_version_0(cls, values: dict[str, Any], problems: list[Violation]) -> DistributedPyTorchTrainingTask:
        """Version 0 knows `workers` and the elastic config; what else version 1 knows is unknown to its readers."""
        of_version_0 = {"elasticConfig", "elastic_config", "torchrun"}
        unknown = {key: values.pop(key) for key in values.keys() & cls.schema.by_key.keys() - of_version_0}
        helper = cls.read({**values, "workerReplicas": {"replicas": values.pop("workers", None)}}, problems)
        unknown_fields = {**helper.unknown_fields, **{key: as_text(value) for key, value in unknown.items()}}
        unknown_fields.pop("workers", None)
        fields = {field.name: getattr(helper, field.name) for field, _ in cls.schema.fields}
        return cls.unchecked({**fields, "unknown_fields": FrozenMapping(unknown_fields)})

    def to_custom(self, version: int = 1) -> dict[str, Any]:
        """The payload as a JSON object: a value that is set is in it, zero included.

        Args:
            version: the task_type_version that it is for.

        Raises:
            UnsupportedVersionError: neither 0 nor 1.
            ValidationError: version 0 has no place for a value that is set.
        """
        if version not in _VERSIONS or isinstance(version, bool):
            raise UnsupportedVersionError(f"task_type_version: {version!r} is not supported; allowed: 0, 1")
        if version == 1:
            return self.write()
        if found := tuple(self._beyond_version_0()):
            raise ValidationError(found)
        written = self.write_unknown()
        if self.worker_replicas is not None and self.worker_replicas.replicas is not None:
            written["workers"] = self.worker_replicas.replicas
        if self.elastic_config is not None:
            written["elasticConfig"] = self.elastic_config.write()
        if self.launch_options is not None:
            written["torchrun"] = self.launch_options.write()
        return written

    def _beyond_version_0(self) -> Iterator[Violation]:
        allowed = "unset: version 0 has no place for it, write version 1"
        if self.run_policy is not None:
            yield Violation("run_policy", self.run_policy, allowed)
        for role in ("worker_replicas", "master_replicas"):
            spec = getattr(self, role)
            for field, _ in ReplicaSpec.schema.fields if spec is not None else ():
                value = getattr(spec, field.name)
                if field.name != "replicas" and value not in (None, RestartPolicy.NEVER):
                    yield Violation(f"{role}.{field.name}", value, allowed)
            if spec is not None and spec.unknown_fields:
                yield Violation(f"{role}.unknown_fields", spec.unknown_fields, allowed)

    @classmethod
    def from_template(cls, template: Any, *, allow_violations: bool = False) -> DistributedPyTorchTrainingTask:
        """Reads the payload of a flyteidl or flyteidl2 TaskTemplate: of type `pytorch`, or a `python-task` of one node.

        Raises:
            FieldTypeError: it is no TaskTemplate message.
            PayloadError: it is of another type, or has no payload that can be read.
            UnsupportedVersionError, ValidationError: as in `from_custom`.
        """
        _check_template(template)
        if template.type not in _TASK_TYPES:
            raise PayloadError([Violation("type", template.type, " or ".join(_TASK_TYPES))])
        custom = template.custom if template.HasField("custom") else None
        return cls.from_custom(custom, template.task_type_version, allow_violations=allow_violations)

    def to_template(self, template: Template, *, version: int = 1, task_type: str = "pytorch") -> Template:
        """A copy of the template with its type, task_type_version and custom set, and nothing else changed.

        Args:
            template: a flyteidl or flyteidl2 TaskTemplate.
            version: the task_type_version to write.
            task_type: `pytorch`, or `python-task` for a group that runs in the task's own pod.

        Raises:
            FieldTypeError: it is no TaskTemplate message.
            ValidationError: the task type is another, or version 0 has no place for a value that is set.
        """
        _check_template(template)
        if task_type not in _TASK_TYPES:
            raise ValidationError([Violation("task_type", task_type, " or ".join(_TASK_TYPES))])
        custom = self.to_custom(version)
        result: Any = type(template)()
        result.CopyFrom(template)
        result.type = task_type
        result.task_type_version = version
        result.custom.Clear()
        fill(result.custom, custom)
        return result  # type: ignore[no-any-return]


def _check_template(template: Any) -> None:
    name = getattr(getattr(template, "DESCRIPTOR", None), "full_name", None)
    if name not in ("flyteidl.core.TaskTemplate", "flyteidl2.core.TaskTemplate"):
        raise FieldTypeError(
            f"template: expected a TaskTemplate message of flyteidl or flyteidl2, not {type(template)}"
        )
