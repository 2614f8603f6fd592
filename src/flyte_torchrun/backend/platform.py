"""What a platform and an execution add to a task: the administrator's defaults, and what the caller overrides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flyte_torchrun.backend.quantity import QuantityError, parse_quantity
from flyte_torchrun.contract.frozen import FrozenMapping

__all__ = ["Overrides", "PlatformDefaults"]

_NOTHING: Mapping[str, Any] = FrozenMapping()
_PATHS = FrozenMapping(
    {
        "input_prefix": "s3://bucket/input",
        "input": "s3://bucket/input/inputs.pb",
        "output_prefix": "s3://bucket/output",
        "raw_output_prefix": "s3://bucket/raw",
        "checkpoint_prefix": "s3://bucket/checkpoints",
        "previous_checkpoint_prefix": "",
        "task_template": "s3://bucket/task.pb",
    }
)


def _check_resources(**resources: Mapping[str, str]) -> None:
    wrong = []
    for where, amounts in resources.items():
        for name, amount in amounts.items():
            try:
                parse_quantity(amount if isinstance(amount, str) else "")
            except QuantityError as error:
                wrong.append(f"{where}[{name!r}]: {amount!r} is not allowed; allowed: a Kubernetes quantity ({error})")
    if wrong:
        raise ValueError("\n".join(wrong))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformDefaults:
    """What the administrator of a Flyte has set. The defaults are Flyte's own.

    Attributes:
        requests: Kubernetes quantities by resource that a container gets which asks for none (flyteadmin's
            task_resources.defaults; Flyte 1).
        limits: the most that a container may have (task_resources.limits; Flyte 1). What is above is cut.
        plugin_cpu: what a container gets where `requests` has no cpu, and in Flyte 2 (k8s.default-cpus).
        plugin_memory: the same for memory (k8s.default-memory).
        gpu_device_label: the node label that an accelerator is looked for by.
        gpu_partition_label: the same for its partition size.
        annotations: of each pod (k8s.default-annotations), from Flyte 1.9.
        labels: of each pod (k8s.default-labels), from Flyte 1.9.
        environment: of each container, after the execution's (k8s.default-env-vars).
        namespace: where the job is made; None: `project-domain`.
        service_account: of each pod.

    Raises:
        ValueError: an amount is no Kubernetes quantity.
    """

    requests: Mapping[str, str] = FrozenMapping({"cpu": "2", "memory": "200Mi"})
    limits: Mapping[str, str] = FrozenMapping({"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "1"})
    plugin_cpu: str = "1"
    plugin_memory: str = "1Gi"
    gpu_device_label: str = "k8s.amazonaws.com/accelerator"
    gpu_partition_label: str = "k8s.amazonaws.com/gpu-partition-size"
    annotations: Mapping[str, str] = FrozenMapping({"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"})
    labels: Mapping[str, str] = _NOTHING
    environment: Mapping[str, str] = _NOTHING
    namespace: str | None = None
    service_account: str = "default"

    def __post_init__(self) -> None:
        plugin = {"cpu": self.plugin_cpu, "memory": self.plugin_memory}
        _check_resources(requests=self.requests, limits=self.limits, plugin=plugin)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """What one execution adds to the task.

    Attributes:
        name: the job's name; Flyte makes it of the execution's and the node's.
        requests: with_overrides(requests=...), Kubernetes quantities by resource.
        limits: with_overrides(limits=...).
        container_image: with_overrides(container_image=...); None: none.
        extended_resources: with_overrides(accelerator=..., shared_memory=...), as proto3 JSON of ExtendedResources.
        interruptible: whether it may be preempted. By default the platform does nothing with it.
        environment: of the execution (`pyflyte run --env`).
        labels: of the execution.
        annotations: of the execution.
        project: of the execution.
        domain: of the execution.
        execution: its id.
        attempt: of the task, from 0.
        paths: what stands for `{{.input}}`, `{{.outputPrefix}}` and the like in commands, by name: `input`,
            `input_prefix`, `output_prefix`, `raw_output_prefix`, `checkpoint_prefix`, `previous_checkpoint_prefix`,
            `task_template`.

    Raises:
        ValueError: an amount is no Kubernetes quantity.
    """

    name: str = "execution-n0-0"
    requests: Mapping[str, str] = _NOTHING
    limits: Mapping[str, str] = _NOTHING
    container_image: str | None = None
    extended_resources: Mapping[str, Any] | None = None
    interruptible: bool = False
    environment: Mapping[str, str] = _NOTHING
    labels: Mapping[str, str] = _NOTHING
    annotations: Mapping[str, str] = _NOTHING
    project: str = "flytesnacks"
    domain: str = "development"
    execution: str = "execution"
    attempt: int = 0
    paths: Mapping[str, str] = _PATHS

    def __post_init__(self) -> None:
        _check_resources(requests=self.requests, limits=self.limits)
        object.__setattr__(self, "paths", FrozenMapping({**_PATHS, **self.paths}))
