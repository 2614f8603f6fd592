"""The pod that Flyte makes of a task: its container or k8s_pod target, with what the platform and the execution add."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format

from flyte_torchrun.backend.errors import ReaderError
from flyte_torchrun.backend.jsonpb import JsonError
from flyte_torchrun.backend.platform import Overrides, PlatformDefaults
from flyte_torchrun.backend.podshape import without_null, wrong_kinds
from flyte_torchrun.backend.quantity import QuantityError, parse_quantity
from flyte_torchrun.backend.resources import ResourceRequirements, from_kubernetes, from_task
from flyte_torchrun.backend.structs import struct_to_json
from flyte_torchrun.schema import InitContainers, Reader

__all__ = ["PodMaker", "PodTemplate"]

_PRIMARY_KEY = "primary_container_name"
_NOT_PARSED = "Failed to parse resource as a valid quantity."
_PLACEHOLDERS = {
    "input": "Input",
    "output_prefix": "OutputPrefix",
    "input_prefix": "InputPrefix",
    "raw_output_prefix": "RawOutputDataPrefix",
    "previous_checkpoint_prefix": "PrevCheckpointPrefix",
    "checkpoint_prefix": "CheckpointOutputPrefix",
    "retry_key": "PerRetryUniqueKey",
    "task_template": "TaskTemplatePath",
    "namespace": "Namespace",
}
_PATTERNS = {key: re.compile(rf"{{{{\s*[.$]{name}\s*}}}}", re.IGNORECASE) for key, name in _PLACEHOLDERS.items()}
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(slots=True)
class PodTemplate:
    """A pod's metadata and specification as Kubernetes' JSON, and which container is the task's."""

    metadata: dict[str, Any]
    spec: dict[str, Any]
    primary: str

    def primary_containers(self) -> list[dict[str, Any]]:
        """The containers of that name; a pod may have two."""
        return [container for container in self.spec["containers"] if container["name"] == self.primary]


