"""The kinds of value that a field can hold: how each is read from JSON, written, checked and kept in a message.

Reading is as lenient as the released backends, which use golang/protobuf's jsonpb with unknown keys allowed: whole
numbers may be strings, enums may be numbers, and nothing is compared with a range other than int32's. What they refuse
is refused here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Protocol

from flyte_torchrun.contract.enums import WireEnum
from flyte_torchrun.contract.errors import Violation
from flyte_torchrun.contract.frozen import FrozenMapping

__all__ = [
    "INT32_MAX",
    "Boolean",
    "Duration",
    "Enum",
    "Int32",
    "Kind",
    "Repeated",
    "Settings",
    "Text",
    "Unreadable",
    "WrongType",
    "module_name",
    "quantity",
    "read_part",
]

INT32_MAX = 2**31 - 1
INT32_MIN = -(2**31)

_HALF_CHARACTER = re.compile("[\ud800-\udfff]")  # half a surrogate pair: protobuf cannot carry it
_WHOLE_NUMBER = re.compile(r"[ \t\r\n]*-?(0|[1-9][0-9]*)[ \t\r\n]*")
_DURATION = re.compile(r"(-?)([0-9]{1,12})(?:\.([0-9]{1,9}))?s")
# Kubernetes' resource.Quantity: a decimal number with a binary suffix, a decimal suffix or an exponent.
_QUANTITY = re.compile(r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class Unreadable(Exception):  # noqa: N818  (it never leaves the codec)
    """What a JSON value should have been, in words."""


class WrongType(Exception):  # noqa: N818  (it never leaves the helpers)
    """A value of the wrong Python type."""

    def __init__(self, value: object, allowed: str) -> None:
        super().__init__(f"{value!r} is of type {type(value).__name__}; allowed: {allowed}")


class Kind(Protocol):
    """How one kind of value is read, written and checked."""

    @property
    def zero(self) -> Any:
        """What a backend takes an absent value for."""

    def read(self, value: Any, problems: list[Violation]) -> Any:
        """The value in its Python form.

        Raises:
            Unreadable: the value itself cannot be read; what cannot be read of its parts is put into `problems`.
        """

    def write(self, value: Any) -> Any:
        """The value as JSON."""

    def check(self, value: Any) -> Sequence[Violation]:
        """What is wrong with it, with paths from here: the empty one for the value itself.

        Raises:
            WrongType: its Python type is another.
        """

    def from_message(self, value: Any) -> Any:
        """From what a protobuf message holds in such a field."""

    def to_message(self, value: Any, package: str) -> Any:
        """To what a protobuf message's constructor takes for such a field."""


class _Plain:
    """A value that is the same in Python, in JSON and in a message."""

    zero: ClassVar[Any] = None

    def write(self, value: Any) -> Any:
        return value

    def from_message(self, value: Any) -> Any:
        return value

    def to_message(self, value: Any, package: str) -> Any:
        return value


@dataclass(frozen=True)
class Int32(_Plain):
    """A whole number from `least` to the largest of 32 bits."""

    least: int
    zero: ClassVar[int] = 0

    def read(self, value: Any, problems: list[Violation]) -> int:
        number = value
        is_text = isinstance(value, str) and len(value) < 50 and _WHOLE_NUMBER.fullmatch(value) is not None
        if is_text or (isinstance(value, float) and value.is_integer()):
            number = int(value)
        if type(number) is not int or not INT32_MIN <= number <= INT32_MAX:
            raise Unreadable("a whole number of 32 bits")
        return number

    def check(self, value: Any) -> Sequence[Violation]:
        if type(value) is not int:
            raise WrongType(value, "an int")
        if not self.least <= value <= INT32_MAX:
            return (Violation("", value, f"a whole number from {self.least} to {INT32_MAX}"),)
        return ()


@dataclass(frozen=True)
class Text(_Plain):
    """A string that `is_allowed`."""

    is_allowed: Callable[[str], bool]
    allowed: str
    zero: ClassVar[str] = ""

    def read(self, value: Any, problems: list[Violation]) -> str:
        if not isinstance(value, str):
            raise Unreadable("a string")
        return value

    def check(self, value: Any) -> Sequence[Violation]:
        if type(value) is not str:
            raise WrongType(value, "a str")
        if not self.is_allowed(value) or _HALF_CHARACTER.search(value) is not None:
            return (Violation("", value, self.allowed),)
        return ()


class Boolean(_Plain):
    """True or false."""

    def read(self, value: Any, problems: list[Violation]) -> bool:
        if not isinstance(value, bool):
            raise Unreadable("true or false")
        return value

    def check(self, value: Any) -> Sequence[Violation]:
        if type(value) is not bool:
            raise WrongType(value, "a bool")
        return ()


_ANY_INT32 = Int32(INT32_MIN)


class Enum:
    """A member of an enum; a number that the enum does not know is kept as the int that it is, and is a violation."""

    def __init__(self, members: type[WireEnum]) -> None:
        self._members = members
        self._by_name = {member.wire_name: member for member in members}
        self._by_number = {member.value: member for member in members}
        self.allowed = ", ".join(self._by_name)
        self.zero = self._by_number.get(0)

    def read(self, value: Any, problems: list[Violation]) -> WireEnum | int:
        if isinstance(value, str) and value in self._by_name:
            return self._by_name[value]
        if isinstance(value, str):
            raise Unreadable(self.allowed)
        try:
            number = _ANY_INT32.read(value, problems)
        except Unreadable:
            raise Unreadable(self.allowed) from None
        return self._by_number.get(number, number)

    def write(self, value: WireEnum | int) -> str | int:
        return value if isinstance(value, int) else value.wire_name

    def check(self, value: Any) -> Sequence[Violation]:
        if isinstance(value, self._members):
            return ()
        if type(value) is int:
            return (Violation("", value, self.allowed),)
        raise WrongType(value, f"a {self._members.__name__}")

    def from_message(self, value: int) -> WireEnum | int:
        return self._by_number.get(value, value)

    def to_message(self, value: WireEnum | int, package: str) -> int:
        return value if isinstance(value, int) else int(value.value)


