"""What a launch can end with other than a result."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence

__all__ = [
    "LaunchError",
    "LaunchTerminatedError",
    "LaunchTimeoutError",
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
    """The base of all errors of a launch."""


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
    """The nodes did not find each other."""


class LaunchTimeoutError(LaunchError):
    """The run took longer than the plan allows; its ranks were ended."""


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
        return _rebuild, (dict(vars(self)),)

    def __str__(self) -> str:
        where = f"rank {self.rank} (local rank {self.local_rank} on {self.host}, attempt {self.attempt})"
        text = f"{self.exception_type}: {self.message}" if self.message else self.exception_type
        return f"{text}\nin {where}" + (f"\n\n{self.traceback}" if self.traceback else "")


def _rebuild(attributes: dict[str, object]) -> RankError:
    return RankError(**attributes)  # type: ignore[arg-type]


def describe_exit(exit_code: int) -> tuple[str, str]:
    """A name and a text for a process that ended without an exception."""
    if exit_code < 0:
        try:
            number = signal.Signals(-exit_code)
        except ValueError:
            return f"signal {-exit_code}", "the rank was killed by a signal"
        hint = f": {_HINTS[number]}" if number in _HINTS else ""
        return number.name, f"the rank was killed by {number.name}{hint}"
    if exit_code == 0:
        return "SystemExit", "the rank's process ended before its function returned"
    return "SystemExit", f"the rank's process ended with exit code {exit_code}"
