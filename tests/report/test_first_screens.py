"""Every claim of a first screen, on pages of real runs: bounds hold, numbers are the runs', a rule chooses the run.

The pages are those of a comparison as `tpsl demo` makes it, of one run alone, of a sweep over ε, of four classes and of
a run that learned nothing.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from tpsl.attacks import run_attacks
from tpsl.cli.train import DEMO, OPTIONS_ALONE
from tpsl.data.dataset import load
from tpsl.report.findings import keep_finding
from tpsl.report.hero import hero
from tpsl.report.page import write_page
from tpsl.report.run_reading import read_run
from tpsl.report.run_table import summary, summary_table
from tpsl.report.verdicts import first_shown
from tpsl.run.job import make_job
from tpsl.run.one_process import train

SYNTHETIC = {"source": "synthetic", "rows": 3000, "numeric_fields": 4, "categorical_fields": 2, "signal": 3.0}
PAGES: dict[str, dict[str, dict[str, Any]]] = {
    "demo": {name: {**content, "data": {"source": "flights", "rows": 2000}} for name, (_, content) in DEMO.items()},
    "sweep": {
        f"eps-{epsilon:g}": {**OPTIONS_ALONE, "data": SYNTHETIC, "privacy": {"epsilon": epsilon}}
        for epsilon in (0.5, 2.0, 6.0)
    },
    "four": {"four": {**OPTIONS_ALONE, "data": {**SYNTHETIC, "classes": 4}, "privacy": {"epsilon": 2.0}}},
    "nothing": {
        "nothing": {**OPTIONS_ALONE, "data": {**SYNTHETIC, "rows": 400, "signal": 0.0}, "privacy": {"epsilon": 0.01}}
    },
}
SIGMAS = 4.89 / 1.96  # half intervals: α = 1e-6


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """The runs of each page, trained with secret noise and attacked."""
    folder = tmp_path_factory.mktemp("pages")
    runs = {page: [folder / page / name for name in content] for page, content in PAGES.items()}
    for page, content in PAGES.items():
        for run, job_content in zip(runs[page], content.values(), strict=True):
            job = make_job(job_content, {}, "test")
            data = load(job.data)
            train(job, run, record_steps=96, data=data)
            found = run_attacks(run, data.labels, features=data.feature_parties)
            keep_finding(run, "attacks", found.as_dict())
    return {**runs, "one": runs["sweep"][1:2]}


@pytest.fixture(params=[*PAGES, "one"])
def runs(made: dict[str, list[Path]], request: pytest.FixtureRequest) -> list[Path]:
    """The runs of one page."""
    return made[request.param]


def data_of(runs: list[Path]) -> dict[str, Any]:
    views = [read_run(run) for run in runs]
    heroes = {view.name: hero(view, views) for view in views}
    found = [json.loads((run / "label" / "attacks.json").read_text()) for run in runs]
    shown = [
        {"name": view.name, "attacks": attacks, "shown": summary(view)}
        for view, attacks in zip(views, found, strict=True)
    ]
    return {"runs": shown, "heroes": heroes, "first": first_shown(views)}


def margin(*ends: tuple[float, float]) -> float:
    return SIGMAS * math.hypot(*((high - low) / 2 for low, high in ends)) + 1e-9


def test_no_bound_lies_below_an_attack_that_is_shown_against_it(runs: list[Path]) -> None:
    for run in data_of(runs)["runs"]:
        attacks = run["attacks"]["attacks"]
        for name, attack in attacks.items():
            ends = (attack["auc_low"], attack["auc_high"]), (attack["ceiling_low"], attack["ceiling_high"])
            assert attack["auc"] <= attack["ceiling"] + margin(*ends), (run["name"], name)
        # The bound in the table is that of the attack in the table, and stronger attacks are not passed over.
        shown = run["shown"]
        assert shown["bound"] == attacks[shown["attack"]]["ceiling"]
        assert shown["attack_auc"] == max(one["auc"] for one in attacks.values() if one["scored_by"] != "features")


def test_every_bar_of_the_picture_stands_beside_the_bound_of_its_own_attacker(runs: list[Path]) -> None:
    data = data_of(runs)
    for run in data["runs"]:
        attacks = run["attacks"]["attacks"]
        for bar in data["heroes"][run["name"]].attack:
            claim, value = bar.reached.claim, bar.reached.value
            if claim == "plain_auc":
                assert bar.bound is None and value == pytest.approx(1.0, abs=1e-6)
                continue
            (attack,) = {(one["auc"], one["ceiling"]) for one in attacks.values() if one["auc"] == value}
            assert attack == (value, bar.bound.value)


def test_the_claims_are_the_numbers_of_the_files(runs: list[Path]) -> None:
    data = data_of(runs)
    results = {run.name: json.loads((run / "result.json").read_text()) for run in runs}
    plain = next((one for one in results.values() if one["epsilon"] is None), None)
    for run in runs:
        own, attacks = results[run.name], json.loads((run / "label" / "attacks.json").read_text())["attacks"]
        strongest = max((one for one in attacks.values() if one["scored_by"] != "features"), key=lambda one: one["auc"])
        expected = {
            "total_epsilon": own["total_epsilon"],
            "test_auc": own["test_auc"],
            "auc_lost": plain["test_auc"] - own["test_auc"] if plain and own is not plain else None,
            "without_auc": attacks["no_transcript"]["auc"],
            "advantage": strongest["auc"] - attacks["no_transcript"]["auc"],
        }
        if own["epsilon"] is not None:
            expected |= {"attack_auc": strongest["auc"], "bound": strongest["ceiling"]}
        hero = data["heroes"][run.name]
        facts = [fact for bar in (*hero.attack, *hero.utility) for fact in (bar.reached, *bar.notes)]
        facts += [fact for card in hero.cards for fact in (card.number, *card.notes)]
        claims = {fact.claim: fact.value for fact in facts if fact.claim}
        assert {name: claims[name] for name in expected} == expected
        factor = re.search(r"more than ([\d.]+) times surer of a label \(odds; ε", hero.headline)
        assert (factor is None) == (own["epsilon"] is None)
        assert factor is None or math.exp(own["total_epsilon"]) <= float(factor[1])


def test_the_page_opens_with_the_smallest_epsilon_that_is_as_good_as_the_best(runs: list[Path]) -> None:
    results = [json.loads((run / "result.json").read_text()) for run in runs]
    private = [one for one in results if one["epsilon"] is not None]
    learned = [one for one in private if one["test_auc_low"] > 0.5] or private
    best = max(one["test_auc"] for one in learned)
    as_good = [one for one in learned if one["test_auc_low"] <= best <= one["test_auc_high"]]
    first = min(as_good, key=lambda one: (one["total_epsilon"], -one["test_auc"]))
    assert results[data_of(runs)["first"]] == first


def test_the_verdicts_follow_from_the_intervals(made: dict[str, list[Path]]) -> None:
    codes = {}
    for page, runs in made.items():
        data = data_of(runs)
        for run in runs:
            own = json.loads((run / "result.json").read_text())
            code = codes[page, run.name] = data["heroes"][run.name].verdict.code
            if own["epsilon"] is not None:
                assert (code == "guessing") == (own["test_auc_low"] <= 0.5)
    assert codes["nothing", "nothing"] in ("guessing", "no comparison")  # by chance, one interval in 40 lies above 0.5
    assert codes["demo", "plain"] == "not private"
    assert codes["one", "eps-2"] in ("no comparison", "guessing")


def test_a_run_without_a_comparison_says_how_to_make_one(made: dict[str, list[Path]]) -> None:
    for page, runs in made.items():
        hero = data_of(runs)["heroes"][runs[-1].name]
        commands = [note.text for card in hero.cards for note in card.notes if note.command]
        assert bool(commands) == (page != "demo")


def test_an_attack_that_does_not_apply_is_not_on_the_first_screen(made: dict[str, list[Path]]) -> None:
    data = data_of(made["four"])
    (run,) = data["runs"]
    assert len(run["attacks"]["not_run"]) == 4
    assert "not run" not in str(data["heroes"])
    assert run["shown"]["attack"] in run["attacks"]["attacks"]


FORBIDDEN = r"\b(ceilings?|closed form|limits?|limit of any attack|allows anybody)\b"


def test_one_word_for_what_epsilon_allows(made: dict[str, list[Path]], browser: Any, tmp_path: Path) -> None:
    import io

    from rich.console import Console

    for page, runs in made.items():
        views = [read_run(run) for run in runs]
        console = Console(width=80, record=True, file=io.StringIO())
        console.print(summary_table(views))
        table = console.export_text()
        assert "Bound" in table and not re.search(FORBIDDEN, table, re.IGNORECASE)
        assert all(f"{summary(view)['attack_auc']:.4f}" in table for view in views)
        write_page(tmp_path / f"{page}.html", views, title=page)
        browser.open(tmp_path / f"{page}.html")
        text = browser.run(
            "document.querySelectorAll('details').forEach(e => { e.open = true }); return document.body.innerText"
        )
        assert not re.findall(FORBIDDEN, text, re.IGNORECASE)
        assert browser.console() == []
