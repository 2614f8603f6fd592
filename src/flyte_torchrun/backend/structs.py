"""google.protobuf.Struct as the backend sees it: whole numbers are whole again, and what is not finite stays."""

from __future__ import annotations

import math
from typing import Any

from flyte_torchrun.backend.jsonpb import JsonError

__all__ = ["struct_to_json"]


def struct_to_json(struct: Any) -> dict[str, Any]:
    """The Struct as a dict.

    Raises:
        JsonError: a value is of no kind.
    """
    return {key: _value(value) for key, value in struct.fields.items()}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return struct_to_json(value.struct_value)
    if kind == "list_value":
        return [_value(item) for item in value.list_value.values]
    if kind is None:
        raise JsonError("nil Value")
    if kind == "null_value":
        return None
    number = getattr(value, kind)
    return int(number) if kind == "number_value" and math.isfinite(number) and number.is_integer() else number