@dataclass(frozen=True)
class PodMaker:
    """Makes the pods of one task for one reader.

    Attributes:
        template: a flyteidl or flyteidl2 TaskTemplate.
        reader: whose behaviour it is.
        platform: what the administrator has set.
        overrides: what the execution adds.
    """

    template: Any
    reader: Reader
    platform: PlatformDefaults
    overrides: Overrides

    @functools.cached_property
    def platform_resources(self) -> ResourceRequirements:
        """Defaults as requests, and limits."""
        given: Mapping[str, Any] = {}
        if self.reader.has_platform_resources:
            given = {"requests": self.platform.requests, "limits": self.platform.limits}
        found = from_kubernetes(given)
        for name, amount in (("cpu", self.platform.plugin_cpu), ("memory", self.platform.plugin_memory)):
            found.requests.setdefault(name, parse_quantity(amount))
        return found

    def make(self, above: ResourceRequirements | None = None) -> PodTemplate:
        """The pod.

        Args:
            above: laid over the task's resources in place of with_overrides; None: with_overrides is.

        Raises:
            ReaderError: the task has no target that can be made a pod.
        """
        kind = self.template.WhichOneof("target")
        if kind == "container":
            pod = self._of_container()
        elif not self.reader.takes_pods:
            raise ReaderError("container not specified in task template", code=None)
        elif kind == "k8s_pod":
            pod = self._of_pod()
        else:
            raise ReaderError("invalid TaskSpecification, unable to determine Pod configuration")
        self._decorate(pod, self._overriding_resources() if above is None else above, kind)
        if self.reader.adds_execution_metadata:
            for key, default in (("annotations", self.platform.annotations), ("labels", self.platform.labels)):
                pod.metadata[key] = {**default, **pod.metadata[key], **getattr(self.overrides, key)}
        pod.metadata = {key: value for key, value in pod.metadata.items() if value}
        return pod

    def _of_container(self) -> PodTemplate:
        target = self.template.container
        name = self.overrides.name if _LABEL.fullmatch(self.overrides.name) else "pytorch"
        container: dict[str, Any] = {
            "name": name,
            "image": target.image,
            "command": list(target.command),
            "args": list(target.args),
            "env": [self.variable(pair.key, pair.value) for pair in target.env],
            "resources": self.task_resources(),
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }
        return PodTemplate({"annotations": {}, "labels": {}}, {"containers": [container]}, name)

    def _of_pod(self) -> PodTemplate:
        target = self.template.k8s_pod
        if not target.HasField("pod_spec"):
            raise ReaderError(
                "Pod tasks with task type version > 1 should specify their target as a K8sPod with a defined pod spec"
            )
        try:
            spec = struct_to_json(target.pod_spec)
        except JsonError as error:
            raise ReaderError(f"Unable to unmarshal task k8s pod, Err: [{error}]") from error
        if wrong := next(wrong_kinds(spec), None):
            raise _unreadable_pod(spec, wrong)
        spec = without_null(spec)
        containers = spec.setdefault("containers", [])
        primary = self.template.config.get(_PRIMARY_KEY)
        if primary is None:
            given = " ".join(f"{key}:{value}" for key, value in sorted(self.template.config.items()))
            raise ReaderError(f"invalid TaskSpecification, config missing [{_PRIMARY_KEY}] key in [map[{given}]]")
        for container in [*containers, *spec.get("initContainers", ())]:
            container.setdefault("name", "")
            for key in [key for key, value in container.items() if key != "name" and value in ("", [])]:
                del container[key]
            try:
                container["resources"] = from_kubernetes(container.get("resources") or {})
            except QuantityError as error:
                raise _unreadable_pod(spec, str(error)) from error
        metadata = {"annotations": dict(target.metadata.annotations), "labels": dict(target.metadata.labels)}
        return PodTemplate(metadata, spec, primary)

    def task_resources(self) -> ResourceRequirements:
        """What the task's container asks for.

        Raises:
            ReaderError: an amount cannot be read.
        """
        resources = json_format.MessageToDict(self.template.container.resources)
        try:
            return from_task(resources, has_storage=self.reader.has_storage)
        except QuantityError as error:
            raise ReaderError(f"{_NOT_PARSED}: {error}", code=None) from error

    def _overriding_resources(self) -> ResourceRequirements:
        given = from_kubernetes({"requests": self.overrides.requests, "limits": self.overrides.limits})
        is_given = bool(given.requests or given.limits)
        if not is_given and self.reader.task_resources_are_overrides and self.template.HasField("container"):
            return self.task_resources()
        return given

    def _decorate(self, pod: PodTemplate, above: ResourceRequirements, kind: str) -> None:
        platform = self.platform_resources
        added = self._variables() * (2 if self.reader.decorates_containers_twice and kind == "container" else 1)
        for container in pod.spec.get("initContainers", ()):
            treatment = self.reader.init_containers
            if treatment is InitContainers.LEFT:
                container["resources"] = container["resources"].to_kubernetes()
            else:
                is_merged = treatment is InitContainers.MERGED
                self._decorate_container(container, added, above if is_merged else None, platform)
        for container in pod.spec["containers"]:
            self._decorate_container(container, added, above if container["name"] == pod.primary else None, platform)
        if not pod.primary_containers():
            raise ReaderError(f"invalid TaskSpecification, primary container [{pod.primary}] not defined")
        pod.spec.setdefault("restartPolicy", "Never")
        pod.spec.setdefault("serviceAccountName", self.platform.service_account)
        pod.spec.setdefault("affinity", {})
        if self.reader.enables_service_links is not None:
            pod.spec.setdefault("enableServiceLinks", self.reader.enables_service_links)
        self._apply_extended_resources(pod)
        if self.reader.reads_image_override and self.overrides.container_image:
            pod.primary_containers()[0]["image"] = self.overrides.container_image

    def _decorate_container(
        self,
        container: dict[str, Any],
        added: list[dict[str, Any]],
        above: ResourceRequirements | None,
        platform: ResourceRequirements,
    ) -> None:
        """Fills in its command, adds the variables, and corrects its resources; None: nothing is laid over them."""
        for key in ("command", "args"):
            container[key] = [self._filled_in(text) for text in container.get(key) or ()]
        container["env"] = [*(container.get("env") or ()), *added]
        own: ResourceRequirements = container["resources"]
        own = own.gpu_named() if self.reader.names_gpu_first else own
        own = (own if above is None else own.merged(above)).filled(platform, assigns=above is not None)
        container["resources"] = (own.without_storage() if self.reader.has_storage else own).to_kubernetes()
        for key in ("image", "command", "args", "env"):
            if not container.get(key):
                container.pop(key, None)

    def _filled_in(self, text: str) -> str:
        """A command's word with what stands for `{{.input}}` and the like."""
        if "{{" not in text:
            return text
        name = re.sub(r"^[^a-zA-Z_]+", "a", self.overrides.name)
        values = {
            **self.overrides.paths,
            "retry_key": re.sub(r"[^a-zA-Z0-9_]+", "_", name),
            "namespace": self.namespace,
        }
        values["previous_checkpoint_prefix"] = values["previous_checkpoint_prefix"] or '""'
        for key, pattern in _PATTERNS.items():
            text = pattern.sub(values[key].replace("\\", r"\\"), text)
        return text

    @property
    def namespace(self) -> str:
        """Where the job is made."""
        return self.platform.namespace or f"{self.overrides.project}-{self.overrides.domain}"

    def _variables(self) -> list[dict[str, Any]]:
        """What Flyte appends to each container's environment."""
        task, overrides = self.template.id, self.overrides
        variables: dict[str, Any] = {
            "FLYTE_INTERNAL_EXECUTION_ID": overrides.execution,
            "FLYTE_INTERNAL_EXECUTION_PROJECT": overrides.project,
            "FLYTE_INTERNAL_EXECUTION_DOMAIN": overrides.domain,
        }
        if self.reader.pod_name_variable:
            variables["_F_PN"] = None
        variables["FLYTE_ATTEMPT_NUMBER"] = str(overrides.attempt)
        named = {"PROJECT": task.project, "DOMAIN": task.domain, "NAME": task.name, "VERSION": task.version}
        variables.update({f"FLYTE_INTERNAL_TASK_{key}": value for key, value in named.items()})
        if self.reader.has_internal_names:
            variables.update({f"FLYTE_INTERNAL_{key}": value for key, value in named.items()})
        listed = [self.variable(name, value) for name, value in variables.items()]
        given = overrides.environment if self.reader.reads_execution_environment else {}
        for environment in (given, self.platform.environment):
            listed += [self.variable(name, value) for name, value in sorted(environment.items())]
        return listed

    @staticmethod
    def variable(name: str, value: str | None) -> dict[str, Any]:
        """A variable; without a value, the pod's name."""
        if value is None:
            return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
        return {"name": name, "value": value} if value else {"name": name}

    def _apply_extended_resources(self, pod: PodTemplate) -> None:
        extended = json_format.MessageToDict(self.template.extended_resources)
        given = self.overrides.extended_resources or {}
        for key in ("gpuAccelerator", "sharedMemory"):
            if given.get(key) is not None:
                extended[key] = given[key]
        if self.reader.reads_accelerator and "gpuAccelerator" in extended:
            self._apply_accelerator(pod, extended["gpuAccelerator"])
        if self.reader.reads_shared_memory and "sharedMemory" in extended:
            _apply_shared_memory(pod, extended["sharedMemory"])

    def _apply_accelerator(self, pod: PodTemplate, accelerator: Mapping[str, Any]) -> None:
        """Node affinity and tolerations, where a container has GPUs."""
        if not any("nvidia.com/gpu" in each["resources"].get("limits", {}) for each in pod.spec["containers"]):
            return
        device, partition = self.platform.gpu_device_label, self.platform.gpu_partition_label
        if accelerator.get("device"):
            _require_node(pod, device, accelerator["device"])
            _tolerate(pod, device, accelerator["device"])
        if accelerator.get("unpartitioned"):
            _require_node(pod, partition, None)
        elif "partitionSize" in accelerator:
            size = accelerator["partitionSize"]
            _require_node(pod, partition, size)
            _tolerate(pod, partition, size)
            if self.reader.labels_partition and (slices := re.match(r"\d+", size)):
                pod.metadata["labels"]["platform.union.ai/gpu-partition-slices"] = slices[0]


