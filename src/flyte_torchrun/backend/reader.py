"""What a reader makes of a task template: the PyTorchJob, or its error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flyte_torchrun.backend.errors import ReaderError
from flyte_torchrun.backend.gotext import json_text
from flyte_torchrun.backend.jsonpb import JsonError, Payload, read_payload
from flyte_torchrun.backend.pod import PodMaker, PodTemplate
from flyte_torchrun.backend.quantity import QuantityError
from flyte_torchrun.backend.resources import ResourceRequirements, from_task
from flyte_torchrun.backend.structs import struct_to_json
from flyte_torchrun.schema import Reader, ReplicaResources, ZeroWorkers
from flyte_torchrun.schema.messages import Enumeration, schema_of

__all__ = ["CONTAINER_NAME", "Note", "Payloads", "build_job"]

CONTAINER_NAME = "pytorch"  # the operator looks for a container of this name

_RESTART_POLICIES = {0: "Never", 1: "OnFailure", 2: "Always"}
_CLEAN_POD_POLICIES = {0: "None", 1: "Running", 2: "All"}
_RUN_POLICY = {
    "backoff_limit": "backoffLimit",
    "active_deadline_seconds": "activeDeadlineSeconds",
    "ttl_seconds_after_finished": "ttlSecondsAfterFinished",
}
_ELASTIC = {
    "min_replicas": "minReplicas",
    "max_replicas": "maxReplicas",
    "nproc_per_node": "nProcPerNode",
    "max_restarts": "maxRestarts",
}
_JSON_NAMES = {"nproc_per_node": "nprocPerNode"}
_FILLED = (ReplicaResources.MERGE_FILLED, ReplicaResources.MERGE_FILLED_UNLESS_EMPTY)
_REPLACED = (ReplicaResources.REPLACE, ReplicaResources.REPLACE_OR_WIPE)


@dataclass(frozen=True, slots=True, order=True)
class Note:
    """Something that does not arrive as it was written.

    Attributes:
        path: the field in the payload, in JSON's names, such as `workerReplicas.resources`.
        effect: `dropped` or `changed`.
        text: what becomes of it.
    """

    path: str
    effect: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.effect}: {self.text}"


class Payloads:
    """A template's payload as each schema reads it; most readers share one with others."""

    def __init__(self, template: Any) -> None:
        self._template = template
        self._read: dict[tuple[str, int], Payload] = {}

    def read(self, schema: str, version: int) -> Payload:
        """The payload of a task_type_version.

        Raises:
            ReaderError: it cannot be read.
        """
        if (schema, version) not in self._read:
            self._read[schema, version] = self._payload(schema, version)
        return self._read[schema, version]

    def _payload(self, schema: str, version: int) -> Payload:
        custom = None
        try:
            if not self._template.HasField("custom"):
                raise JsonError("nil Struct Object passed")
            custom = struct_to_json(self._template.custom)
            return read_payload(custom, schema_of(schema), version)
        except JsonError as error:
            shown = "" if custom is None else json_text(custom)
            raise ReaderError(f"invalid TaskSpecification [{shown}], Err: [{error}]") from error


def build_job(maker: PodMaker, payloads: Payloads) -> tuple[dict[str, Any], list[Note]]:
    """The PyTorchJob as Kubernetes' JSON, and what did not arrive as it was written.

    Raises:
        ReaderError: the reader refuses the task.
    """
    return _Job(maker, payloads).build()


