"""What goes wrong with a contract, each kind a class of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = [
    "ContractError",
    "FieldTypeError",
    "PayloadError",
    "UnsupportedVersionError",
    "ValidationError",
    "Violation",
]

_LONGEST_VALUE = 200


@dataclass(frozen=True, slots=True)
class Violation:
    """One wrong value.

    Attributes:
        path: the field, in the schema's names from the value that was checked, such as
            `worker_replicas.resources.limits[0].value`.
        value: what it holds; None: it is unset.
        allowed: what it may hold, in words.
    """

    path: str
    value: object
    allowed: str

    def below(self, path: str) -> Violation:
        """The same as it is called from outside of what `path` names."""
        between = "" if not self.path or self.path.startswith("[") else "."
        return Violation(f"{path}{between}{self.path}", self.value, self.allowed)

    def __str__(self) -> str:
        value = "unset" if self.value is None else repr(self.value)
        if len(value) > _LONGEST_VALUE:
            value = f"{value[:_LONGEST_VALUE]}..."
        return f"{self.path}: {value} is not allowed; allowed: {self.allowed}"


class ContractError(Exception):
    """The base of all errors of `flyte_torchrun.contract`."""


class _ViolationsError(ContractError, ValueError):
    """An error that lists every wrong value at once.

    Attributes:
        violations: what is wrong, in the order of the fields; never empty.
    """

    def __init__(self, violations: Iterable[Violation]) -> None:
        self.violations = tuple(violations)
        super().__init__(self.violations)

    def __str__(self) -> str:
        lines = [str(violation) for violation in self.violations]
        return lines[0] if len(lines) == 1 else "\n  ".join([f"{len(lines)} values are not allowed:", *lines])


class ValidationError(_ViolationsError):
    """Values that can be represented but make no sense."""


class PayloadError(_ViolationsError):
    """A payload that cannot be read: every released backend fails on it too, or it is no payload at all."""


class UnsupportedVersionError(ContractError, ValueError):
    """A task_type_version that no release of Flyte has written."""


class FieldTypeError(ContractError, TypeError):
    """A value of the wrong Python type."""
