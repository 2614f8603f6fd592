"""Go's words for values and for JSON that does not fit, as they stand in the backend's errors."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

__all__ = ["json_kind", "json_text", "number_text", "quoted", "syntax_error"]

_LITERALS = {"t": "true", "f": "false", "n": "null"}
_LEAST_PLAIN, _MOST_PLAIN = 1e-6, 1e21


def number_text(number: float) -> str:
    """A double as encoding/json writes it; jsonpb has texts for those that JSON lacks."""
    if not math.isfinite(number):
        return {math.inf: '"Infinity"', -math.inf: '"-Infinity"'}.get(number, '"NaN"')
    shortest = Decimal(repr(number)).normalize()
    if number == 0 or _LEAST_PLAIN <= abs(number) < _MOST_PLAIN:
        return format(shortest, "f")
    sign, digits, _ = shortest.as_tuple()
    fraction = "".join(map(str, digits[1:]))
    exponent = shortest.adjusted()
    power = f"-{-exponent}" if exponent < 0 else f"+{exponent:02d}"
    return f"{'-' * sign}{digits[0]}{'.' * bool(fraction)}{fraction}e{power}"


def json_text(value: Any) -> str:
    """A JSON value as encoding/json writes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return number_text(float(value))
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False)
        for character in "<>&\u2028\u2029":
            text = text.replace(character, f"\\u{ord(character):04x}")
        return text
    if isinstance(value, list):
        return f"[{','.join(map(json_text, value))}]"
    return "{" + ",".join(f"{json_text(key)}:{json_text(item)}" for key, item in sorted(value.items())) + "}"


def quoted(text: str) -> str:
    """A text as %q writes it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t") + '"'


def json_kind(value: Any) -> str:
    """What encoding/json calls the kind of a value."""
    if isinstance(value, bool):
        return "bool"
    return {str: "string", list: "array", dict: "object", int: "number", float: "number"}[type(value)]


def syntax_error(text: str) -> str | None:
    """What encoding/json says of a text that should be one number or literal; None: it is fine."""
    stripped = text.lstrip(" \t\r\n")
    if not stripped:
        return "unexpected end of JSON input"
    first = stripped[0]
    if first in _LITERALS:
        return _literal_error(stripped, _LITERALS[first])
    if first in "-0123456789":
        return _number_error(stripped)
    if first in '{["':
        try:
            json.loads(text)
        except ValueError:
            return "invalid character in a nested value"
        return None
    return f"invalid character {_character(first)} looking for beginning of value"


def _literal_error(text: str, literal: str) -> str | None:
    for index, expected in enumerate(literal):
        if text[index : index + 1] != expected:
            where = f"in literal {literal} (expecting {_character(expected)})"
            return f"invalid character {_character(text[index : index + 1])} {where}"
    return _after(text[len(literal) :])


def _number_error(text: str) -> str | None:
    position = 1 if text[0] == "-" else 0
    digits = _digits(text, position)
    if digits == position:
        return _end_or("in numeric literal", text, position)
    position = position + 1 if text[position] == "0" else digits
    if text[position : position + 1] == ".":
        digits = _digits(text, position + 1)
        if digits == position + 1:
            return _end_or("after decimal point in numeric literal", text, digits)
        position = digits
    if text[position : position + 1] in ("e", "E"):
        position += 1
        position += text[position : position + 1] in ("+", "-")
        digits = _digits(text, position)
        if digits == position:
            return _end_or("in exponent of numeric literal", text, digits)
        position = digits
    return _after(text[position:])


def _digits(text: str, position: int) -> int:
    while position < len(text) and text[position] in "0123456789":
        position += 1
    return position


def _end_or(where: str, text: str, position: int) -> str:
    return f"invalid character {_character(text[position : position + 1])} {where}"


def _after(rest: str) -> str | None:
    rest = rest.lstrip(" \t\r\n")
    return f"invalid character {_character(rest[0])} after top-level value" if rest else None


def _character(character: str) -> str:
    """As Go shows it; the scanner sees bytes, and a space where the text ends too early."""
    shown = chr((character or " ").encode()[0])
    if shown in ("'", '"'):
        return {"'": r"'\''", '"': "'\"'"}[shown]
    return f"'{quoted(shown)[1:-1]}'"
