"""The run browser as a reader meets it, in a real browser: the list, a comparison, a run that is running."""

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

from tpsl.training.observer import PROGRESS, ProgressFile

from .live_service import Service
from .test_page_in_browser import CONTRAST

SHOWN = "return [...document.querySelectorAll('#runs tbody tr[data-run]')].map(row => row.dataset.run)"
GROUPS = "return [...document.querySelectorAll('#runs .data-set th')].map(head => head.firstChild.textContent)"
TYPE = """
const box = document.getElementById('query');
box.value = arguments[0];
box.dispatchEvent(new Event('input'));
"""
OVERFLOW = "return document.documentElement.scrollWidth - innerWidth"


def open_list(browser: Any, service: Service, view: str = "", **how: Any) -> None:
    browser.open(SimpleNamespace(as_uri=lambda: service.live.url + view), **how)


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
        metrics = browser.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return {metric["name"]: metric["value"] for metric in metrics}["ThreadTime"] + time.process_time()

    browser.driver.execute_cdp_cmd("Performance.enable", {})
    before = spent()
    yield
    assert 0 < spent() - before < 2.0


@pytest.fixture(scope="module")
def many(many_runs: Path) -> Iterator[Service]:
    service = Service(many_runs)
    service.data()
    yield service
    service.stop()


def test_three_hundred_runs_are_listed_sorted_filtered_and_compared(browser: Any, many: Service) -> None:
    open_list(browser, many, width=1400)
    with under_two_seconds(browser):
        browser.driver.refresh()
        waited(browser, lambda: len(browser.run(SHOWN)) == 300)
    # Three data sets: each has a group, and a smallest ε of its own that is as good as the best.
    assert browser.run(GROUPS) == ["flights", "synthetic", "synthetic"]
    best = browser.run("return [...document.querySelectorAll('.best')].map(e => e.closest('tr').dataset.run)")
    rows = many.data()["runs"]
    for group in {row["data_group"] for row in rows}:
        own = [row for row in rows if row["data_group"] == group]
        most = max(row["test_auc"] for row in own)
        as_good = [row for row in own if row["test_auc_low"] <= most <= row["test_auc_high"]]
        first = min(as_good, key=lambda row: (row["total_epsilon"], row["epsilon"], -row["test_auc"]))
        assert first["epsilon"] < max(row["epsilon"] for row in as_good) and first["name"] in best
    assert len(best) == 3

    sort = "document.querySelector('#runs thead [data-focus=\"sort test_auc\"]').click()"
    with under_two_seconds(browser):
        browser.run(sort)
        assert browser.run(SHOWN)[:2] == ["flights-0-297", "flights-0-294"]
    assert browser.run("return document.querySelector('#runs th[aria-sort]').textContent") == "Test AUC ↓"
    assert "sort=-test_auc" in browser.run("return location.hash")
    browser.run(sort)
    assert browser.run(SHOWN)[0] == "flights-0-000"

    with under_two_seconds(browser):
        browser.run(TYPE, "ε ≤ 1 flights")
        shown = browser.run(SHOWN)
    assert len(shown) == 50 and all(name.startswith("flights") for name in shown)
    assert browser.run("return document.getElementById('query-note').textContent") == "50 of 300 runs"

    browser.run("[...document.querySelectorAll('#runs input')].slice(0, 3).forEach(box => box.click())")
    assert browser.run("return document.getElementById('compare').textContent") == "Compare 3 runs"
    with under_two_seconds(browser):
        browser.run("document.getElementById('compare').click()")
        waited(browser, lambda: browser.run("return document.querySelectorAll('#chart-curves .trace').length") == 3)
    differing = browser.run("return [...document.querySelectorAll('#differences tbody th')].map(e => e.textContent)")
    assert differing == ["privacy.epsilon", "training.batch_size", "training.seed"]
    areas = browser.run(
        "return [...[...document.querySelectorAll('#side-by-side tr')].find(row => row.textContent.startsWith("
        "'Test AUC')).children].map(e => e.textContent)"
    )
    assert areas == [
        "Test AUC",
        *(
            f"{0.6 + int(name[-3:]) / 1e4:.4f} ({0.59 + int(name[-3:]) / 1e4:.4f}–{0.61 + int(name[-3:]) / 1e4:.4f})"
            for name in shown[:3]
        ),
    ]
    # The address holds all of it, and the way back leads to the list as it was.
    browser.run("history.back()")
    waited(browser, lambda: not browser.run("return document.getElementById('list').hidden"))
    assert browser.run(SHOWN) == shown
    assert browser.console() == []


