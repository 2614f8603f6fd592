"""What a task means, and where in a PyTorchJob that has to show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flyte_torchrun.backend import as_message
from flyte_torchrun.contract import (
    CleanPodPolicy,
    CommonReplicaSpec,
    ContractError,
    DistributedPyTorchTrainingTask,
    ReplicaSpec,
    Resources,
    RestartPolicy,
)

__all__ = ["Expectation", "Intent", "intent_of"]

_RESOURCES = {
    "CPU": "cpu",
    "MEMORY": "memory",
    "GPU": "nvidia.com/gpu",
    "EPHEMERAL_STORAGE": "ephemeral-storage",
    "STORAGE": "storage",
}
_RESTARTS = {RestartPolicy.NEVER: "Never", RestartPolicy.ON_FAILURE: "OnFailure", RestartPolicy.ALWAYS: "Always"}
_CLEANS = {CleanPodPolicy.NONE: "None", CleanPodPolicy.RUNNING: "Running", CleanPodPolicy.ALL: "All"}
_RUN = {
    "ttl_seconds_after_finished": "ttlSecondsAfterFinished",
    "active_deadline_seconds": "activeDeadlineSeconds",
    "backoff_limit": "backoffLimit",
}
_ELASTIC = {
    "rdzv_backend": ("rdzvBackend", "rdzvBackend"),
    "min_replicas": ("minReplicas", "minReplicas"),
    "max_replicas": ("maxReplicas", "maxReplicas"),
    "nproc_per_node": ("nprocPerNode", "nProcPerNode"),
    "max_restarts": ("maxRestarts", "maxRestarts"),
}


@dataclass(frozen=True, slots=True)
class Expectation:
    """A value that was set, and where the job must have it.

    Attributes:
        path: the field of the payload, in JSON's names.
        value: what the job must have.
        place: the keys to it below the job's `spec`; a container is found by its name.
        may_be_absent: whether the job means the same without it.
    """

    path: str
    value: Any
    place: tuple[str, ...]
    may_be_absent: bool = False

    def find(self, job: Mapping[str, Any]) -> Any:
        """What the job has there; None: nothing."""
        found: Any = job["spec"]
        for key in self.place:
            if isinstance(found, list):
                found = next((item for item in found if item["name"] == key), None)
            else:
                found = found.get(key)
            if found is None:
                return None
        return found


@dataclass(frozen=True, slots=True)
class Intent:
    """What is meant.

    Attributes:
        template: the template as a message.
        task: the payload as the helper; None: it cannot be read.
        expectations: what the job has to show.
    """

    template: Any
    task: DistributedPyTorchTrainingTask | None
    expectations: tuple[Expectation, ...] = field(default=())

    @property
    def is_pytorch(self) -> bool:
        """Whether a backend should make a PyTorchJob of it."""
        return bool(self.template.type == "pytorch")


def intent_of(template: Any) -> Intent:
    """What the task means, whatever a backend reads.

    Raises:
        TypeError: the template is none.
    """
    message = as_message(template)
    try:
        custom = message.custom if message.HasField("custom") else None
        task = DistributedPyTorchTrainingTask.from_custom(custom, message.task_type_version, allow_violations=True)
    except ContractError:
        return Intent(message, None)
    return Intent(message, task, tuple(_expectations(task, message)))


def _expectations(task: DistributedPyTorchTrainingTask, template: Any) -> Iterator[Expectation]:
    is_version_0 = template.task_type_version == 0 and "workers" in template.custom.fields
    yield from _replica(task.worker_replicas, "workerReplicas", "Worker", template, is_version_0=is_version_0)
    yield from _replica(task.master_replicas, "masterReplicas", "Master", template)
    policy = task.run_policy
    if policy is not None and policy.clean_pod_policy is not None:
        place = ("runPolicy", "cleanPodPolicy")
        yield Expectation("runPolicy.cleanPodPolicy", _CLEANS.get(policy.clean_pod_policy, ""), place)
    for name, json_name in _RUN.items():
        if policy is not None and getattr(policy, name) is not None:
            yield Expectation(f"runPolicy.{json_name}", getattr(policy, name), ("runPolicy", json_name))
    for name, (json_name, job_name) in _ELASTIC.items():
        value = getattr(task.elastic_config, name) if task.elastic_config is not None else None
        if value is not None:
            yield Expectation(f"elasticConfig.{json_name}", value, ("elasticPolicy", job_name))


def _replica(
    spec: ReplicaSpec | None, path: str, role: str, template: Any, *, is_version_0: bool = False
) -> Iterator[Expectation]:
    values: ReplicaSpec | CommonReplicaSpec | None = spec
    if spec is not None and spec.common is not None:
        values, path = spec.common, f"{path}.common"
    below = ("pytorchReplicaSpecs", role)
    container = (*below, "template", "spec", "containers", "pytorch")
    asked: dict[str, dict[str, str]] = {}
    if values is not None:
        if values.replicas is not None and (role == "Worker" or values.replicas):
            where = "workers" if is_version_0 else f"{path}.replicas"
            is_none = role == "Worker" and values.replicas <= 0
            yield Expectation(where, values.replicas, (*below, "replicas"), may_be_absent=is_none or role == "Master")
        if values.image:
            yield Expectation(f"{path}.image", values.image, (*container, "image"))
        if values.restart_policy is not None:
            yield Expectation(
                f"{path}.restartPolicy", _RESTARTS.get(values.restart_policy, ""), (*below, "restartPolicy")
            )
        asked = _amounts(values.resources)
        for side, amounts in asked.items():
            for name, amount in amounts.items():
                yield Expectation(f"{path}.resources", amount, (*container, "resources", side, name))
    if role == "Worker":
        yield from _of_task(template, asked, container)


def _of_task(template: Any, asked: dict[str, dict[str, str]], container: tuple[str, ...]) -> Iterator[Expectation]:
    """The task's own resources, where the replica does not name them itself."""
    named = {name for amounts in asked.values() for name in amounts}
    for side in ("requests", "limits"):
        for entry in getattr(template.container.resources, side):
            name = _RESOURCES.get(_name(entry), "")
            if name and name != "storage" and name not in named and entry.value not in ("", "0"):
                yield Expectation("container.resources", entry.value, (*container, "resources", side, name))


def _name(entry: Any) -> str:
    values = entry.DESCRIPTOR.fields_by_name["name"].enum_type.values_by_number
    return values[entry.name].name if entry.name in values else ""


def _amounts(resources: Resources | None) -> dict[str, dict[str, str]]:
    sides = {"requests": resources.requests, "limits": resources.limits} if resources is not None else {}
    return {
        side: {_RESOURCES[entry.name.name]: entry.value for entry in entries if entry.name.name in _RESOURCES}
        for side, entries in sides.items()
    }
