"""The run list as a reader meets it, in a real browser: sorting, searching, a run that is running."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest

from tpsl.report.run_list import spent_on
from tpsl.report.run_table import summary
from tpsl.run.observer import PROGRESS, ProgressFile

from .live_service import Service
from .test_page_in_browser import CONTRAST

SHOWN = """
return [...document.querySelectorAll('#runs tbody tr:not([hidden]) th[scope=row] a')]
  .filter(e => !e.closest('section').hidden).map(e => e.textContent);
"""
GROUPS = "return [...document.querySelectorAll('#runs h2')].map(head => head.firstChild.textContent.trim())"
TYPE = """
const box = document.getElementById('query');
box.value = arguments[0];
box.dispatchEvent(new Event('input'));
"""
FOUND = "return document.getElementById('found').textContent"
OVERFLOW = "return document.documentElement.scrollWidth - innerWidth"


def open_list(browser: Any, service: Service, **how: Any) -> None:
    browser.open(SimpleNamespace(as_uri=lambda: service.live.url), **how)


def waited(browser: Any, happened: Callable[[], bool], seconds: float = 20) -> float:
    """Wait until something shows, and return how long it took."""
    begun = time.monotonic()
    while not happened():
        assert time.monotonic() - begun < seconds, browser.run("return document.body.innerText")[:2000]
        time.sleep(0.02)
    return time.monotonic() - begun


@contextmanager
def under_two_seconds(browser: Any) -> Iterator[None]:
    """What happens takes less than two seconds of the processor, at the service and in the page.

    The time of the wall is also what else runs on the machine.
    """

    def spent() -> float:
        metrics = browser.call("Performance.getMetrics")["metrics"]
        return {metric["name"]: metric["value"] for metric in metrics}["ThreadTime"] + time.process_time()

    browser.call("Performance.enable")
    before = spent()
    yield
    assert 0 < spent() - before < 2.0


@pytest.fixture(scope="module")
def many(many_runs: Path) -> Iterator[Service]:
    service = Service(many_runs)
    service.list()
    yield service
    service.stop()


def test_three_hundred_runs_are_listed_sorted_and_searched(browser: Any, many: Service) -> None:
    open_list(browser, many, width=1400)
    with under_two_seconds(browser):
        browser.go(many.live.url)
        waited(browser, lambda: len(browser.run(SHOWN)) == 300)
    # Three data sets: each has a group, and a smallest ε of its own that is as good as the best.
    assert browser.run(GROUPS) == ["flights", "synthetic", "synthetic"]
    best = browser.run(
        "return [...document.querySelectorAll('#runs tbody tr')].filter(e => e.textContent.includes("
        "'smallest ε as good as the best')).map(e => e.querySelector('a').textContent)"
    )
    views = many.live.watched.snapshot().views
    for group in {view.data_group for view in views}:
        own = [summary(view) for view in views if view.data_group == group]
        most = max(row["test_auc"] for row in own)
        as_good = [row for row in own if row["test_auc_low"] <= most <= row["test_auc_high"]]
        first = min(as_good, key=lambda row: (row["total_epsilon"], row["epsilon"], -row["test_auc"]))
        assert first["epsilon"] < max(row["epsilon"] for row in as_good) and first["name"] in best
    assert len(best) == 3

    sort = "[...document.querySelectorAll('#runs thead th')].find(e => e.textContent === 'Test AUC').click()"
    with under_two_seconds(browser):
        browser.run(sort)
        assert browser.run(SHOWN)[0] == "flights-0-000"
    browser.run(sort)
    assert browser.run(SHOWN)[:2] == ["flights-0-297", "flights-0-294"]
    assert browser.run("return document.querySelector('#runs th[aria-sort]').ariaSort") == "descending"

    with under_two_seconds(browser):
        browser.run(TYPE, "FLIGHTS batch_size=512")
        shown = browser.run(SHOWN)
    assert len(shown) == 50 and all(name.startswith("flights") for name in shown)
    assert browser.run(FOUND) == "50 of 300 runs"
    for query, count in {"": 300, "-29": 10, "privacy.epsilon=0.5": 75, "nothing": 0}.items():
        browser.run(TYPE, query)
        assert len(browser.run(SHOWN)) == count, query
    assert browser.console() == []


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_nothing_overflows_and_names_stay_readable(browser: Any, many: Service, width: int, scheme: str) -> None:
    open_list(browser, many, width=width, scheme=scheme)
    assert browser.run(OVERFLOW) == 0
    name, card = browser.run(
        "const link = document.querySelector('#runs tbody th a').getBoundingClientRect();"
        "return [[link.left, link.right, link.width], document.querySelector('#runs').getBoundingClientRect().width]"
    )
    assert 0 < name[0] < name[1] < width and name[2] > 60 and card <= width
    # Nothing on the page lies beyond its edge or over something else in the bar.
    assert browser.run(
        "const all = [...document.querySelectorAll('.bar > *, #runs *')].filter("
        "e => e.offsetWidth && !e.closest('.unseen'));"
        "return all.filter(e => e.getBoundingClientRect().right > innerWidth + 1).length"
    ) == 0  # fmt: skip
    assert browser.run(CONTRAST) == []
    assert browser.console() == []


def test_the_list_follows_the_folder(browser: Any, serve: Any, runs: Path, tmp_path: Path) -> None:
    service = serve(tmp_path)
    state = "return document.getElementById('live')?.textContent"
    open_list(browser, service, width=360)
    waited(browser, lambda: "no runs here yet" in browser.run("return document.body.textContent"))
    name = "a <img src=x onerror=alert(1)> & more"
    shutil.copytree(runs / "stopped", tmp_path / name)
    waited(browser, lambda: browser.run(SHOWN) == [name])
    waited(browser, lambda: browser.run(state) == "live")
    browser.run("window.theSamePage = true; document.querySelector('#runs tbody th[scope=row] a').focus()")
    # What is new comes without a reload, and the keyboard stays where it is.
    shutil.copytree(runs / "laplace", tmp_path / "laplace")
    assert waited(browser, lambda: set(browser.run(SHOWN)) == {name, "laplace"}) < 10.0
    assert browser.run("return window.theSamePage && document.activeElement.textContent") == name
    auc = json.loads((runs / "laplace" / "result.json").read_text())["test_auc"]
    assert service.rows()["laplace"]["Test AUC"].startswith(f"{auc:.4f}")
    assert browser.run(OVERFLOW) == 0
    own = ("data:", service.live.url)
    assert [url for url in browser.requests() if not url.startswith(own)] == []
    # The report of a run opens from here, is the one that `tpsl report` writes, and leads back.
    links = browser.run("return [...document.querySelectorAll('#runs tbody th[scope=row] a')].map(e => e.href)")
    address = f"{service.live.url}runs/{quote(name, safe='')}"
    assert address in links
    assert browser.console() == []
    browser.go(address)
    assert browser.run("return document.querySelector('h1').textContent") == name
    assert browser.run("return document.querySelectorAll('figure').length") > 1
    assert browser.run("return document.querySelector('nav a').href") == service.live.url
    browser.run("document.querySelector('nav a').click()")
    waited(browser, lambda: len(browser.run(SHOWN)) == 2)
    assert browser.console() == []
    service.stop()
    waited(browser, lambda: browser.run(state) == "not live: tpsl ui has ended")
    browser.go("about:blank")  # or it goes on asking
    browser.console()


def test_a_running_run_shows_its_curve_its_speed_and_the_time_left(
    browser: Any, serve: Any, copied: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, now = copied("discrete"), [100.0]
    (run / "result.json").unlink()
    metrics = run / "label" / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:2]))
    for module in ("tpsl.run.observer", "tpsl.progress"):
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(monotonic=lambda: now[0]))
    file = ProgressFile(run / "label")
    file.at_step(10, 30, 100)
    service = serve(run.parent)
    open_list(browser, service, width=390)
    card = "return document.querySelector('#running .card')?.innerText ?? ''"
    waited(browser, lambda: "step 10 of 30" in browser.run(card))
    assert "epoch 2 of 3" in browser.run(card)
    assert browser.run("return document.querySelector('#running progress').value") == pytest.approx(1 / 3, abs=1e-3)
    points = "return document.querySelectorAll('#running .point').length"
    assert browser.run(points) == 2
    for query, found in {"running": 1, "finished": 0}.items():
        browser.run(TYPE, query)
        assert len(browser.run(SHOWN)) == found
    # What is written shows within two seconds: 10 steps and 100 records in 5 s, so 5 s for the other 10.
    now[0] += 5
    file.at_step(20, 30, 200)
    assert waited(browser, lambda: "20 records/s · 5.0 s left" in browser.run(card)) < 10.0
    metrics.write_text("".join(lines[:3]))
    assert waited(browser, lambda: browser.run(points) == 3) < 10.0
    # At its end it is in the list like any other.
    file.close()
    assert not (run / "label" / PROGRESS).exists()
    assert browser.run(OVERFLOW) == 0
    assert browser.console() == []
    browser.go("about:blank")


def test_what_was_spent_in_all_and_who_says_so(browser: Any, many: Service) -> None:
    open_list(browser, many)
    rows = spent_on(many.live.watched.snapshot())
    tiles = browser.run("return [...document.querySelectorAll('#spent .card')].map(e => e.innerText)")
    assert [row.runs for row in rows] == [100, 100, 100]
    for spent, tile in zip(rows, tiles, strict=True):
        assert "100 runs." in tile and f"ε = {spent.total.epsilon:g}" in tile and spent.vaults[0] in tile


def test_a_feature_party_is_shown_nothing_of_labels(browser: Any, serve: Any, runs: Path) -> None:
    open_list(browser, serve(runs, "feature"))
    waited(browser, lambda: len(browser.run(SHOWN)) > 3)
    text = browser.run("return document.body.innerText")
    assert "Nothing here depends on true labels." in text and "no: seeded noise" in text
    heads = browser.run("return [...document.querySelectorAll('#runs thead th')].map(e => e.textContent)")
    assert not {"Test AUC", "Attack AUC"} & set(heads) and "Bound" in heads
    assert browser.run("return document.getElementById('spent')") is None
    assert browser.console() == []
    browser.go("about:blank")
