"""What to do about a finding: rules, the first that fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flyte_torchrun.backend import Rendering
from flyte_torchrun.compat.intent import Intent
from flyte_torchrun.schema.messages import schema_of

__all__ = ["mend_for"]


@dataclass(frozen=True, slots=True)
class _Case:
    path: str
    reason: str
    rendering: Rendering
    intent: Intent

    @property
    def version(self) -> int:
        return int(self.intent.template.task_type_version)

    @property
    def is_version_1_layout(self) -> bool:
        return self.intent.task is not None and "workers" not in self.intent.template.custom.fields

    @property
    def uses_unread_common(self) -> bool:
        task = self.intent.task
        spec = task.worker_replicas if task is not None else None
        messages = schema_of(self.rendering.reader.schema).messages
        knows_common = any(name.endswith(".CommonReplicaSpec") for name in messages)
        return spec is not None and spec.common is not None and not knows_common


_RULES: tuple[tuple[Callable[[_Case], bool], str], ...] = (
    (lambda case: not case.rendering.reader.is_linked, "use Flyte 2.0.24 or newer: these releases have no such plugin"),
    (lambda case: "unsupported task template version" in case.reason, "write task_type_version 0 or 1"),
    (lambda case: "for enum" in case.reason, "write a name that the release's schema has"),
    (lambda case: "cannot unmarshal" in case.reason, "write the kind of value that the schema has"),
    (
        lambda case: "Duplicate value" in case.reason and case.rendering.reader.decorates_containers_twice,
        "use an operator before 1.9: this Flyte writes each of its own variables twice",
    ),
    (lambda case: "Duplicate value" in case.reason, "set it in one place only, the task or the execution"),
    (
        lambda case: "[Master].replicas" in case.reason,
        "use Flyte 1.10.6 or newer, or an operator before 1.8: this Flyte leaves the Master's replicas unset",
    ),
    (lambda case: "DNS-1035" in case.reason, "the job's name must begin with a letter, and have at most 63 characters"),
    (
        lambda case: case.version == 0 and case.is_version_1_layout and case.rendering.reader.is_version_read,
        "set task_type_version 1: flytekit 1.7.0, 1.7.1 and 1.2.14 to 1.2.17 wrote the layout of version 1 under 0",
    ),
    (
        lambda case: case.is_version_1_layout and not case.rendering.reader.is_version_read,
        "version 1 is read since Flyte 1.7; for an older one write version 0, that is `workers` and `elasticConfig`",
    ),
    (
        lambda case: ".common" in case.path,
        "write the same values in the replica's own fields 1 to 4, too: `common` is read since Flyte 1.13",
    ),
    (
        lambda case: case.path == "task" and "number of worker" in case.reason and case.uses_unread_common,
        "write the same values in the replica's own fields 1 to 4, too: `common` is read since Flyte 1.13",
    ),
    (
        lambda case: (
            case.path == "task" and "worker" in case.reason and "0" in case.reason and "Err" not in case.reason
        ),
        "ask for at least 1 worker: 0 is taken by Flyte 1.15 to 1.16 only",
    ),
    (lambda case: case.reason == "deleted", "ask for at least 1 worker"),
    (lambda case: "must be configured if elastic" in case.reason, "ask for at least 1 worker"),
    (lambda case: "0 reads as unset" in case.reason, "leave it out, or write at least 1: 0 cannot be told from unset"),
    (
        lambda case: case.path.startswith("masterReplicas") and "elastic" in case.reason,
        "leave the Master out of an elastic task",
    ),
    (lambda case: "one Master" in case.reason, "write 1"),
    (
        lambda case: case.path.startswith("elasticConfig") and case.rendering.reader.schema == "flyteidl-0.19.18",
        "use Flyte 1.6 or newer: these releases know no elastic jobs, and each pod would wait for the others alone",
    ),
    (
        lambda case: case.path == "container.resources" and "wiped" in case.reason,
        "write the resources in the replica, too",
    ),
    (
        lambda case: case.path == "container.resources",
        "name cpu and memory in the replica's resources, and leave out `resources` that are empty",
    ),
    (lambda case: case.path.endswith("resources"), "ask for no more than the platform's limits and the task's own"),
)


def mend_for(path: str, rendering: Rendering, intent: Intent, reason: str) -> str:
    """What to do; empty: nothing is known."""
    case = _Case(path, reason, rendering, intent)
    return next((mend for fits, mend in _RULES if fits(case)), "")
