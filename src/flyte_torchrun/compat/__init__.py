"""Verdicts over releases: who honours a task, how it is written for them, and what changes between two platforms."""

from flyte_torchrun.compat.check import Finding, Report, Verdict, check
from flyte_torchrun.compat.convert import convert
from flyte_torchrun.compat.diff import Change, diff
from flyte_torchrun.compat.inputs import Found, InputError, templates_in
from flyte_torchrun.compat.target import LossError, LossWarning, for_target, to_template
from flyte_torchrun.compat.writers import claimed_writer, writer_of

__all__ = [
    "Change",
    "Finding",
    "Found",
    "InputError",
    "LossError",
    "LossWarning",
    "Report",
    "Verdict",
    "check",
    "claimed_writer",
    "convert",
    "diff",
    "for_target",
    "templates_in",
    "to_template",
    "writer_of",
]