@dataclass(frozen=True)
class Duration:
    """A span of time, a timedelta in Python: exact to the microsecond."""

    zero_is_allowed: bool = False
    zero: ClassVar[Any] = None

    def read(self, value: Any, problems: list[Violation]) -> timedelta:
        match = _DURATION.fullmatch(value) if isinstance(value, str) else None
        fraction = (match[3] or "") if match else ""
        if match is None or fraction[6:].strip("0"):
            raise Unreadable("seconds with an 's', such as '1.5s', with at most 6 decimals")
        span = timedelta(seconds=int(match[2]), microseconds=int(fraction[:6].ljust(6, "0")))
        return -span if match[1] else span

    def write(self, value: timedelta) -> str:
        microseconds = value // timedelta(microseconds=1)
        sign, (seconds, rest) = "-" if microseconds < 0 else "", divmod(abs(microseconds), 1_000_000)
        if not rest:
            return f"{sign}{seconds}s"
        return f"{sign}{seconds}.{rest // 1000:03}s" if rest % 1000 == 0 else f"{sign}{seconds}.{rest:06}s"

    def check(self, value: Any) -> Sequence[Violation]:
        if not isinstance(value, timedelta):
            raise WrongType(value, "a timedelta")
        if value < timedelta(0) or (not value and not self.zero_is_allowed):
            return (Violation("", value, "0 or more seconds" if self.zero_is_allowed else "more than 0 seconds"),)
        return ()

    def from_message(self, value: Any) -> timedelta:
        if value.nanos % 1000:
            raise Unreadable("a duration of whole microseconds")
        return timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)

    def to_message(self, value: timedelta, package: str) -> Any:
        from google.protobuf.duration_pb2 import Duration as Message

        message = Message()
        message.FromTimedelta(value)
        return message


class Settings:
    """Named settings: strings, numbers and booleans. A whole number comes back from JSON as an int."""

    zero = None

    def read(self, value: Any, problems: list[Violation]) -> FrozenMapping[Any]:
        if not isinstance(value, Mapping):
            raise Unreadable("an object")
        for name, setting in value.items():
            if not isinstance(setting, str | int | float):
                problems.append(Violation(name, setting, "a string, a number, true or false"))
        return FrozenMapping(value)

    def write(self, value: FrozenMapping[Any]) -> dict[str, Any]:
        return dict(value)

    def check(self, value: Any) -> Sequence[Violation]:
        if not isinstance(value, FrozenMapping):
            raise WrongType(value, "a mapping from str to str, int, float or bool")
        found = []
        for name, setting in value.items():
            if type(name) is not str:
                raise WrongType(name, "a str as the name of a setting")
            is_number = isinstance(setting, int | float)
            if not isinstance(setting, str) and not (is_number and math.isfinite(setting) and abs(setting) <= 2**53):
                found.append(Violation(name, setting, "a string, a number up to 2**53, true or false"))
        return found

    def from_message(self, value: Any) -> FrozenMapping[Any]:
        from flyte_torchrun.contract.structs import to_json

        return self.read(to_json(value), [])

    def to_message(self, value: FrozenMapping[Any], package: str) -> Any:
        from flyte_torchrun.contract.structs import to_struct

        return to_struct(dict(value))


@dataclass(frozen=True)
class Repeated:
    """Values of one kind, in a tuple."""

    kind: Kind
    zero: ClassVar[Any] = None

    def read(self, value: Any, problems: list[Violation]) -> tuple[Any, ...]:
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise Unreadable("a list")
        return tuple(read_part(self.kind, item, f"[{index}]", problems) for index, item in enumerate(value))

    def write(self, value: tuple[Any, ...]) -> list[Any]:
        return [self.kind.write(item) for item in value]

    def check(self, value: Any) -> Sequence[Violation]:
        if not isinstance(value, tuple):
            raise WrongType(value, "a tuple")
        return [
            violation.below(f"[{index}]") for index, item in enumerate(value) for violation in self.kind.check(item)
        ]

    def from_message(self, value: Any) -> tuple[Any, ...]:
        return tuple(self.kind.from_message(item) for item in value)

    def to_message(self, value: tuple[Any, ...], package: str) -> list[Any]:
        return [self.kind.to_message(item, package) for item in value]


def quantity(*, zero_is_allowed: bool) -> Text:
    """A Kubernetes quantity that is not negative."""

    def is_allowed(text: str) -> bool:
        match = _QUANTITY.fullmatch(text)
        return match is not None and (zero_is_allowed or any(digit in match[1] for digit in "123456789"))

    least = "" if zero_is_allowed else ", more than 0"
    return Text(is_allowed, f"a Kubernetes quantity such as 500m, 2 or 1.5Gi{least}")


def module_name() -> Text:
    """A dotted Python module name."""
    return Text(lambda text: _MODULE.fullmatch(text) is not None, "a module's name, such as package.module")


def read_part(kind: Kind, value: Any, path: str, problems: list[Violation]) -> Any:
    """Reads a part of a value, and puts its path before that of what cannot be read of it."""
    before = len(problems)
    try:
        return kind.read(value, problems)
    except Unreadable as error:
        problems.append(Violation("", value, str(error)))
        return None
    finally:
        if len(problems) > before:
            problems[before:] = [problem.below(path) for problem in problems[before:]]