FOUND = {
    "": 300,
    "FLIGHTS": 100,
    "-29": 10,
    "eps<=1": 150,
    "ε = 0.5": 75,
    "epsilon > 1 epsilon < 4": 75,
    "auc>=0.625": 50,
    "batch_size = 512": 150,
    "training.batch_size=512 data=synthetic": 100,
    "batch_size=256 flights-0-003": 0,
    "training.seed != 7": 299,
    "duration < 20": 10,
    "date>2020-01-01": 300,
    "state=finished private=yes": 300,
    "total<=0.4": 0,
    "epsilon<many": 0,
}


def test_words_and_comparisons_find_runs(browser: Any, many: Service) -> None:
    open_list(browser, many)
    note = "document.getElementById('query-note').textContent"
    searched = f"return arguments[0].map(text => {{ {TYPE.replace('arguments[0]', 'text')}"
    searched += f"{SHOWN.replace('return', 'const shown =')}; return [shown.length, {note}]; }})"
    for (query, count), (found, said) in zip(FOUND.items(), browser.run(searched, list(FOUND)), strict=True):
        assert found == count, query
        assert said == ("" if count == 300 else "No run is like that." if count == 0 else f"{count} of 300 runs")


def test_a_name_that_nothing_has_is_said(browser: Any, many: Service) -> None:
    open_list(browser, many, "#search=" + "colour%3Dred")
    assert browser.run(SHOWN) == []
    assert "Nothing is called “colour”" in browser.run("return document.getElementById('query-note').textContent")
    assert browser.run("return document.getElementById('query').value") == "colour=red"


def test_the_address_says_what_is_shown(browser: Any, many: Service) -> None:
    open_list(browser, many, "#group=no&sort=duration&columns=epsilon,training.batch_size&search=auc%3E0.62")
    assert browser.run(GROUPS) == []
    shown = browser.run(SHOWN)
    assert shown == sorted(shown, key=lambda name: int(name[-3:])) and len(shown) == 99
    heads = browser.run(
        "return [...document.querySelectorAll('#runs thead button')].map(e => e.firstChild.textContent)"
    )
    assert heads == ["Run", "ε of the run", "training.batch_size"]
    # Columns are chosen in a list, with those keys of the jobs in which runs differ.
    browser.run("document.querySelector('#columns input[value=mechanism]').click()")
    assert "columns=epsilon%2Cmechanism%2Ctraining.batch_size" in browser.run("return location.hash")
    assert "laplace" in browser.run("return document.querySelector('#runs [data-field=mechanism]').textContent")
    assert browser.run("return !!document.querySelector('#columns input[value=\"training.epochs\"]')") is False
    browser.run("document.getElementById('group').click()")
    assert browser.run(GROUPS) == ["flights", "synthetic", "synthetic"]


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_nothing_overflows_and_names_stay_readable(browser: Any, many: Service, width: int, scheme: str) -> None:
    names = "&".join(f"compare={name}" for name in ("flights-0-000", "flights-0-003", "synthetic-1-001"))
    open_list(browser, many, width=width, scheme=scheme)
    assert browser.run(OVERFLOW) == 0
    name, card = browser.run(
        "const link = document.querySelector('#runs tbody th a').getBoundingClientRect();"
        "return [[link.left, link.right, link.width], document.querySelector('#runs').getBoundingClientRect().width]"
    )
    assert 0 < name[0] < name[1] < width and name[2] > 60 and card <= width
    assert browser.run(CONTRAST) == []
    open_list(browser, many, f"#{names}", width=width, scheme=scheme)
    waited(browser, lambda: browser.run("return document.querySelectorAll('#chart-curves .trace').length") == 3)
    assert browser.run(OVERFLOW) == 0
    assert browser.run(CONTRAST) == []
    assert "These runs are on different data" in browser.run("return document.getElementById('comparison').textContent")
    assert browser.console() == []


