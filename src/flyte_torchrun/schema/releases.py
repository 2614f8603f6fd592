"""Release numbers, and ranges of them as people write them."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

__all__ = ["Release", "ReleaseError", "ReleaseRange", "newest", "release_in", "selected", "spans"]

_RELEASE = re.compile(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?(?:[-.]?(alpha|a|beta|b|rc)\.?(\d+))?")
_STAGES = {"a": 0, "alpha": 0, "b": 1, "beta": 1, "rc": 2}
_FINAL = 3
_ALLOWED = "a release such as 1.16.8 or 1.16.0-b3, a series such as 1.10 or 2, or a range such as >=1.6,<1.9"


class ReleaseError(ValueError):
    """A release, or a range of releases, that cannot be read or is not known; the text says what is allowed."""


@functools.total_ordering
@dataclass(frozen=True, slots=True)
class Release:
    """One release.

    Attributes:
        major: the first number.
        minor: the second.
        patch: the third.
        stage: 0 to 2 for alpha, beta and release candidate, 3 for a final release.
        number: the number of the stage.
    """

    major: int
    minor: int
    patch: int
    stage: int = _FINAL
    number: int = 0

    @classmethod
    def parse(cls, text: str) -> Release:
        """Reads a full release number, with or without a leading v.

        Raises:
            ReleaseError: it is none.
        """
        release, parts = _parse(text)
        if parts < 3:
            raise ReleaseError(f"release: {text!r} is not allowed; allowed: three numbers, such as 1.16.8 or 1.16.0-b3")
        return release

    def _key(self) -> tuple[int, int, int, int, int]:
        return (self.major, self.minor, self.patch, self.stage, self.number)

    def __lt__(self, other: Release) -> bool:
        return self._key() < other._key()

    def __str__(self) -> str:
        letters = {0: "a", 1: "b", 2: "rc"}
        stage = "" if self.stage == _FINAL else f"-{letters[self.stage]}{self.number}"
        return f"{self.major}.{self.minor}.{self.patch}{stage}"


@dataclass(frozen=True, slots=True)
class ReleaseRange:
    """What a person means by `1.16.8`, `1.10`, `2` or `>=1.6,<1.9`: the releases from `first` to before `end`.

    Attributes:
        text: as it was written.
        first: the first release in it; None: there is no lower limit.
        end: the first release behind it; None: there is no upper limit.
        exact: the one release, where just one is named.
    """

    text: str
    first: Release | None
    end: Release | None
    exact: Release | None = None

    @classmethod
    def parse(cls, text: str) -> ReleaseRange:
        """Reads a release, a series or a range.

        Raises:
            ReleaseError: it is none of them, or it is empty.
        """
        if not isinstance(text, str):
            raise ReleaseError(f"release: {text!r} is not allowed; allowed: {_ALLOWED}")
        return _parse_range(text)

    def overlaps(self, first: Release, end: Release) -> bool:
        """Whether any release from `first` to before `end` is in the range."""
        return (self.end is None or first < self.end) and (self.first is None or end > self.first)

    def __contains__(self, release: Release) -> bool:
        return self.overlaps(release, _after(release, 3))

    def __str__(self) -> str:
        return self.text


class _Record(Protocol):
    """What one range of releases does."""

    @property
    def first(self) -> str: ...
    @property
    def last(self) -> str: ...


Record = TypeVar("Record", bound=_Record)


def selected(records: Sequence[Record], text: str, what: str) -> tuple[Record, ...]:
    """The records of all releases in a range.

    Args:
        records: oldest first. Each reaches to the next of the same major release, the last one to its own `last`.
        text: a release, a series or a range.
        what: whose releases they are, for the error.

    Raises:
        ReleaseError: the text cannot be read, or no known release is in it.
    """
    wanted = ReleaseRange.parse(text)
    found = []
    known: dict[int, tuple[str, str]] = {}
    for record, following in zip(records, [*records[1:], None], strict=True):
        first, last = Release.parse(record.first), Release.parse(record.last)
        end = _after(last, 3)
        if following is not None and Release.parse(following.first).major == first.major:
            end = Release.parse(following.first)
        known[first.major] = (known.get(first.major, (record.first,))[0], record.last)
        if wanted.overlaps(first, end):
            found.append(record)
    if not found:
        allowed = " and ".join(f"{first} to {last}" for first, last in known.values())
        raise ReleaseError(f"{what}: {text!r} is not known; allowed: releases from {allowed}")
    return tuple(found)


def release_in(record: _Record, text: str) -> str:
    """The newest release of the record's that is in a range which overlaps it."""
    wanted = ReleaseRange.parse(text)
    if wanted.exact is not None:
        return str(wanted.exact)
    last = Release.parse(record.last)
    return str(last if last in wanted else Release.parse(record.first))


