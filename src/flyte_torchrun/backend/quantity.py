"""Kubernetes quantities as its own code reads, compares and writes them (k8s.io/apimachinery, api/resource)."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from fractions import Fraction

__all__ = ["Quantity", "QuantityError", "parse_quantity"]

_FORMAT_WRONG = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_SUFFIX_WRONG = "unable to parse quantity's suffix"
_NUMBER_WRONG = "unable to parse numeric part of quantity"
_PARTS = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[-+]?[0-9]*)", re.ASCII)
_ONLY_ZEROS = re.compile(r"[+-]?0*", re.ASCII)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_OF = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_BINARY_OF = {exponent: suffix for suffix, exponent in _BINARY.items()}
_SMALLEST = Fraction(1, 10**9)
_LARGEST = 2**63 - 1
_DIGITS_OF_FAST_PATH = 18


class QuantityError(ValueError):
    """A text that is no quantity, in Kubernetes' words."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """An amount of a resource.

    Attributes:
        value: the amount.
        text: as Kubernetes writes it.
    """

    value: Fraction
    text: str

    def __bool__(self) -> bool:
        return bool(self.value)

    def __str__(self) -> str:
        return self.text


@functools.lru_cache(maxsize=4096)
def parse_quantity(text: str) -> Quantity:
    """Reads a quantity such as `500m`, `1Gi` or `2e3`.

    Raises:
        QuantityError: it is none.
    """
    if not text:
        raise QuantityError(_FORMAT_WRONG)
    if _ONLY_ZEROS.fullmatch(text):
        return Quantity(Fraction(0), "0")
    match = _PARTS.fullmatch(text)
    if match is None:
        raise QuantityError(_FORMAT_WRONG)
    sign, whole, decimals, suffix = match[1], match[2].lstrip("0") or "0", match[3] or "", match[4]
    base, exponent, is_exponential = _interpret(suffix)
    fast = _fast(whole, decimals, base, exponent)
    scale = Fraction(10) ** exponent if base == 10 else Fraction(2**exponent)
    value = Fraction(int(whole + decimals), 10 ** len(decimals)) * scale
    if fast is None:
        value = Fraction(-(-value // _SMALLEST)) * _SMALLEST
        if base == 2:
            value = min(value, Fraction(_LARGEST))
    if sign == "-":
        value = -value
    if fast is not None and _is_canonical(fast, whole + decimals, base, exponent):
        return Quantity(value, text)
    return Quantity(value, _canonical(value, base, is_exponential))


def _interpret(suffix: str) -> tuple[int, int, bool]:
    if suffix in _DECIMAL:
        return 10, _DECIMAL[suffix], False
    if suffix in _BINARY:
        return 2, _BINARY[suffix], False
    if suffix[0] in "eE" and re.fullmatch(r"[-+]?[0-9]+", suffix[1:], re.ASCII):
        return 10, int(suffix[1:]), True
    raise QuantityError(_SUFFIX_WRONG)


def _fast(whole: str, decimals: str, base: int, exponent: int) -> int | None:
    """The power of ten where Kubernetes keeps the number as a 64-bit integer; None: it does not."""
    digits = len(whole) + len(decimals)
    if base == 10:
        if _DIGITS_OF_FAST_PATH - digits < 0:
            return None
        scale = exponent - len(decimals)
    else:
        if decimals or 15 - len(whole) - int(exponent * 3 / 10) - 1 < 0:
            return None
        scale = 0
    return scale if scale >= -9 else None


def _is_canonical(scale: int, digits: str, base: int, exponent: int) -> bool:
    """Whether Kubernetes writes the text again as it was."""
    if base == 2:
        return exponent % 10 == 0 and int(digits) & 7 != 0
    return scale % 3 == 0 and not digits.endswith("000") and digits[0] != "0"


def _canonical(value: Fraction, base: int, is_exponential: bool) -> str:
    if value == 0:
        return "0"
    if base == 2 and not -1024 < value < 1024 and value.denominator == 1:
        number, power = value.numerator, 0
        while number % 1024 == 0 and power + 10 <= 60:
            number, power = number // 1024, power + 10
        return f"{number}{_BINARY_OF[power]}" if power else str(number)
    exponent = -9
    number = (value * 10**9).numerator
    while number % 1000 == 0 and (is_exponential or exponent < 18):
        number, exponent = number // 1000, exponent + 3
    if is_exponential:
        return f"{number}e{exponent}" if exponent else str(number)
    return f"{number}{_DECIMAL_OF[exponent]}"
