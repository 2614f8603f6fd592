"""Every release as data: the schema's messages, who reads them (Flyte, the training-operator) and what each does."""

from flyte_torchrun.schema.operators import OPERATORS, Operator, Validation, operator_of, operators_in
from flyte_torchrun.schema.readers import (
    READERS,
    InitContainers,
    Reader,
    ReplicaResources,
    ZeroWorkers,
    reader_of,
    readers_in,
)
from flyte_torchrun.schema.releases import Release, ReleaseError, ReleaseRange, release_in, spans

__all__ = [
    "OPERATORS",
    "READERS",
    "InitContainers",
    "Operator",
    "Reader",
    "Release",
    "ReleaseError",
    "ReleaseRange",
    "ReplicaResources",
    "Validation",
    "ZeroWorkers",
    "operator_of",
    "operators_in",
    "reader_of",
    "readers_in",
    "release_in",
    "spans",
]
