"""Which release honours a task, changes or drops part of it, or refuses it; why, and what mends it."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flyte_torchrun.backend import Note, Overrides, PlatformDefaults, Rendering, render_all
from flyte_torchrun.backend.quantity import QuantityError, parse_quantity
from flyte_torchrun.compat.advice import advice_for
from flyte_torchrun.compat.intent import Expectation, Intent, intent_of
from flyte_torchrun.compat.mend import mend_for
from flyte_torchrun.schema import OPERATORS, READERS, operators_in, readers_in, spans

__all__ = ["Finding", "Report", "Verdict", "check"]


class Verdict(enum.IntEnum):
    """What becomes of a field, worse with each."""

    HONOURED = 0
    ADVICE = 1
    CHANGED = 2
    DROPPED = 3
    REJECTED = 4

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that does not become what the task means.

    Attributes:
        path: the field of the payload, in JSON's names; `task` for the whole.
        verdict: what becomes of it.
        flyte: the names of the readers (`flyte_torchrun.schema.READERS`) that it holds for.
        operators: the first releases of the operators that it holds for; empty: whichever.
        reason: why, for the first of them.
        mend: what to do; empty: nothing is known.
    """

    path: str
    verdict: Verdict
    flyte: tuple[str, ...]
    operators: tuple[str, ...] = ()
    reason: str = ""
    mend: str = ""

    @property
    def releases(self) -> str:
        """The releases that it holds for, in words."""
        words = spans([(reader.name, reader.first, reader.last) for reader in READERS], self.flyte)
        words = f"Flyte {words}"
        if self.operators:
            known = [(operator.first, operator.first, operator.last) for operator in OPERATORS]
            words += f" with operator {spans(known, self.operators)}"
        return words

    def __str__(self) -> str:
        mend = f" Mend: {self.mend}." if self.mend else ""
        return f"{self.path}: {self.verdict} by {self.releases}: {self.reason}.{mend}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What is found of one task.

    Attributes:
        findings: the worst first; empty: all releases honour all of it.
        readers: the readers that were asked, oldest first.
        operators: the operators that were asked, by their first releases.
    """

    findings: tuple[Finding, ...]
    readers: tuple[str, ...]
    operators: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst."""
        return max((finding.verdict for finding in self.findings), default=Verdict.HONOURED)

    def verdict_of(self, reader: str, operator: str | None = None) -> Verdict:
        """The worst on one reader, by its name, and one operator, by its first release; None: on any."""
        return max(
            (
                finding.verdict
                for finding in self.findings
                if reader in finding.flyte
                and (not finding.operators or operator is None or operator in finding.operators)
            ),
            default=Verdict.HONOURED,
        )


def check(
    template: Any,
    *,
    flyte: str = ">=1.0",
    operator: str = ">=1.5",
    platform: PlatformDefaults | None = None,
    overrides: Overrides | None = None,
) -> Report:
    """What becomes of a task on every release of two ranges.

    Args:
        template: as for `flyte_torchrun.backend.render`.
        flyte: a release, a series or a range.
        operator: the same.
        platform: what the administrator has set.
        overrides: what the execution adds.

    Raises:
        ReleaseError: no known release is in a range.
        TypeError: the template is none.
    """
    settings = {"platform": platform or PlatformDefaults(), "overrides": overrides or Overrides()}
    renderings = render_all(template, flyte=flyte, operator=operator, has_pods=False, **settings)  # type: ignore[arg-type]
    intent = intent_of(template)
    readers = [reader.name for reader in readers_in(flyte)]
    operators = [record.first for record in operators_in(operator)]
    found: list[Finding] = []
    for index, reader in enumerate(readers):
        of_reader = renderings[index * len(operators) : (index + 1) * len(operators)]
        found += _of_job(of_reader[0], intent, reader)
        found += _of_operators(of_reader, operators, intent, reader)
    found += [
        Finding(path=path, verdict=Verdict.ADVICE, flyte=tuple(readers), reason=reason, mend=mend)
        for path, reason, mend in advice_for(intent, settings["overrides"])  # type: ignore[arg-type]
    ]
    merged = sorted(_merged(found), key=lambda finding: (-finding.verdict, finding.path))
    return Report(findings=tuple(merged), readers=tuple(readers), operators=tuple(operators))


