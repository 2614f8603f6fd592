"""The messages of distributed PyTorch tasks out of any descriptor set, in one form, so that two can be compared."""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import descriptor_pb2

__all__ = ["FILES", "normal"]

FILES = ("core/tasks", "plugins/common", "plugins/pytorch", "plugins/kubeflow/common", "plugins/kubeflow/pytorch")


def normal(files: Any, package: str) -> Any:
    """A FileDescriptorSet with only these messages, without what says nothing about them.

    Left out are the other messages of core/tasks.proto, comments, and the options of files: what code is made of them,
    and where.

    Args:
        files: a FileDescriptorSet, or the FileDescriptorProtos.
        package: `flyteidl` or `flyteidl2`.
    """
    by_name = {file.name: file for file in getattr(files, "file", files)}
    found = descriptor_pb2.FileDescriptorSet()
    for name in FILES:
        file = by_name.get(f"{package}/{name}.proto")
        if file is None:
            continue
        kept = found.file.add()
        if name == "core/tasks":
            kept.name, kept.package, kept.syntax = file.name, file.package, file.syntax
            kept.message_type.extend(message for message in file.message_type if message.name == "Resources")
        else:
            kept.CopyFrom(file)
            kept.ClearField("options")
            kept.ClearField("source_code_info")
        for message in kept.message_type:
            _write_json_names(message)
    return found


def _write_json_names(message: Any) -> None:
    """Older generators left them out where they follow from the name."""
    for field in message.field:
        field.json_name = field.json_name or re.sub("_(.)", lambda match: match[1].upper(), field.name)
    for nested in message.nested_type:
        _write_json_names(nested)
