"""Typed values for the payload of Flyte's distributed PyTorch task, and the codec from and to task templates.

Needs protobuf and flyteidl (or flyteidl2), which are imported when a message is asked for. The attributes are named as
the schema's fields, which `protos/` documents. Every helper is valid from construction, never changes, and reports all
its violations at once.
"""

from flyte_torchrun.contract.enums import CleanPodPolicy, ResourceName, RestartPolicy, StartMethod, SymbolicNprocPerNode
from flyte_torchrun.contract.errors import (
    ContractError,
    FieldTypeError,
    PayloadError,
    UnsupportedVersionError,
    ValidationError,
    Violation,
)
from flyte_torchrun.contract.nodes import NodeRange, parse_nnodes
from flyte_torchrun.contract.policy import ElasticConfig, LaunchOptions, RunPolicy
from flyte_torchrun.contract.replicas import CommonReplicaSpec, ReplicaSpec, ResourceEntry, Resources
from flyte_torchrun.contract.task import DistributedPyTorchTrainingTask

__all__ = [
    "CleanPodPolicy",
    "CommonReplicaSpec",
    "ContractError",
    "DistributedPyTorchTrainingTask",
    "ElasticConfig",
    "FieldTypeError",
    "LaunchOptions",
    "NodeRange",
    "PayloadError",
    "ReplicaSpec",
    "ResourceEntry",
    "ResourceName",
    "Resources",
    "RestartPolicy",
    "RunPolicy",
    "StartMethod",
    "SymbolicNprocPerNode",
    "UnsupportedVersionError",
    "ValidationError",
    "Violation",
    "parse_nnodes",
]
