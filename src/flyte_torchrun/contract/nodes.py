"""How many nodes take part, from the forms in which users write it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flyte_torchrun.contract.errors import ValidationError, Violation
from flyte_torchrun.contract.kinds import INT32_MAX

__all__ = ["NodeRange", "parse_nnodes"]

_ALLOWED = f"a whole number N or a range MIN:MAX with 1 <= MIN <= MAX <= {INT32_MAX}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRange:
    """The fewest and the most nodes that a worker group runs with.

    Raises:
        ValidationError: not 1 <= min_nodes <= max_nodes.
    """

    min_nodes: int
    max_nodes: int

    def __post_init__(self) -> None:
        are_numbers = type(self.min_nodes) is int and type(self.max_nodes) is int
        if not are_numbers or not 1 <= self.min_nodes <= self.max_nodes <= INT32_MAX:
            raise ValidationError([Violation("nnodes", f"{self.min_nodes}:{self.max_nodes}", _ALLOWED)])

    def __str__(self) -> str:
        return str(self.max_nodes) if self.min_nodes == self.max_nodes else f"{self.min_nodes}:{self.max_nodes}"


def parse_nnodes(value: int | str) -> NodeRange:
    """The range that an `nnodes` names: 1, "1" and "1:1" are the same.

    Args:
        value: a number of nodes, or a range "MIN:MAX".

    Raises:
        ValidationError: anything else, with the value and what is allowed.
    """
    if type(value) is int:
        ends = (str(value), str(value))
    else:
        match = re.fullmatch(r"([0-9]{1,10})(?::([0-9]{1,10}))?", value) if isinstance(value, str) else None
        if match is None:
            raise ValidationError([Violation("nnodes", value, _ALLOWED)])
        ends = (match[1], match[2] or match[1])
    try:
        return NodeRange(min_nodes=int(ends[0]), max_nodes=int(ends[1]))
    except ValidationError:
        raise ValidationError([Violation("nnodes", value, _ALLOWED)]) from None