def _unreadable_pod(spec: Mapping[str, Any], why: str) -> ReaderError:
    return ReaderError(f"Unable to unmarshal task k8s pod [{spec}], Err: [{why}]")


def _require_node(pod: PodTemplate, label: str, value: str | None) -> None:
    """The node must have the label with that value; None: it must not have the label."""
    requirement: dict[str, Any] = {"key": label, "operator": "DoesNotExist"}
    if value is not None:
        requirement = {"key": label, "operator": "In", "values": [value]}
    affinity = pod.spec["affinity"].setdefault("nodeAffinity", {})
    required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    for term in required.get("nodeSelectorTerms") or required.setdefault("nodeSelectorTerms", [{}]):
        term.setdefault("matchExpressions", []).append(dict(requirement))


def _tolerate(pod: PodTemplate, label: str, value: str) -> None:
    toleration = {"key": label, "operator": "Equal", "value": value, "effect": "NoSchedule"}
    pod.spec.setdefault("tolerations", []).append({key: item for key, item in toleration.items() if item})


def _apply_shared_memory(pod: PodTemplate, memory: Mapping[str, Any]) -> None:
    name, path = memory.get("mountName", ""), memory.get("mountPath", "")
    if not name:
        raise ReaderError("mount name is not set")
    if not path:
        raise ReaderError("mount path is not set")
    container = pod.primary_containers()[-1]
    if any(volume.get("name") == name for volume in pod.spec.get("volumes", ())):
        raise ReaderError(f"A volume is already named {name} in pod spec")
    for mount in container.get("volumeMounts", ()):
        if mount.get("name") == name:
            raise ReaderError(f"A volume is already named {name} in container")
        if mount.get("mountPath") == path:
            raise ReaderError(f"{path} is already mounted in container")
    try:
        size = parse_quantity(memory.get("sizeLimit") or "0")
    except QuantityError as error:
        raise ReaderError(f"Unable to parse size limit: {error}") from error
    volume = {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": str(size)}}
    pod.spec.setdefault("volumes", []).append(volume)
    container.setdefault("volumeMounts", []).append({"name": name, "mountPath": path})