def newest(records: Sequence[Record], text: str, what: str) -> tuple[Record, str]:
    """The record of a release, and that release; of a series or range, those of its newest release.

    Raises:
        ReleaseError: as `selected`.
    """
    record = selected(records, text, what)[-1]
    return record, release_in(record, text)


def spans(known: Sequence[tuple[str, str, str]], names: Collection[str]) -> str:
    """Releases in words, those in a row as one span.

    Args:
        known: name, first and last release of all records, oldest first.
        names: which of them.
    """
    found: list[list[str]] = []
    previous = -2
    for index, (name, first, last) in enumerate(known):
        if name not in names:
            continue
        if index == previous + 1 and Release.parse(first).major == Release.parse(found[-1][1]).major:
            found[-1][1] = last
        else:
            found.append([first, last])
        previous = index
    return ", ".join(first if first == last else f"{first} to {last}" for first, last in found)


def _split(condition: str, text: str) -> tuple[str, str]:
    for operator in (">=", "<=", "==", "~=", ">", "<"):
        if condition.startswith(operator):
            return operator, condition[len(operator) :].strip()
    if not condition:
        raise ReleaseError(f"release: {text!r} is not allowed; allowed: {_ALLOWED}")
    return "", condition


@functools.lru_cache(maxsize=1024)
def _parse_range(text: str) -> ReleaseRange:
    first: Release | None = None
    end: Release | None = None
    exact: Release | None = None
    for condition in text.split(","):
        operator, number = _split(condition.strip(), text)
        release, parts = _parse(number)
        low, high = _OPERATORS[operator](release, _after(release, parts))
        first = max(filter(None, (first, low)), default=None)
        end = min(filter(None, (end, high)), default=None)
        if operator in ("", "==") and parts == 3:
            exact = release
    if first is not None and end is not None and first >= end:
        raise ReleaseError(f"release: {text!r} is not allowed: no release is in it")
    return ReleaseRange(text.strip(), first, end, exact)


@functools.lru_cache(maxsize=1024)
def _parse(text: str) -> tuple[Release, int]:
    """The release, and how many of its three numbers were written."""
    match = _RELEASE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ReleaseError(f"release: {text!r} is not allowed; allowed: {_ALLOWED}")
    numbers = [int(number) for number in match.groups()[:3] if number is not None]
    stage, number = (_STAGES[match[4]], int(match[5])) if match[4] else (_FINAL, 0)
    padded = [*numbers, 0, 0]
    return Release(padded[0], padded[1], padded[2], stage, number), 3 if match[4] else len(numbers)


def _after(release: Release, parts: int) -> Release:
    """The first release behind all that the written numbers name."""
    if parts == 1:
        return Release(release.major + 1, 0, 0, 0)
    if parts == 2:
        return Release(release.major, release.minor + 1, 0, 0)
    return Release(release.major, release.minor, release.patch, release.stage, release.number + 1)


def _series(release: Release, after: Release) -> tuple[Release | None, Release | None]:
    return release, after


_OPERATORS: dict[str, Callable[[Release, Release], tuple[Release | None, Release | None]]] = {
    "": _series,
    "==": _series,
    "~=": lambda release, _: (release, Release(release.major, release.minor + 1, 0, 0)),
    ">=": lambda release, _: (release, None),
    ">": lambda _, after: (after, None),
    "<": lambda release, _: (None, release),
    "<=": lambda _, after: (None, after),
}
