"""The messages of distributed PyTorch tasks as each release of flyteidl has them.

The descriptor sets in `descriptors/` were taken out of all wheels on PyPI by `scripts/registry.py`; each is named by
the first release that has it, and `releases.json` lists the others.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from flyte_torchrun.schema.releases import ReleaseError

__all__ = ["Enumeration", "FieldType", "Message", "Schema", "known_schemas", "schema_of", "schema_of_release"]


@dataclass(frozen=True, slots=True)
class Enumeration:
    """An enum: its full name, and its numbers by name."""

    full_name: str
    numbers: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FieldType:
    """A field of a message.

    Attributes:
        name: its name in the schema.
        number: its number on the wire.
        json_name: its name in JSON.
        kind: `int32`, `string`, `enum` or `message`.
        is_repeated: whether it is a list.
        type_name: the full name of the enum or message.
        is_deprecated: whether the schema says so.
    """

    name: str
    number: int
    json_name: str
    kind: str
    is_repeated: bool
    type_name: str
    is_deprecated: bool


@dataclass(frozen=True, slots=True)
class Message:
    """A message: its full name, and its fields in the schema's order."""

    full_name: str
    fields: tuple[FieldType, ...]


@dataclass(frozen=True, slots=True)
class Schema:
    """One state of the schema.

    Attributes:
        name: the first release on PyPI that has it, such as `flyteidl-1.13.0`.
        package: `flyteidl` or `flyteidl2`.
        messages: by full name.
        enums: by full name.
        files: the full names of each file's messages and enums.
        serialized: the descriptor set, as a message.
    """

    name: str
    package: str
    messages: Mapping[str, Message]
    enums: Mapping[str, Enumeration]
    files: Mapping[str, tuple[str, ...]]
    serialized: bytes

    def payload(self, version: int) -> Message:
        """The message that a task template of that task_type_version holds.

        Raises:
            KeyError: the schema has no such version.
        """
        folder = "plugins.kubeflow" if version else "plugins"
        return self.messages[f"{self.package}.{folder}.DistributedPyTorchTrainingTask"]


@functools.cache
def known_schemas() -> Mapping[str, tuple[str, ...]]:
    """Each state of the schema by its name, with the releases on PyPI that have it, oldest first."""
    text = (resources.files(__package__) / "descriptors" / "releases.json").read_text()
    return {name: tuple(releases) for name, releases in json.loads(text).items()}


def schema_of_release(text: str) -> Schema:
    """The schema of a release of flyteidl, such as `1.16.8`, or of flyteidl2, such as `flyteidl2-2.0.53`.

    Raises:
        ReleaseError: no release on PyPI is called so, or it lacks these messages.
    """
    distribution, _, number = text.rpartition("-")
    distribution = distribution or ("flyteidl2" if text.startswith("2.") else "flyteidl")
    for name, releases in known_schemas().items():
        if name.rpartition("-")[0] == distribution and number.removeprefix("v") in releases:
            return schema_of(name)
    spans = ", ".join(f"{name.rpartition('-')[0]} {known[0]} to {known[-1]}" for name, known in known_schemas().items())
    raise ReleaseError(f"schema: {text!r} is not known; allowed: releases on PyPI: {spans}")


@functools.cache
def schema_of(name: str) -> Schema:
    """The schema by its name, such as `flyteidl-1.13.0`.

    Raises:
        FileNotFoundError: there is none.
    """
    from google.protobuf import descriptor_pb2

    content = (resources.files(__package__) / "descriptors" / f"{name}.binpb").read_bytes()
    messages: dict[str, Message] = {}
    enums: dict[str, Enumeration] = {}
    files: dict[str, tuple[str, ...]] = {}
    for file in descriptor_pb2.FileDescriptorSet.FromString(content).file:
        before = {*messages, *enums}
        _collect(file, file.package, messages, enums)
        files[file.name] = tuple(name for name in (*messages, *enums) if name not in before)
    return Schema(name, name.partition("-")[0], messages, enums, files, content)


def _collect(scope: Any, prefix: str, messages: dict[str, Message], enums: dict[str, Enumeration]) -> None:
    for enum in scope.enum_type:
        name = f"{prefix}.{enum.name}"
        enums[name] = Enumeration(name, {value.name: value.number for value in enum.value})
    for message in scope.message_type if hasattr(scope, "message_type") else scope.nested_type:
        name = f"{prefix}.{message.name}"
        messages[name] = Message(name, tuple(_field(field) for field in message.field))
        _collect(message, name, messages, enums)


_KINDS = {5: "int32", 9: "string", 11: "message", 14: "enum"}  # descriptor.proto, FieldDescriptorProto.Type
_REPEATED = 3  # FieldDescriptorProto.Label


def _field(field: Any) -> FieldType:
    return FieldType(
        name=field.name,
        number=field.number,
        json_name=field.json_name,
        kind=_KINDS[field.type],
        is_repeated=field.label == _REPEATED,
        type_name=field.type_name.lstrip("."),
        is_deprecated=field.options.deprecated,
    )
