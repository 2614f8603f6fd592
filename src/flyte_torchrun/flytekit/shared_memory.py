"""A memory-backed /dev/shm in a task's pod.

A container has 64 MiB of shared memory of its own, which data loaders and NCCL outgrow ("bus error"). The volume is
part of the pod template, not of the extended resources of the task template: backends before Flyte 1.15 ignore those.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from flytekit import PodTemplate

if TYPE_CHECKING:
    from kubernetes.client import V1Container, V1PodSpec

__all__ = ["with_shared_memory"]

_MOUNT_PATH = "/dev/shm"


def with_shared_memory(template: PodTemplate | None, size: str | None) -> PodTemplate:
    """A copy of the pod template whose primary container has a memory-backed /dev/shm.

    Args:
        template: what the user wrote, never changed; None is an empty template.
        size: the volume's upper limit, a Kubernetes quantity; None: the memory limit of the pod.

    Returns:
        A template with exactly one mount at /dev/shm: the user's own where there is one.
    """
    from kubernetes.client import V1EmptyDirVolumeSource, V1PodSpec, V1Volume, V1VolumeMount

    result = copy.copy(template) if template is not None else PodTemplate()
    spec: V1PodSpec = copy.copy(result.pod_spec) if result.pod_spec is not None else V1PodSpec(containers=[])
    result.pod_spec = spec
    spec.containers = list(spec.containers or [])
    container = _own_primary_container(spec, result.primary_container_name)
    mounts = list(container.volume_mounts or [])
    if any(mount.mount_path.rstrip("/") == _MOUNT_PATH for mount in mounts):
        return result
    volumes = list(spec.volumes or [])
    name = _free_name({volume.name for volume in volumes})
    volumes.append(V1Volume(name=name, empty_dir=V1EmptyDirVolumeSource(medium="Memory", size_limit=size)))
    mounts.append(V1VolumeMount(name=name, mount_path=_MOUNT_PATH))
    spec.volumes, container.volume_mounts = volumes, mounts
    return result


def _own_primary_container(spec: V1PodSpec, name: str) -> V1Container:
    """The primary container, as a copy in the (already copied) list; added where the template has none."""
    from kubernetes.client import V1Container

    for index, container in enumerate(spec.containers):
        if container.name == name:
            spec.containers[index] = copy.copy(container)
            return spec.containers[index]
    spec.containers.append(V1Container(name=name))
    return spec.containers[-1]


def _free_name(taken: set[str]) -> str:
    name, number = "shm", 1
    while name in taken:
        number += 1
        name = f"shm-{number}"
    return name
