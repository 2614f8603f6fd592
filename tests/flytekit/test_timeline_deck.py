"""The deck of a launch: what it shows, and that a real browser shows it whole at two widths."""

import html
import itertools
import json
import os
import re
import shutil
import subprocess

import flytekit
import pytest
from flytekit import Deck, task
from flytekit.deck.deck import _get_deck

from flyte_torchrun.flytekit import Elastic
from flyte_torchrun.launch import RankError, TimelineEvent
from flyte_torchrun.plugin.timeline_page import render_timeline

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--virtual-time-budget=5000"),
]


def event(name, start, end, **where):
    return TimelineEvent(name=name, start=1000 + start, end=1000 + end, **where)


TIMELINE = [
    event("rank server", -5, -3),
    event("inputs", 0, 0.5, detail="951 bytes"),
    event("rendezvous", 0.5, 1, node=0),
    event("rank", 1, 3, node=0, rank=0, detail="exit code 0"),
    event("function", 1.5, 2.5, node=0, rank=0),
    event("first output", 2, 2, node=0, rank=0),
    event("rank", 1, 2, node=1, rank=1, detail="exit code 1"),
    event("function", 1.5, 2, node=1, rank=1, detail="did not return"),
    event("restart", 3, 3, attempt=1, node=1, detail="ValueError: <b>no</b>"),
    event("rank", 3, 4, node=1, rank=1, attempt=1, detail="exit code 1"),
    event("result", 4, 4, detail="5 bytes"),
]
ERROR = RankError(
    exception_type="ValueError",
    message="<script>alert(1)</script> " + "long " * 300,
    rank=1,
    local_rank=0,
    host="pod-1",
    attempt=1,
    timestamp=1004.0,
    traceback="tb",
)


def text_of(page):
    return html.unescape(re.sub(r"<[^>]+>", " ", page))


def test_the_picture_places_every_event_by_its_time():
    page = render_timeline(TIMELINE)
    bars = re.findall(r'<rect x="([\d.]+)%"[^>]*?width="([\d.]+)%?"[^>]*><title>([^<]*)</title>', page)
    assert [(float(x), float(width), title) for x, width, title in bars] == [
        (0.0, 12.5, "inputs: 0.000 s to 0.500 s 951 bytes"),
        (100.0, 2.0, "result: 4.000 s to 4.000 s 5 bytes"),
        (12.5, 12.5, "rendezvous: 0.500 s to 1.000 s"),
        (75.0, 2.0, "restart: 3.000 s to 3.000 s ValueError: &lt;b&gt;no&lt;/b&gt;"),
        (25.0, 50.0, "rank: 1.000 s to 3.000 s exit code 0"),
        (37.5, 25.0, "function: 1.500 s to 2.500 s"),
        (50.0, 2.0, "first output: 2.000 s to 2.000 s"),
        (25.0, 25.0, "rank: 1.000 s to 2.000 s exit code 1"),
        (37.5, 12.5, "function: 1.500 s to 2.000 s did not return"),
        (75.0, 25.0, "rank: 3.000 s to 4.000 s exit code 1"),
    ]
    assert re.findall(r'<text x="0" y="\d+">([^<]*)</text>', page) == [
        "launcher",
        "node 0",
        "node 1",
        "rank 0",
        "rank 1",
    ]


def test_the_table_has_a_row_for_every_event():
    rows = re.findall(r"<tr>(.*?)</tr>", render_timeline(TIMELINE))
    cells = [[html.unescape(cell) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)] for row in rows]
    assert cells[0] == ["event", "where", "at / s", "took / s", ""]
    assert len(cells) == 1 + len(TIMELINE)
    assert cells[1] == ["rank server", "", "-5.000", "2.000", ""]
    assert cells[9] == ["restart", "node 1, attempt 1", "3.000", "", "ValueError: <b>no</b>"]


def test_a_failure_names_the_rank_that_failed_first_and_nothing_is_run():
    page = render_timeline(TIMELINE, ERROR)
    assert "Rank 1 failed first (on pod-1, attempt 1)" in text_of(page)
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert not re.search(r"(src|href|url\()", page)
    marked = re.findall(r'stroke-width="2"><title>([^<]*)<', page)
    assert marked == ["rank: 3.000 s to 4.000 s exit code 1"]


