"""The fields of a serialized protobuf message, without knowing its type."""

from __future__ import annotations

from collections.abc import Callable, Iterator

__all__ = ["WireError", "fields_of", "with_changed"]

_MOST_FIELDS = 1_000_000


class WireError(ValueError):
    """Bytes that are no serialized message."""


def fields_of(content: bytes) -> dict[int, list[int | bytes]]:
    """The values by field number: numbers, and bytes for texts and messages (protobuf's encoding guide).

    Raises:
        WireError: the bytes are no message.
    """
    found: dict[int, list[int | bytes]] = {}
    for number, value, _, _ in _fields(content):
        found.setdefault(number, []).append(value)
    return found


def with_changed(content: bytes, number: int, change: Callable[[bytes], bytes]) -> bytes:
    """The message with each text or message of a field changed, and all else as it was, byte for byte.

    Raises:
        WireError: the bytes are no message.
    """
    parts, end_of_last = [], 0
    for found, value, start, end in _fields(content):
        if found == number and isinstance(value, bytes):
            changed = change(value)
            if changed != value:
                parts += [content[end_of_last:start], _length_prefixed(number, changed)]
                end_of_last = end
    return b"".join([*parts, content[end_of_last:]])


def _length_prefixed(number: int, value: bytes) -> bytes:
    return _as_varint(number << 3 | 2) + _as_varint(len(value)) + value


def _as_varint(number: int) -> bytes:
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes, int, int]]:
    """Each field's number, its value, and where the field begins and ends."""
    position = 0
    for _ in range(_MOST_FIELDS):
        if position >= len(content):
            return
        start = position
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
        yield number, value, start, position
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
