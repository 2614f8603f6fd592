"""google.protobuf.Struct to plain JSON values and back, without a detour through text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flyte_torchrun.contract.errors import PayloadError, Violation

if TYPE_CHECKING:
    from google.protobuf.struct_pb2 import Struct

__all__ = ["plain", "to_json", "to_struct"]

# As deep as protobuf itself reads messages; a Struct needs two or three of those levels for one of JSON.
_DEEPEST = 100
_LARGEST_EXACT = 2**53  # a double holds every whole number up to here


def to_json(struct: Struct) -> dict[str, Any]:
    """The Struct as a dict.

    Raises:
        PayloadError: a number is not finite, or the nesting is deeper than 100.
    """
    return {key: _from_value(value, key, 1) for key, value in struct.fields.items()}


def _from_value(value: Any, path: str, depth: int) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "string_value":
        return value.string_value
    if kind == "number_value":
        return _finite(value.number_value, path)
    if kind == "struct_value":
        _check_depth(path, depth)
        return {key: _from_value(item, f"{path}.{key}", depth + 1) for key, item in value.struct_value.fields.items()}
    if kind == "list_value":
        _check_depth(path, depth)
        return [_from_value(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value.list_value.values)]
    return value.bool_value if kind == "bool_value" else None


def plain(value: Any, path: str = "custom", depth: int = 0) -> Any:
    """A copy of a JSON value that is made of dict, list, str, int, float, bool and None only.

    Raises:
        PayloadError: it holds anything else, a number that is not finite, or nests deeper than 100.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return _finite(value, path)
    _check_depth(path, depth)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: plain(item, f"{path}.{key}" if depth else key, depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [plain(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    raise PayloadError([Violation(path, value, "a JSON value")])


def to_struct(values: Mapping[str, Any]) -> Struct:
    """The JSON object as a Struct."""
    from google.protobuf.struct_pb2 import Struct

    struct = Struct()
    fill(struct, values)
    return struct


def fill(struct: Struct, values: Mapping[str, Any]) -> None:
    """Puts the JSON object into an empty Struct."""
    fields = struct.fields
    for key, value in values.items():
        _set_value(fields[key], value)


def _set_value(target: Any, value: Any) -> None:
    if isinstance(value, str):
        target.string_value = value
    elif isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, int | float):
        target.number_value = value
    elif isinstance(value, Mapping):
        target.struct_value.SetInParent()
        fill(target.struct_value, value)
    elif value is None:
        target.null_value = 0
    else:
        target.list_value.SetInParent()
        for item in value:
            _set_value(target.list_value.values.add(), item)


def _finite(number: float, path: str) -> float:
    """The number, as an int where it is whole: a Struct has only doubles, and 2 and 2.0 are one number in JSON."""
    if not math.isfinite(number):
        raise PayloadError([Violation(path, number, "a finite number: JSON has no other")])
    return int(number) if number.is_integer() and abs(number) <= _LARGEST_EXACT else number


def _check_depth(path: str, depth: int) -> None:
    if depth >= _DEEPEST:
        raise PayloadError([Violation(f"{path[:60]}...", f"{depth} levels", f"at most {_DEEPEST} levels of nesting")])
