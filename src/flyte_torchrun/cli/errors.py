"""What goes wrong in the command, as one line and an exit code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import click

from flyte_torchrun.compat.inputs import InputError
from flyte_torchrun.contract import ContractError
from flyte_torchrun.schema import ReleaseError

__all__ = ["BadUse", "told"]


class BadUse(click.ClickException):
    """Bad usage, or input that cannot be read."""

    exit_code = 2


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Turns what is expected to go wrong into one line without a traceback.

    Raises:
        BadUse: it went wrong.
    """
    try:
        yield
    except (InputError, ReleaseError, ContractError) as error:
        raise BadUse(str(error)) from error