def test_the_list_moves_by_itself(browser: Any, serve: Any, runs: Path, tmp_path: Path) -> None:
    service = serve(tmp_path)
    state = "return document.getElementById('live')?.textContent"
    open_list(browser, service, width=360)
    waited(browser, lambda: "no runs here yet" in browser.run("return document.body.textContent"))
    name = "a <img src=x onerror=alert(1)> & more"
    shutil.copytree(runs / "stopped", tmp_path / name)
    waited(browser, lambda: browser.run(SHOWN) == [name])
    waited(browser, lambda: browser.run(state) == "live")
    browser.run("window.theSamePage = true; document.querySelector('#runs tbody a').focus()")
    # What is new comes without a reload, and the keyboard stays where it is.
    shutil.copytree(runs / "laplace", tmp_path / "laplace")
    assert waited(browser, lambda: set(browser.run(SHOWN)) == {name, "laplace"}) < 10.0
    assert browser.run("return window.theSamePage && document.activeElement.textContent") == name
    auc = json.loads((runs / "laplace" / "result.json").read_text())["test_auc"]
    cell = "return document.querySelector('[data-run=laplace] [data-field=test_auc] span span').textContent"
    assert browser.run(cell) == f"{auc:.4f}"
    assert "follows a folder on this machine" in browser.run("return document.querySelector('footer').textContent")
    assert browser.run(OVERFLOW) == 0
    own = ("data:", service.live.url)
    assert [url for url in browser.requests() if not url.startswith(own)] == []
    # The report of a run opens from here, is the one that `tpsl report` writes, and leads back.
    address = browser.run("return document.querySelector('#runs tbody a').href")
    assert address == f"{service.live.url}runs/{quote(name, safe='()')}"
    assert browser.console() == []
    browser.driver.get(address)
    assert browser.run("return document.querySelector('h1').textContent") == name
    assert browser.run("return document.querySelectorAll('figure').length") > 1
    assert browser.run("return document.querySelector('a.mark').href") == service.live.url
    browser.run("document.querySelector('a.mark').click()")
    waited(browser, lambda: len(browser.run(SHOWN)) == 2)
    assert browser.console() == []
    service.stop()
    waited(browser, lambda: browser.run(state) == "not live: tpsl ui has ended")
    browser.driver.get("about:blank")  # or it goes on asking
    browser.console()


def test_a_running_run_shows_its_curve_its_speed_and_the_time_left(
    browser: Any, serve: Any, copied: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, now = copied("discrete"), [100.0]
    (run / "result.json").unlink()
    metrics = run / "label" / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:2]))
    for module in ("tpsl.training.observer", "tpsl.progress"):
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(monotonic=lambda: now[0]))
    file = ProgressFile(run / "label")
    file.at_step(10, 30, 100)
    service = serve(run.parent)
    open_list(browser, service, width=390)
    card = "return document.querySelector('#running .card')?.innerText ?? ''"
    waited(browser, lambda: "step 10 of 30" in browser.run(card))
    assert "epoch 2 of 3" in browser.run(card)
    assert browser.run("return document.querySelectorAll('#running polyline').length") == 1
    assert browser.run("return document.querySelector('#runs progress').value") == pytest.approx(1 / 3)
    for query, found in {"state=running": 1, "running": 1, "state = finished": 0}.items():
        browser.run(TYPE, query)
        assert len(browser.run(SHOWN)) == found
    # What is written shows within two seconds: 10 steps and 100 records in 5 s, so 5 s for the other 10.
    now[0] += 5
    file.at_step(20, 30, 200)
    assert waited(browser, lambda: "20 records/s · 5 s left" in browser.run(card)) < 10.0
    browser.run("document.querySelector('#running .pick').click()")
    points = "return document.querySelector('#chart-curves .plot')?.data?.[0].x.length"
    waited(browser, lambda: browser.run(points) == 2)
    assert "step 20 of 30" in browser.run("return document.querySelector('#comparison .card').innerText")
    metrics.write_text("".join(lines[:3]))
    assert waited(browser, lambda: browser.run(points) == 3) < 10.0
    # At its end it is in the list like any other.
    file.close()
    assert not (run / "label" / PROGRESS).exists()
    assert browser.run(OVERFLOW) == 0
    assert browser.console() == []
    browser.driver.get("about:blank")


def test_what_was_spent_in_all_and_who_says_so(browser: Any, many: Service) -> None:
    open_list(browser, many)
    rows = many.data()["spent"]
    tiles = browser.run("return [...document.querySelectorAll('#spent .tile')].map(e => e.innerText)")
    assert [row["runs"] for row in rows] == [100, 100, 100]
    for spent, tile in zip(rows, tiles, strict=True):
        assert "100 runs." in tile and f"ε = {spent['epsilon_text']}" in tile and spent["vaults"][0] in tile


def test_a_feature_party_is_shown_nothing_of_labels(browser: Any, serve: Any, runs: Path) -> None:
    open_list(browser, serve(runs, "feature"))
    waited(browser, lambda: len(browser.run(SHOWN)) > 3)
    text = browser.run("return document.body.innerText")
    assert "For a feature party. Nothing here depends on true labels." in text and "not private" in text
    heads = browser.run(
        "return [...document.querySelectorAll('#runs thead button')].map(e => e.firstChild.textContent)"
    )
    assert not {"Test AUC", "Total ε"} & set(heads) and "Bound on attacks" in heads
    assert browser.run("return document.getElementById('spent').hidden")
    browser.run("location.hash = 'compare=laplace&compare=discrete'")
    waited(browser, lambda: "2 runs compared" in browser.run("return document.body.innerText"))
    waited(browser, lambda: browser.run("return document.getElementById('curves').hidden"))
    assert "Test AUC" not in browser.run("return document.body.innerText")
    assert browser.console() == []
    browser.driver.get("about:blank")
