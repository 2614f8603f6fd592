"""Reports as text, JSON, SARIF and GitHub's annotations."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

from flyte_torchrun.compat import Finding, Report, Verdict

__all__ = ["FORMATS", "Checked", "in_one_line", "table"]

Checked = tuple[str, str, Report]  # where it was, the task's name, and what was found

_COLORS = {
    Verdict.HONOURED: "green",
    Verdict.ADVICE: "cyan",
    Verdict.CHANGED: "yellow",
    Verdict.DROPPED: "magenta",
    Verdict.REJECTED: "red",
}
_LEVELS = {
    Verdict.ADVICE: ("note", "notice"),
    Verdict.CHANGED: ("warning", "warning"),
    Verdict.DROPPED: ("warning", "warning"),
    Verdict.REJECTED: ("error", "error"),
}


def as_json(checked: Iterable[Checked]) -> str:
    """One object with a list of tasks."""
    tasks = [
        {
            "source": source,
            "task": name,
            "verdict": str(report.verdict),
            "readers": {reader: str(report.verdict_of(reader)) for reader in report.readers},
            "findings": [_finding(finding) for finding in report.findings],
        }
        for source, name, report in checked
    ]
    return json.dumps({"tasks": tasks}, indent=2, ensure_ascii=False)


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "path": finding.path,
        "verdict": str(finding.verdict),
        "readers": list(finding.flyte),
        "operators": list(finding.operators),
        "releases": finding.releases,
        "reason": finding.reason,
        "mend": finding.mend,
    }


def as_sarif(checked: Iterable[Checked]) -> str:
    """SARIF 2.1.0, as code scanners take it."""
    rules = [{"id": str(verdict), "shortDescription": {"text": f"a field is {verdict}"}} for verdict in _LEVELS]
    results = [
        {
            "ruleId": str(finding.verdict),
            "level": _LEVELS[finding.verdict][0],
            "message": {"text": f"{name}: {finding}"},
            "locations": [{"physicalLocation": {"artifactLocation": {"uri": source}}}],
        }
        for source, name, report in checked
        for finding in report.findings
    ]
    driver = {"name": "flyte-torchrun", "rules": rules}
    run = {"tool": {"driver": driver}, "results": results}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False)


def as_github(checked: Iterable[Checked]) -> str:
    """Workflow commands that GitHub shows beside the file."""
    lines = [
        f"::{_LEVELS[finding.verdict][1]} file={_property(source)},title={_property(name)}::{_data(str(finding))}"
        for source, name, report in checked
        for finding in report.findings
    ]
    return "\n".join(lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


FORMATS = {"json": as_json, "sarif": as_sarif, "github": as_github}


def table(source: str, name: str, report: Report, console: Any) -> None:
    """For people: fields by releases, then each finding with its mend."""
    from rich.text import Text

    heading = Text(f"{name} ", style="bold").append(f"({source})", style="dim")
    console.print(heading.append(f": {report.verdict}", style=_COLORS[report.verdict]))
    console.file.write(_body(report, console))


@functools.lru_cache(maxsize=1024)  # many tasks of a package have the same findings, and tables take long to lay out
def _body(report: Report, console: Any) -> str:
    with console.capture() as captured:
        _print_body(report, console)
    return str(captured.get())


def _print_body(report: Report, console: Any) -> None:
    from rich.table import Table
    from rich.text import Text

    paths = list(dict.fromkeys(each.path for each in report.findings if each.verdict is not Verdict.ADVICE))
    if paths:
        columns = list(_columns(report, paths))
        shown = Table("", *(each for each, _ in columns), box=None, pad_edge=False, header_style="dim")
        for index, path in enumerate(paths):
            shown.add_row(path, *(_colored(cells[index]) for _, cells in columns))
        console.print(shown)
        if any(cell.endswith("*") for _, cells in columns for cell in cells):
            console.print("* with some operators only", style="dim")
    for findings in _grouped(report.findings):
        first = findings[0]
        text = Text(f"  {first.verdict} ", style=_COLORS[first.verdict])
        text.append(", ".join(finding.path for finding in findings), style="bold")
        text.append(f" by {first.releases}: {first.reason}")
        if first.mend:
            text.append(f"\n    mend: {first.mend}", style="green")
        console.print(text)


def _columns(report: Report, paths: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Neighbouring readers with the same verdicts, in words, with a verdict for each path."""
    cells = {reader: [_cell(report, reader, path) for path in paths] for reader in report.readers}
    for verdicts, readers in itertools.groupby(report.readers, cells.__getitem__):
        yield releases_of(readers), verdicts


def _cell(report: Report, reader: str, path: str) -> str:
    """The verdict on a path; `-` where the whole task is gone with every operator."""
    found = [finding for finding in report.findings if finding.path in (path, "task") and reader in finding.flyte]
    of_path = [finding for finding in found if finding.path == path]
    if path != "task" and any(
        each.verdict >= Verdict.DROPPED and not each.operators for each in found if each not in of_path
    ):
        return "-"
    worst = max((finding.verdict for finding in of_path), default=Verdict.HONOURED)
    by_all = any(
        finding.verdict is worst and (not finding.operators or len(finding.operators) == len(report.operators))
        for finding in of_path
    )
    return str(worst) if by_all or worst is Verdict.HONOURED else f"{worst}*"


def _colored(cell: str) -> Any:
    from rich.text import Text

    verdict = cell.rstrip("*").upper()
    return Text(cell, style=_COLORS[Verdict[verdict]] if verdict in Verdict.__members__ else "dim")


def _grouped(findings: tuple[Finding, ...]) -> list[list[Finding]]:
    """Findings that differ in their paths alone, together."""
    groups: dict[Any, list[Finding]] = {}
    for finding in findings:
        key = (finding.verdict, finding.flyte, finding.operators, finding.reason, finding.mend)
        groups.setdefault(key, []).append(finding)
    return list(groups.values())


def releases_of(readers: Iterable[str]) -> str:
    """The releases of some readers, in words."""
    from flyte_torchrun.schema import READERS, spans

    return spans([(reader.name, reader.first, reader.last) for reader in READERS], set(readers))


def in_one_line(report: Report) -> str:
    """Which releases do what, such as `honoured by Flyte 1.8.0 to 1.16.8; rejected by Flyte 1.0.0`."""
    by_verdict: dict[Verdict, list[str]] = {}
    for reader in report.readers:
        by_verdict.setdefault(report.verdict_of(reader), []).append(reader)
    parts = []
    for verdict in sorted(by_verdict):
        said = "honoured, with advice," if verdict is Verdict.ADVICE else str(verdict)
        parts.append(f"{said} by Flyte {releases_of(by_verdict[verdict])}")
    return "; ".join(parts)