def decks_of(call):
    """The decks that the call adds, by name."""
    parameters = flytekit.FlyteContextManager.current_context().user_space_params
    before = len(parameters.decks)
    call()
    return {deck.name: deck.html for deck in parameters.decks[before:]}


def test_a_task_with_decks_shows_its_launch_beside_those_of_rank_zero():
    @task(task_config=Elastic(nproc_per_node=2), enable_deck=True)
    def train() -> int:
        Deck("curve", "<p>falling</p>")
        return 1

    decks = decks_of(train)
    assert decks["curve"] == "<p>falling</p>"
    assert re.findall(r'<text x="0" y="\d+">([^<]*)</text>', decks["Launch"]) == ["launcher", "rank 0", "rank 1"]
    assert "failed first" not in decks["Launch"]


def test_a_task_without_decks_makes_none():
    @task(task_config=Elastic(nproc_per_node=1))
    def train() -> int:
        return 1

    assert decks_of(train) == {}


def test_a_failed_local_run_leaves_its_deck_as_a_file(monkeypatch):
    @task(task_config=Elastic(nproc_per_node=2), enable_deck=True)
    def train() -> int:
        if os.environ["RANK"] == "1":
            raise ValueError("no data")
        return 1

    written = []
    from flyte_torchrun.flytekit import timeline_deck

    real = timeline_deck._output_deck

    def output(name, parameters):
        real(name, parameters)
        written.append(_get_deck(new_user_params=parameters, ignore_jupyter=True))

    monkeypatch.setattr(timeline_deck, "_output_deck", output)
    with pytest.raises(ValueError, match="no data"):
        train()
    (page,) = written
    assert "Rank 1 failed first" in page


MEASURE = """
<script>
const box = (element) => { const r = element.getBoundingClientRect(); return [r.left, r.right, r.width, r.height]; };
parent.postMessage(JSON.stringify({
  width: innerWidth,
  page: document.scrollingElement.scrollWidth,
  bars: [...document.querySelectorAll("svg rect")].map(box),
  texts: [...document.querySelectorAll("svg text")].map(box),
  fonts: [...document.querySelectorAll("svg text")].map((e) => parseFloat(getComputedStyle(e).fontSize)),
  rows: document.querySelectorAll("table tr").length,
  resources: performance.getEntriesByType("resource").map((e) => e.name),
}), "*");
</script>
"""
# The screen: a frame, since a window of Chromium's is never as narrow as a phone.
SCREEN = """<!doctype html><script>onmessage = (message) => { document.title = message.data; };</script>
<iframe src="deck.html" style="border:0;width:%dpx;height:900px"></iframe>
"""


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: the deck is not looked at in a browser")
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_the_whole_deck(width, tmp_path):
    (tmp_path / "screen.html").write_text(SCREEN % width)
    page = tmp_path / "deck.html"
    head = '<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    page.write_text(f'{head}<body style="margin:0;padding:2rem">{render_timeline(TIMELINE, ERROR)}</body>{MEASURE}')
    done = subprocess.run(
        [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", tmp_path / "screen.html"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    seen = json.loads(html.unescape(re.search(r"<title>(\{.*?\})</title>", done.stdout).group(1)))
    assert seen["width"] == width
    assert seen["page"] <= width  # nothing makes the page wider than the screen
    assert seen["rows"] == 1 + len(TIMELINE)
    assert seen["resources"] == []
    assert len(seen["bars"]) == len(TIMELINE) - 1  # the server was ready before
    assert all(left >= 0 and right <= width and bar > 0 and height > 0 for left, right, bar, height in seen["bars"])
    assert len(seen["texts"]) == 5 + 5  # lanes and times
    assert all(left >= 0 and right <= width for left, right, _, _ in seen["texts"])
    assert min(seen["fonts"]) >= 12
    times = sorted(seen["texts"][-5:])
    assert all(a[1] < b[0] for a, b in itertools.pairwise(times)), "the times overlap"
