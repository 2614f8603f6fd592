"""What a launch can end with other than a result."""

from __future__ import annotations

import inspect
import signal
import types
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flyte_torchrun.launch.timeline import TimelineEvent

__all__ = [
    "LaunchError",
    "LaunchTerminatedError",
    "LaunchTimeoutError",
    "NodeLostError",
    "PlanError",
    "RankError",
    "RendezvousError",
    "SerializationError",
    "TorchNotInstalledError",
]

_HINTS = {
    signal.SIGKILL: "usually the kernel or the container ran out of memory",
    signal.SIGABRT: "usually a failed assertion in native code, or NCCL giving up on a collective",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGBUS: "usually /dev/shm is full",
    signal.SIGTERM: "somebody asked it to end",
}


class LaunchError(RuntimeError):
    """The base of all errors of a launch.

    Attributes:
        timeline: what had happened until then.
        is_from_other_node: whether another node told it, which raises it too.
    """

    timeline: tuple[TimelineEvent, ...] = ()
    is_from_other_node: bool = False


class PlanError(LaunchError, ValueError):
    """A plan that makes no sense: nothing was started.

    Attributes:
        violations: the field, its value and what is allowed, for every wrong field.
    """

    def __init__(self, violations: Iterable[tuple[str, object, str]]) -> None:
        self.violations = tuple(violations)
        super().__init__(self.violations)

    def __str__(self) -> str:
        lines = [f"{path}: {value!r} is not allowed; allowed: {allowed}" for path, value, allowed in self.violations]
        return lines[0] if len(lines) == 1 else "\n  ".join([f"{len(lines)} settings are not allowed:", *lines])


class TorchNotInstalledError(LaunchError, ImportError):
    """torch is missing, or cannot be loaded."""


class SerializationError(LaunchError, TypeError):
    """An argument cannot be sent to the ranks."""


class RendezvousError(LaunchError):
    """The nodes did not find each other in time."""


class NodeLostError(LaunchError):
    """Another node is gone, or was asked to end; nothing is known to be wrong with the program."""


class LaunchTimeoutError(LaunchError):
    """The run took longer than the plan allows; its ranks were ended.

    Attributes:
        message: which limit was passed.
        stacks: what the threads of each rank that still ran on that node were doing, as text.
    """

    def __init__(self, message: str, stacks: Mapping[int, str] | None = None) -> None:
        self.message = message
        self.stacks = dict(stacks or {})
        super().__init__(message, self.stacks)

    def __str__(self) -> str:
        return "\n\n".join([self.message, *(f"rank {rank} was at:\n{text}" for rank, text in self.stacks.items())])


class LaunchTerminatedError(LaunchError):
    """A signal asked this process to end; the ranks were ended first.

    Attributes:
        signal_number: which signal.
    """

    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number
        super().__init__(signal_number)

    def __str__(self) -> str:
        return f"the launch was ended by {signal.Signals(self.signal_number).name}"


class RankError(LaunchError):
    """The first real failure of a rank. `__cause__` is the user's own exception where it could be rebuilt.

    What `launch` raises is then an instance of that exception's class as well, so that `except ValueError` works, and
    has its attributes.

    Attributes:
        exception_type: the name of the exception's class, or of the signal that killed the rank.
        message: the exception's text.
        rank: the rank in the whole group.
        local_rank: the rank on its node.
        host: the name of its node.
        attempt: how often the group had been restarted before.
        timestamp: when it failed, seconds since the epoch.
        exit_code: how its process ended, negative for a signal; None: it raised.
        traceback: the traceback in the rank, as text; empty when it left none.
        exception_bases: the dotted names of the exception's class and of all its bases.
    """

    def __init__(
        self,
        *,
        exception_type: str,
        message: str,
        rank: int,
        local_rank: int,
        host: str,
        attempt: int,
        timestamp: float,
        exit_code: int | None = None,
        traceback: str = "",
        exception_bases: Sequence[str] = (),
    ) -> None:
        super().__init__(exception_type, message)
        self.exception_type = exception_type
        self.message = message
        self.rank = rank
        self.local_rank = local_rank
        self.host = host
        self.attempt = attempt
        self.timestamp = timestamp
        self.exit_code = exit_code
        self.traceback = traceback
        self.exception_bases = tuple(exception_bases)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (_attributes(self), self.timeline)

    def __str__(self) -> str:
        where = f"rank {self.rank} (local rank {self.local_rank} on {self.host}, attempt {self.attempt})"
        text = f"{self.exception_type}: {self.message}" if self.message else self.exception_type
        return f"{text}\nin {where}" + (f"\n\n{self.traceback}" if self.traceback else "")


