"""The schema's enums, as Python enums.

Each can be made from its number, its name in any case, its name on the wire, or its name in Kubernetes:
`RestartPolicy(1)`, `RestartPolicy("on_failure")`, `RestartPolicy("RESTART_POLICY_ON_FAILURE")` and
`RestartPolicy("OnFailure")` are one member.
"""

from __future__ import annotations

import enum
from typing import Any

__all__ = ["CleanPodPolicy", "ResourceName", "RestartPolicy", "StartMethod", "SymbolicNprocPerNode", "WireEnum"]


class WireEnum(enum.Enum):
    """An enum whose values are the numbers on the wire."""

    @classmethod
    def _missing_(cls, value: object) -> Any:
        if isinstance(value, str):
            for name, member in cls.__members__.items():
                if value in (member.wire_name, name.title().replace("_", "")) or value.upper() == name:
                    return member
        names = ", ".join(cls.__members__)
        raise ValueError(f"{value!r} is not a {cls.__name__}; allowed: {names}, their numbers, their names on the wire")

    @property
    def wire_name(self) -> str:
        """The value's name in the schema and in proto3 JSON."""
        return f"{_PREFIXES[type(self).__name__]}{self.name}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


_PREFIXES = {
    "CleanPodPolicy": "CLEANPOD_POLICY_",
    "ResourceName": "",
    "RestartPolicy": "RESTART_POLICY_",
    "StartMethod": "START_METHOD_",
    "SymbolicNprocPerNode": "SYMBOLIC_NPROC_PER_NODE_",
}


class CleanPodPolicy(WireEnum):
    """Which pods the operator deletes once the job has ended (flyteidl.plugins.kubeflow.CleanPodPolicy)."""

    NONE = 0
    RUNNING = 1
    ALL = 2


class RestartPolicy(WireEnum):
    """When the operator starts a pod again (flyteidl.plugins.RestartPolicy)."""

    NEVER = 0
    ON_FAILURE = 1
    ALWAYS = 2
    FAILURE = 1  # the name that flytekit's kfpytorch plugin has for ON_FAILURE


class ResourceName(WireEnum):
    """The resources that a task can ask for (flyteidl.core.Resources.ResourceName); readers drop UNKNOWN."""

    UNKNOWN = 0
    CPU = 1
    GPU = 2
    MEMORY = 3
    STORAGE = 4
    EPHEMERAL_STORAGE = 5


class StartMethod(WireEnum):
    """How the ranks of a node are started (flyteidl_torchrun.v1.StartMethod)."""

    SPAWN = 1
    FORK = 2
    FORKSERVER = 3


class SymbolicNprocPerNode(WireEnum):
    """A number of ranks that is known only where they start (flyteidl_torchrun.v1.SymbolicNprocPerNode)."""

    AUTO = 1
    GPU = 2
    CPU = 3