class _Job:
    def __init__(self, maker: PodMaker, payloads: Payloads) -> None:
        self.maker = maker
        self.payloads = payloads
        self.reader: Reader = maker.reader
        self.schema = schema_of(self.reader.schema)
        self.notes: list[Note] = []

    def build(self) -> tuple[dict[str, Any], list[Note]]:
        version = self.maker.template.task_type_version if self.reader.is_version_read else 0
        first = self._pod() if self.reader.builds_pod_first else None
        if version > 1:
            raise ReaderError(f"Invalid TaskSpecification, unsupported task template version [{version}] key")
        payload = self.payloads.read(self.reader.schema, version)
        values = payload.values
        self._note_unknown(payload, version)
        replicas = self._replicas_of_version_1(values, first) if version else self._replicas_of_version_0(values, first)
        elastic = values.get("elastic_config")
        self._check_workers(replicas)
        if elastic is not None and "Master" in replicas:
            del replicas["Master"]
            if "master_replicas" in values:
                self._note("masterReplicas", "dropped", "an elastic job has no Master")
        run_policy = self._run_policy(values.get("run_policy")) if version else {}
        spec: dict[str, Any] = {"pytorchReplicaSpecs": replicas, "runPolicy": run_policy}
        if elastic is not None:
            spec["elasticPolicy"] = self._elastic_policy(elastic)
        metadata: dict[str, Any] = {"name": self.maker.overrides.name, "namespace": self.maker.namespace}
        if self.reader.labels_the_job:
            metadata.update(self._labels_of_pod())
        job = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": metadata, "spec": spec}
        return job, self.notes

    def _note(self, path: str, effect: str, text: str) -> None:
        self.notes.append(Note(path, effect, text))

    def _note_unknown(self, payload: Payload, version: int) -> None:
        for path in sorted(payload.unknown):
            self._note(path, "dropped", f"the release's message of version {version} does not know it")
        for path in payload.hidden:
            self._note(path, "dropped", "the same key in camelCase is read")
        if not self.reader.is_version_read and self.maker.template.task_type_version:
            self._note("taskTypeVersion", "changed", "it is not looked at: the payload is read as version 0")

    def _pod(self, above: ResourceRequirements | None = None) -> PodTemplate:
        try:
            pod = self.maker.make(above)
        except ReaderError as error:
            raise ReaderError(f"Unable to create pod spec: [{error}]") from error
        is_container = self.maker.template.HasField("container")
        if is_container or self.reader.renames_primary_of_pods:
            pod.primary_containers()[0]["name"] = CONTAINER_NAME
        return pod

    def _labels_of_pod(self) -> dict[str, Any]:
        target = self.maker.template.k8s_pod.metadata
        found = {"labels": dict(target.labels), "annotations": dict(target.annotations)}
        return {key: value for key, value in found.items() if value}

    def _spec(self, pod: PodTemplate, replicas: int | None, restart_policy: str) -> dict[str, Any]:
        spec: dict[str, Any] = {} if replicas is None else {"replicas": replicas}
        spec["template"] = {"metadata": pod.metadata, "spec": pod.spec}
        if restart_policy:
            spec["restartPolicy"] = restart_policy
        return spec

    def _replicas_of_version_0(self, values: Mapping[str, Any], pod: PodTemplate | None) -> dict[str, Any]:
        pod = pod or self._pod_of(None, "", "")
        master = 1 if self.reader.sets_master_replicas else None
        return {
            "Master": self._spec(_copy_of(pod), master, "Never"),
            "Worker": self._spec(pod, values.get("workers", 0), "Never"),
        }

    def _replicas_of_version_1(self, values: Mapping[str, Any], pod: PodTemplate | None) -> dict[str, Any]:
        specs = {}
        for role, key in (("Master", "master_replicas"), ("Worker", "worker_replicas")):
            replica, path = _Replica(values.get(key)), f"{_camel(key)}"
            self._note_replica(replica, path)
            made = _copy_of(pod) if pod is not None else self._pod_of(replica, role, path)
            if pod is not None:
                self._override(made, replica, path)
            elif replica.image:
                for container in made.spec["containers"]:
                    if container["name"] == CONTAINER_NAME:
                        container["image"] = replica.image
            number: int | None = replica.replicas
            if role == "Master":
                number = 1 if self.reader.sets_master_replicas else None
            specs[role] = self._spec(made, number, replica.restart_policy)
        for name in self.reader.worker_variables:
            variable = self.maker.variable(name, "Earliest" if name == "_F_DES" else None)
            specs["Worker"]["template"]["spec"]["containers"][0].setdefault("env", []).append(variable)
        return specs

    def _note_replica(self, replica: _Replica, path: str) -> None:
        for name in replica.ignored:
            self._note(f"{path}.{_camel(name)}", "dropped", "`common` is read in its place, whole")
        if path == "masterReplicas" and replica.replicas > 1:
            self._note(f"{path}{replica.where}.replicas", "changed", "a job has one Master")
        if replica.restart_number not in _RESTART_POLICIES:
            self._note(
                f"{path}{replica.where}.restartPolicy", "changed", "no such number: the operator takes OnFailure"
            )

    def _override(self, pod: PodTemplate, replica: _Replica, path: str) -> None:
        """What a replica's fields do to the finished pod, where they do not go into its making."""
        if not replica.is_given:
            return
        resources = replica.resources
        for container in pod.spec["containers"]:
            if container["name"] != CONTAINER_NAME:
                continue
            if replica.image:
                container["image"] = replica.image
            if resources is None and self.reader.replica_resources is ReplicaResources.REPLACE_OR_WIPE:
                if container["resources"]:
                    self._note(f"{path}.resources", "changed", "unset: all that the task asks for is wiped")
                container["resources"] = {}
            elif resources is not None and any(resources.values()):
                container["resources"] = self._requirements(resources).to_kubernetes()

    def _requirements(self, resources: Mapping[str, Any]) -> ResourceRequirements:
        numbers = self._resource_names()
        named = {
            key: [{"name": numbers.get(entry.get("name", 0), ""), "value": entry.get("value", "")} for entry in entries]
            for key, entries in resources.items()
        }
        try:
            return from_task(named, has_storage=self.reader.has_storage)
        except QuantityError as error:
            words = f"{self.reader.resources_error}, Err: [Failed to parse resource as a valid quantity.: {error}]"
            raise ReaderError(words) from error

    def _resource_names(self) -> dict[int, str]:
        enum: Enumeration = self.schema.enums[f"{self.schema.package}.core.Resources.ResourceName"]
        return {number: name for name, number in enum.numbers.items()}

    def _pod_of(self, replica: _Replica | None, role: str, path: str) -> PodTemplate:
        """A pod in whose making the replica's resources go."""
        try:
            return self._pod(None if replica is None else self._above(replica, path))
        except ReaderError as error:
            if not self.reader.names_role_in_errors:
                raise
            what = f"{role.lower()} replica spec".strip()
            raise ReaderError(f"Unable to create {what}: [{error}]") from error

    def _above(self, replica: _Replica, path: str) -> ResourceRequirements | None:
        resources, rule = replica.resources, self.reader.replica_resources
        is_empty = not any((resources or {}).values())
        if resources is None or (is_empty and rule is ReplicaResources.MERGE_FILLED_UNLESS_EMPTY):
            return None
        asked = self._requirements(resources)
        overridden = [name for name in ("requests", "limits") if getattr(self.maker.overrides, name)]
        if overridden:
            self._note(f"{path}{replica.where}.resources", "changed", "it hides the resources of with_overrides")
        if rule not in _FILLED:
            return asked
        filled = asked.filled(self.maker.platform_resources, assigns=True)
        for name in ("cpu", "memory"):
            if name not in asked.requests and name not in asked.limits:
                text = (
                    f"{name} is not in it, and becomes the platform's {filled.requests[name]}, whatever the task asks"
                )
                self._note(f"{path}{replica.where}.resources", "changed", text)
        return filled

    def _check_workers(self, replicas: dict[str, Any]) -> None:
        number, rule = replicas["Worker"]["replicas"], self.reader.zero_workers
        is_refused = (rule is ZeroWorkers.ZERO_REFUSED and number == 0) or (rule is ZeroWorkers.REFUSED and number <= 0)
        if is_refused:
            raise ReaderError(self.reader.zero_workers_error, code=None)
        if number <= 0 and rule is ZeroWorkers.LEFT_OUT:
            del replicas["Worker"]
            self._note("workerReplicas.replicas", "changed", f"{number} workers: the job has no Worker")
        elif number <= 0:
            self._note("workerReplicas.replicas", "changed", f"the job has a Worker with replicas {number}")

    def _run_policy(self, policy: Mapping[str, Any] | None) -> dict[str, Any]:
        if policy is None:
            return {}
        written: dict[str, Any] = {}
        number = policy.get("clean_pod_policy", 0)
        written["cleanPodPolicy"] = _CLEAN_POD_POLICIES.get(number, "")
        if number not in _CLEAN_POD_POLICIES:
            self._note("runPolicy.cleanPodPolicy", "changed", "no such number: it becomes an empty text")
        for name, json_name in _RUN_POLICY.items():
            if policy.get(name, 0):
                written[json_name] = policy[name]
            elif name in policy:
                self._note(f"runPolicy.{json_name}", "dropped", "0 reads as unset")
        return written

    def _elastic_policy(self, elastic: Mapping[str, Any]) -> dict[str, Any]:
        written: dict[str, Any] = {json_name: elastic.get(name, 0) for name, json_name in _ELASTIC.items()}
        written["rdzvBackend"] = elastic.get("rdzv_backend", "")
        for name in (*_ELASTIC, "rdzv_backend"):
            if name not in elastic:
                text = 'unset becomes ""' if name == "rdzv_backend" else "unset becomes 0"
                self._note(f"elasticConfig.{_JSON_NAMES.get(name, _camel(name))}", "changed", f"{text}, not a default")
        return written


class _Replica:
    """A replica's four values, from wherever the reader takes them."""

    def __init__(self, spec: Mapping[str, Any] | None) -> None:
        self.is_given = spec is not None
        values = spec or {}
        common = values.get("common")
        self.where = ".common" if common is not None else ""
        self.ignored = [name for name in values if name != "common"] if common is not None else []
        values = values if common is None else common
        self.replicas: int = values.get("replicas", 0)
        self.image: str = values.get("image", "")
        self.resources: Mapping[str, Any] | None = values.get("resources")
        self.restart_number: int = values.get("restart_policy", 0)
        self.restart_policy = _RESTART_POLICIES.get(self.restart_number, "")


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _copy_of(pod: PodTemplate) -> PodTemplate:
    return PodTemplate(_copied(pod.metadata), _copied(pod.spec), pod.primary)