def _rebuild(attributes: dict[str, Any], timeline: tuple[TimelineEvent, ...]) -> RankError:
    error = RankError(**attributes)
    if timeline:
        error.timeline = timeline
    return error


_RANK_FIELDS = tuple(inspect.signature(RankError).parameters)


def with_own_type(error: RankError) -> RankError:
    """The error as an instance of its cause's class too, where that is possible; its cause stays."""
    cause = error.__cause__
    if not isinstance(cause, Exception) or isinstance(cause, LaunchError):
        return error
    own = type(cause)
    members = {name: getattr(RankError, name) for name in ("__init__", "__str__", "__reduce__")}
    try:
        # The own class comes first, since exceptions of native classes can be made by these only.
        both = type(own.__name__, (own, RankError), {"__module__": own.__module__, **members})
        found: RankError = both(**_attributes(error))
    except Exception:
        return error  # its class cannot be combined, such as one with a __new__ of its own
    for name in (name for base in own.__mro__ for name, member in vars(base).items() if _is_native_field(member)):
        if not name.startswith("__"):
            with suppress(Exception):  # it is read-only
                setattr(found, name, getattr(cause, name))
    vars(found).update({**vars(cause), **vars(found)})
    found.__cause__ = cause
    if error.timeline:
        found.timeline = error.timeline
    return found


def _is_native_field(member: object) -> bool:
    return isinstance(member, types.MemberDescriptorType | types.GetSetDescriptorType)


def to_record(error: LaunchError) -> dict[str, Any]:
    """The error as JSON data, for another node; without its cause and timeline."""
    return {"class": type(error).__name__, **_attributes(error)}


def from_record(record: dict[str, Any]) -> LaunchError:
    """What to_record wrote."""
    error = _error_of(dict(record))
    error.is_from_other_node = True
    return error


def _error_of(record: dict[str, Any]) -> LaunchError:
    name = record.pop("class")
    if name == "LaunchTimeoutError":
        return LaunchTimeoutError(record["message"], {int(rank): text for rank, text in record["stacks"].items()})
    return NodeLostError(record["message"]) if name == "NodeLostError" else RankError(**record)


def _attributes(error: LaunchError) -> dict[str, Any]:
    if isinstance(error, NodeLostError):
        return {"message": str(error)}
    names = _RANK_FIELDS if isinstance(error, RankError) else ("message", "stacks")
    return {name: getattr(error, name) for name in names}


def describe_exit(exit_code: int, memory: str = "") -> tuple[str, str]:
    """A name and a text for a process that ended without an exception.

    Args:
        exit_code: the process's; negative for a signal.
        memory: what is known of its memory, in words.
    """
    if exit_code < 0:
        try:
            number = signal.Signals(-exit_code)
        except ValueError:
            return f"signal {-exit_code}", "the rank was killed by a signal"
        hint = f": {_HINTS[number]}" if number in _HINTS else ""
        facts = f" ({memory})" if memory and number == signal.SIGKILL else ""
        return number.name, f"the rank was killed by {number.name}{hint}{facts}"
    if exit_code == 0:
        return "SystemExit", "the rank's process ended before its function returned"
    return "SystemExit", f"the rank's process ended with exit code {exit_code}"
