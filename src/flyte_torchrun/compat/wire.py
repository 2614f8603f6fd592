"""The fields of a serialized protobuf message, without knowing its type."""

from __future__ import annotations

__all__ = ["WireError", "fields_of"]

_MOST_FIELDS = 1_000_000


class WireError(ValueError):
    """Bytes that are no serialized message."""


def fields_of(content: bytes) -> dict[int, list[int | bytes]]:
    """The values by field number: numbers, and bytes for texts and messages (protobuf's encoding guide).

    Raises:
        WireError: the bytes are no message.
    """
    found: dict[int, list[int | bytes]] = {}
    position = 0
    for _ in range(_MOST_FIELDS):
        if position >= len(content):
            return found
        tag, position = _varint(content, position)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise WireError(f"field number 0 at byte {position}")
        value: int | bytes
        if kind == 0:
            value, position = _varint(content, position)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            value, position = content[position : position + size], position + size
        elif kind == 2:
            size, position = _varint(content, position)
            value, position = content[position : position + size], position + size
        else:
            raise WireError(f"wire type {kind} at byte {position}")
        if position > len(content):
            raise WireError(f"it ends within field {number}")
        found.setdefault(number, []).append(value)
    raise WireError(f"more than {_MOST_FIELDS} fields")


def _varint(content: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(content):
            raise WireError("it ends within a number")
        byte = content[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    raise WireError(f"a number of more than ten bytes at byte {position}")
