"""The replicas of a job and their resources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from flyte_torchrun.contract.enums import ResourceName, RestartPolicy
from flyte_torchrun.contract.errors import Violation
from flyte_torchrun.contract.frozen import FrozenMapping
from flyte_torchrun.contract.kinds import Enum, Int32, Repeated, Text, quantity
from flyte_torchrun.contract.message import Field, Message, Nested, Schema

__all__ = ["CommonReplicaSpec", "ReplicaSpec", "ResourceEntry", "Resources"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ResourceEntry(Message):
    """One resource (flyteidl.core.Resources.ResourceEntry).

    Attributes:
        name: which resource.
        value: how much, a Kubernetes quantity such as `500m`, `2` or `1.5Gi`, not negative; readers drop zero.
    """

    name: ResourceName
    value: str
    unknown_fields: Mapping[str, str] = FrozenMapping()

    schema: ClassVar[Schema] = Schema(
        "core.tasks_pb2",
        "ResourceEntry",
        Field("name", Enum(ResourceName), Field.required),
        Field("value", quantity(zero_is_allowed=True), Field.required),
    )

    @classmethod
    def message_class(cls, package: str) -> object:
        return Resources.message_class(package).ResourceEntry


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Resources(Message):
    """What a container asks for (flyteidl.core.Resources). Order and repetition are kept.

    Attributes:
        requests: what the scheduler reserves.
        limits: what the container cannot exceed.
    """

    requests: tuple[ResourceEntry, ...] = ()
    limits: tuple[ResourceEntry, ...] = ()
    unknown_fields: Mapping[str, str] = FrozenMapping()

    schema: ClassVar[Schema] = Schema(
        "core.tasks_pb2",
        "Resources",
        Field("requests", Repeated(Nested(ResourceEntry)), ()),
        Field("limits", Repeated(Nested(ResourceEntry)), ()),
    )

    @classmethod
    def from_quantities(
        cls, *, requests: Mapping[str, str] | None = None, limits: Mapping[str, str] | None = None
    ) -> Resources:
        """Resources from names and quantities, such as `requests={"cpu": "2", "gpu": "1"}`."""

        def entries(quantities: Mapping[str, str] | None) -> tuple[ResourceEntry, ...]:
            return tuple(
                ResourceEntry(name=ResourceName(name), value=value) for name, value in (quantities or {}).items()
            )

        return cls(requests=entries(requests), limits=entries(limits))


_REPLICA_FIELDS = (
    Field("replicas", Int32(1)),
    Field("image", Text(bool, "a container image")),
    Field("resources", Nested(Resources), has_presence=True),
    Field("restart_policy", Enum(RestartPolicy)),
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CommonReplicaSpec(Message):
    """One kind of replica in the shared form (flyteidl.plugins.CommonReplicaSpec), read since Flyte 1.13.

    Attributes:
        replicas: number of pods, from 1; None: unset, which reads as 0.
        image: container image; None: the task's.
        resources: resources of the container; None: the task's.
        restart_policy: what the operator does when a pod ends; None: unset, which reads as NEVER.
    """

    replicas: int | None = None
    image: str | None = None
    resources: Resources | None = None
    restart_policy: RestartPolicy | None = None
    unknown_fields: Mapping[str, str] = FrozenMapping()

    schema: ClassVar[Schema] = Schema("plugins.common_pb2", "CommonReplicaSpec", *_REPLICA_FIELDS)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ReplicaSpec(Message):
    """One kind of replica (flyteidl.plugins.kubeflow.DistributedPyTorchTrainingReplicaSpec).

    Attributes:
        replicas, image, resources, restart_policy: as in `CommonReplicaSpec`; honoured by every reader since Flyte 1.7.
        common: the same in the shared form, read since Flyte 1.13, which then ignores the other four; a value that is
            set in both has to be the same.
    """

    replicas: int | None = None
    image: str | None = None
    resources: Resources | None = None
    restart_policy: RestartPolicy | None = None
    common: CommonReplicaSpec | None = None
    unknown_fields: Mapping[str, str] = FrozenMapping()

    schema: ClassVar[Schema] = Schema(
        "plugins.kubeflow.pytorch_pb2",
        "DistributedPyTorchTrainingReplicaSpec",
        *_REPLICA_FIELDS,
        Field("common", Nested(CommonReplicaSpec), has_presence=True),
    )

    @classmethod
    def read_message(cls, pb: Any) -> ReplicaSpec:
        helper = super(ReplicaSpec, cls).read_message(pb)
        if helper.common is not None and helper.restart_policy is RestartPolicy.NEVER:
            object.__setattr__(helper, "restart_policy", None)  # beside `common` the zero says that nothing was set
        return helper

    def check_together(self) -> Iterator[Violation]:
        if self.common is None:
            return
        for field in _REPLICA_FIELDS:
            value, common = getattr(self, field.name), getattr(self.common, field.name)
            if value is not None and value != common:
                allowed = f"unset, or what common.{field.name} is: {common!r}"
                yield Violation(field.name, value, allowed)
