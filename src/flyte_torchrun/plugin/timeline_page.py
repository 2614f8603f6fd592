"""The launch as a page: a picture of its timeline, the same as a table, and the rank that failed first.

The HTML stands for itself: no script, no style sheet, no picture from elsewhere. Positions in the picture are shares of
its width, and texts have a size of their own, so that it is readable on a desktop and on a phone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from flyte_torchrun.launch import LaunchError, RankError, TimelineEvent

__all__ = ["NAME", "render_timeline"]

NAME = "Launch"

# Colours that differ for colour-blind readers too (Okabe and Ito); events of one kind, and what the legend calls them.
_COLOURS = {
    "torch": ("#999999", "torch is loaded"),
    "rank server": ("#666666", "rank server loads"),
    "inputs": ("#E69F00", "inputs written"),
    "rendezvous": ("#009E73", "rendezvous"),
    "rank": ("#BFD9EC", "rank's process"),
    "function": ("#0072B2", "function runs"),
    "first output": ("#000000", "first output"),
    "end of ranks": ("#CC79A7", "ranks are ended"),
    "restart": ("#D55E00", "restart, lost node"),
    "lost node": ("#D55E00", ""),
    "result": ("#F0E442", "result read"),
}
_FAILED = "#D55E00"
_LANE, _BAR = 38, 14  # heights in pixels
_CELL = "padding:4px 10px 4px 0;border-bottom:1px solid #ddd;text-align:left;vertical-align:top"


def render_timeline(timeline: Sequence[TimelineEvent], error: LaunchError | None = None) -> str:
    """The HTML of a launch's timeline.

    Args:
        timeline: its events, at least one.
        error: how it ended; None: well.
    """
    # A server that was ready before this launch is no part of the picture.
    begin = min(event.start for event in timeline if event.name != "rank server")
    shown = [event for event in timeline if event.name != "rank server" or event.end > begin]
    begin = min(event.start for event in shown)
    length = max(max(event.end for event in shown) - begin, 1e-3)
    parts = ['<div style="font-family:sans-serif;font-size:14px;line-height:1.4;color:#222;max-width:1200px">']
    parts += [_failure(error)] if error is not None else []
    parts += [_legend(shown), _picture(shown, begin, length, error), _table(timeline, begin), "</div>"]
    return "\n".join(parts)


def _failure(error: LaunchError) -> str:
    if isinstance(error, RankError):
        text = str(error).partition("\n")[0]
        where = f"Rank {error.rank} failed first (on {error.host}, attempt {error.attempt})"
    else:
        text, where = str(error).partition("\n")[0], type(error).__name__
    return (
        f'<p style="border-left:6px solid {_FAILED};background:#fdf0e8;padding:8px 12px;margin:0 0 12px;'
        f'overflow-wrap:anywhere"><strong>{escape(where)}</strong><br>{escape(text[:500])}</p>'
    )


def _legend(events: Iterable[TimelineEvent]) -> str:
    names = {event.name for event in events}
    items = [
        f'<span style="white-space:nowrap;margin-right:14px"><span style="display:inline-block;width:12px;height:12px;'
        f'background:{colour};margin-right:5px"></span>{escape(text)}</span>'
        for name, (colour, text) in _COLOURS.items()
        if name in names and text
    ]
    return f'<p style="margin:0 0 8px">{" ".join(items)}</p>'


def _picture(events: Sequence[TimelineEvent], begin: float, length: float, error: LaunchError | None) -> str:
    lanes: dict[str, list[TimelineEvent]] = {}
    for event in sorted(events, key=lambda event: (event.rank is not None, event.rank or 0, event.node or 0)):
        lanes.setdefault(_lane(event), []).append(event)
    height = _LANE * len(lanes) + 20
    drawn = []
    for index, (label, members) in enumerate(lanes.items()):
        top = _LANE * index
        drawn.append(f'<text x="0" y="{top + 14}">{escape(label)}</text>')
        drawn += [_bar(event, top + 19, begin, length, error) for event in members]
    for quarter in range(5):
        anchor = ("start", "middle", "middle", "middle", "end")[quarter]
        x = f"{25 * quarter}%"
        drawn.append(f'<line x1="{x}" x2="{x}" y1="0" y2="{height - 16}" stroke="#ccc" stroke-dasharray="2 3"/>')
        drawn.append(f'<text x="{x}" y="{height - 2}" text-anchor="{anchor}">{length * quarter / 4:.2f} s</text>')
    return (
        f'<svg role="img" aria-label="timeline of the launch" width="100%" height="{height}" font-size="12"'
        f' font-family="sans-serif" style="display:block;overflow:visible">{"".join(drawn)}</svg>'
    )


def _lane(event: TimelineEvent) -> str:
    if event.rank is not None:
        return f"rank {event.rank}"
    return "launcher" if event.node is None else f"node {event.node}"


def _bar(event: TimelineEvent, top: int, begin: float, length: float, error: LaunchError | None) -> str:
    is_the_failed_one = (
        isinstance(error, RankError)
        and event.name in ("rank", "function")
        and (event.rank, event.attempt) == (error.rank, error.attempt)
    )
    colour = _FAILED if is_the_failed_one and event.name == "function" else _COLOURS[event.name][0]
    left, width = 100 * (event.start - begin) / length, 100 * (event.end - event.start) / length
    is_moment = event.start == event.end
    size = 'width="2"' if is_moment else f'width="{width:.3f}%" style="min-width:1px"'
    outline = f' stroke="{_FAILED}" stroke-width="2"' if is_the_failed_one else ""
    title = f"{event.name}: {event.start - begin:.3f} s to {event.end - begin:.3f} s {event.detail}".strip()
    height = _BAR if event.name != "function" else _BAR - 6
    return (
        f'<rect x="{left:.3f}%" y="{top + (_BAR - height) // 2}" height="{height}" {size} fill="{colour}"{outline}>'
        f"<title>{escape(title)}</title></rect>"
    )


def _table(events: Sequence[TimelineEvent], begin: float) -> str:
    heads = "".join(f'<th style="{_CELL}">{name}</th>' for name in ("event", "where", "at / s", "took / s", ""))
    rows = []
    for event in events:
        took = "" if event.start == event.end else f"{event.end - event.start:.3f}"
        numbers = {"rank": event.rank, "node": event.node, "attempt": event.attempt or None}
        where = ", ".join(f"{name} {number}" for name, number in numbers.items() if number is not None)
        cells = (event.name, where, f"{event.start - begin:.3f}", took, event.detail[:300])
        rows.append("<tr>" + "".join(f'<td style="{_CELL}">{escape(cell)}</td>' for cell in cells) + "</tr>")
    return (
        '<div style="overflow-x:auto;margin-top:12px"><table style="border-collapse:collapse;font-size:13px">'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
