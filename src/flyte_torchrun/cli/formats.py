"""Reports as text, JSON, SARIF and GitHub's annotations."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from flyte_torchrun.compat import Finding, Report, Verdict

__all__ = ["FORMATS", "Checked", "table"]

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
    """For people: releases by fields, then each finding with its mend."""
    from rich.table import Table
    from rich.text import Text

    heading = Text(f"{name} ", style="bold").append(f"({source})", style="dim")
    console.print(heading.append(f": {report.verdict}", style=_COLORS[report.verdict]))
    findings = [finding for finding in report.findings if finding.verdict is not Verdict.ADVICE]
    if findings:
        paths = list(dict.fromkeys(finding.path for finding in findings))
        shown = Table("Flyte", *paths, box=None, pad_edge=False, header_style="dim")
        for reader in report.readers:
            cells = [_cell(findings, reader, path) for path in paths]
            shown.add_row(_releases(reader), *(Text(str(cell), style=_COLORS[cell]) for cell in cells))
        console.print(shown)
    for finding in report.findings:
        text = Text(f"  {finding.verdict} ", style=_COLORS[finding.verdict])
        text.append(f"{finding.path} ", style="bold").append(f"by {finding.releases}: {finding.reason}")
        if finding.mend:
            text.append(f"\n    mend: {finding.mend}", style="green")
        console.print(text)


def _releases(reader: str) -> str:
    from flyte_torchrun.schema import READERS

    [record] = [each for each in READERS if each.name == reader]
    return record.first if record.first == record.last else f"{record.first} to {record.last}"


def _cell(findings: list[Finding], reader: str, path: str) -> Verdict:
    return max(
        (finding.verdict for finding in findings if finding.path == path and reader in finding.flyte),
        default=Verdict.HONOURED,
    )
