"""What the backend says no with."""

from __future__ import annotations

__all__ = ["ReaderError"]


class ReaderError(Exception):
    """A reader's error.

    Attributes:
        code: the backend's class of the error, such as BadTaskSpecification; None: it has none.
        message: its words.
    """

    def __init__(self, message: str, code: str | None = "BadTaskSpecification") -> None:
        self.code = code
        self.message = message
        super().__init__(code, message)

    def __str__(self) -> str:
        return self.message if self.code is None else f"[{self.code}] {self.message}"