def _of_job(rendering: Rendering, intent: Intent, reader: str) -> Iterator[Finding]:
    """What the reader makes of the payload."""
    if rendering.refusal is not None and rendering.refusal.gate == "reader":
        reason = rendering.refusal.messages[0]
        mend = mend_for("task", rendering, intent, reason)
        yield Finding(path="task", verdict=Verdict.REJECTED, flyte=(reader,), reason=reason, mend=mend)
        return
    if rendering.job is None:
        if intent.is_pytorch:
            reason = rendering.notes[0].text
            mend = mend_for("task", rendering, intent, reason)
            yield Finding(path="task", verdict=Verdict.DROPPED, flyte=(reader,), reason=reason, mend=mend)
        return
    for expectation in intent.expectations:
        verdict, reason = _judged(expectation, rendering.job)
        if verdict is not Verdict.HONOURED:
            note = _noted(expectation.path, rendering)
            if note is not None:
                reason = note.text
                verdict = Verdict.DROPPED if note.effect == "dropped" else verdict
            mend = mend_for(expectation.path, rendering, intent, reason)
            yield Finding(path=expectation.path, verdict=verdict, flyte=(reader,), reason=reason, mend=mend)


def _noted(path: str, rendering: Rendering) -> Note | None:
    """What the reader's notes say of a field, or of what it is in."""
    for note in rendering.notes:
        is_resources = path == "container.resources" and note.path.endswith(".resources")
        if path == note.path or path.startswith(f"{note.path}.") or is_resources or note.path == "taskTypeVersion":
            return note
    return None


def _judged(expectation: Expectation, job: Mapping[str, Any]) -> tuple[Verdict, str]:
    found = expectation.find(job)
    if found is None:
        return (Verdict.HONOURED, "") if expectation.may_be_absent else (Verdict.DROPPED, "the job does not have it")
    if _same(found, expectation.value):
        return Verdict.HONOURED, ""
    return Verdict.CHANGED, f"it becomes {found!r}"


def _same(found: Any, expected: Any) -> bool:
    if isinstance(found, str) and isinstance(expected, str) and found != expected:
        try:
            return parse_quantity(found).value == parse_quantity(expected).value
        except QuantityError:
            return False
    return bool(found == expected)


def _of_operators(renderings: list[Rendering], operators: list[str], intent: Intent, reader: str) -> Iterator[Finding]:
    """What the API server and the operators say to the reader's job."""
    for rendering, operator in zip(renderings, operators, strict=True):
        refusal = rendering.refusal
        if refusal is not None and refusal.gate != "reader":
            reason = f"{refusal.gate}: {refusal.messages[0]}"
            yield Finding(
                path="task",
                verdict=Verdict.REJECTED,
                flyte=(reader,),
                operators=(operator,),
                reason=reason,
                mend=mend_for("task", rendering, intent, reason),
            )
        if rendering.deleted_next:
            yield Finding(
                path="task",
                verdict=Verdict.CHANGED,
                flyte=(reader,),
                operators=(operator,),
                reason=f"{', '.join(rendering.deleted_next)} is made and deleted over and over",
                mend=mend_for("task", rendering, intent, "deleted"),
            )


def _merged(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Findings that say the same of several releases, as one: first over the operators, then over the readers."""
    by_operators: dict[tuple[Any, ...], tuple[Finding, list[str]]] = {}
    for finding in findings:
        key = (*_said(finding), finding.flyte, bool(finding.operators))
        by_operators.setdefault(key, (finding, []))[1].extend(finding.operators)
    by_readers: dict[tuple[Any, ...], tuple[Finding, dict[str, None]]] = {}
    for finding, operators in by_operators.values():
        key = (*_said(finding), *operators)
        by_readers.setdefault(key, (replace(finding, operators=tuple(operators)), {}))[1].update(
            dict.fromkeys(finding.flyte)
        )
    for finding, readers in by_readers.values():
        yield replace(finding, flyte=tuple(readers))


def _said(finding: Finding) -> tuple[Any, ...]:
    return finding.path, finding.verdict, _general(finding.reason), finding.mend


def _general(reason: str) -> str:
    """A reason without what differs by release and says nothing: the names of packages and schemas."""
    return reason.replace("flyteidl2", "flyteidl").replace(".kubeflow.RestartPolicy", ".RestartPolicy")
