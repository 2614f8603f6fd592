"""Reads a payload as the backend does: golang/protobuf's jsonpb with unknown fields allowed.

Names in the schema's and in JSON's spelling are taken, the latter first; numbers as text, too; an enum by name, which
must be known, or by any number; null is unset. The first wrong value, in the order of the schema's fields, is the
error, in Go's words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flyte_torchrun.backend.gotext import json_kind, json_text, number_text, quoted, syntax_error
from flyte_torchrun.schema.messages import FieldType, Message, Schema

__all__ = ["JsonError", "Payload", "read_payload"]

_INT32 = range(-(2**31), 2**31)


class JsonError(ValueError):
    """What does not fit, in the words of the backend's library."""


@dataclass(slots=True)
class Payload:
    """What was read.

    Attributes:
        values: the fields that are there, by their names in the schema; messages are dicts, enums numbers.
        unknown: the paths of the keys that the schema does not know, which were skipped.
        hidden: the paths of keys in the schema's spelling that the same key in JSON's spelling hides.
    """

    values: dict[str, Any]
    unknown: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)


def read_payload(custom: dict[str, Any], schema: Schema, version: int) -> Payload:
    """The payload of that task_type_version.

    Raises:
        JsonError: a value does not fit.
    """
    payload = Payload({})
    payload.values = _message(custom, schema.payload(version), schema, "", payload)
    return payload


def _message(value: Any, message: Message, schema: Schema, path: str, payload: Payload) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong(value, "map[string]json.RawMessage")
    values: dict[str, Any] = {}
    known = set()
    for each in message.fields:
        known |= {each.name, each.json_name}
        given = value.get(each.name)
        if each.json_name != each.name and each.json_name in value:
            if each.name in value:
                payload.hidden.append(f"{path}{each.name}")
            given = value[each.json_name]
        if given is not None:
            values[each.name] = _field(given, each, schema, f"{path}{each.json_name}", payload)
    payload.unknown += [f"{path}{key}" for key in value if key not in known]
    return values


def _field(value: Any, each: FieldType, schema: Schema, path: str, payload: Payload) -> Any:
    if each.is_repeated:
        if not isinstance(value, list):
            raise _wrong(value, "[]json.RawMessage")
        return [_one(item, each, schema, f"{path}[{index}]", payload) for index, item in enumerate(value)]
    return _one(value, each, schema, path, payload)


def _one(value: Any, each: FieldType, schema: Schema, path: str, payload: Payload) -> Any:
    if each.kind == "message":
        return _message(value, schema.messages[each.type_name], schema, f"{path}.", payload)
    if each.kind == "enum":
        return _enum(value, each.type_name, schema)
    return _SCALARS[each.kind](value)


def _enum(value: Any, name: str, schema: Schema) -> int:
    if isinstance(value, str):
        text = json_text(value)
        numbers = schema.enums[name].numbers
        if text[1:-1] not in numbers:
            raise JsonError(f"unknown value {quoted(text)} for enum {name}")
        return numbers[text[1:-1]]
    return _integer(value, "protoreflect.EnumNumber")


def _int32(value: Any) -> int:
    return _integer(value, "int32")


def _integer(value: Any, go_type: str) -> int:
    """A number, or for a field that is no enum its text."""
    if isinstance(value, float) and number_text(value).startswith('"'):
        value = number_text(value)[1:-1]  # jsonpb writes NaN and the infinities as texts
    if isinstance(value, str) and go_type == "int32":
        text = json_text(value)[1:-1]
        if error := syntax_error(text):
            raise JsonError(error)
        text = text.strip(" \t\r\n")
        if text == "null":
            return 0
        if text[0] not in "-0123456789":
            kinds = {"t": "bool", "f": "bool", '"': "string", "[": "array", "{": "object"}
            raise JsonError(f"json: cannot unmarshal {kinds[text[0]]} into Go value of type {go_type}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        text = number_text(float(value))
    elif value is None:
        return 0
    else:
        raise _wrong(value, go_type)
    number = int(text) if text.lstrip("-").isdigit() else None
    if number is None or number not in _INT32:
        raise JsonError(f"json: cannot unmarshal number {text} into Go value of type {go_type}")
    return number


def _string(value: Any) -> str:
    if isinstance(value, float) and number_text(value).startswith('"'):
        return number_text(value)[1:-1]
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _wrong(value, "string")
    return value


_SCALARS: dict[str, Callable[[Any], Any]] = {"int32": _int32, "string": _string}


def _wrong(value: Any, go_type: str) -> JsonError:
    if isinstance(value, float) and number_text(value).startswith('"'):
        value = number_text(value)
    return JsonError(f"json: cannot unmarshal {json_kind(value)} into Go value of type {go_type}")
