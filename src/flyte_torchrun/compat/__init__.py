"""Verdicts over releases: what changes for a task between two platforms."""

from flyte_torchrun.compat.diff import Change, diff

__all__ = ["Change", "diff"]
