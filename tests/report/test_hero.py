"""The first screen in words and numbers: something true for every kind of run."""

import json
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

import pytest

from tpsl.report.hero import Bar, hero, promise_sentence
from tpsl.report.run_view import Attacks, Interval, RunView
from tpsl.run.run_folder import RunFolder
from tpsl.vault import Vault


def changed(view: RunView, promise: dict[str, Any] | None = None, **other: Any) -> RunView:
    return replace(view, **other, promise=replace(view.promise, **(promise or {})))


def attacks_of(runs: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((runs / "laplace" / "label" / "attacks.json").read_text())
    return content


def claims(view: RunView, views: list[RunView]) -> dict[str, float | None]:
    shown = hero(view, views)
    bars = [*shown.attack, *shown.utility]
    facts = [fact for card in shown.cards for fact in (card.number, *card.notes)]
    facts += [fact for bar in bars for fact in (bar.reached, *bar.notes)]
    return {str(fact.claim): fact.value for fact in facts if fact.claim}


def notes(view: RunView, views: list[RunView]) -> str:
    shown = hero(view, views)
    return "; ".join(note.text for part in (*shown.cards, *shown.attack) for note in part.notes)


def bar_of(view: RunView, views: list[RunView], claim: str) -> Bar:
    (bar,) = [bar for bar in hero(view, views).attack if bar.reached.claim == claim]
    return bar


def test_the_claims_are_the_numbers_of_result_findings_and_ledger(runs: Path, views: list[RunView]) -> None:
    for number in (1, 2):
        folder = RunFolder(runs / views[number].name)
        result = json.loads((folder.path / "result.json").read_text())
        attacks = json.loads((folder.label / "attacks.json").read_text())["attacks"]
        strongest = max((one for one in attacks.values() if one["scored_by"] != "features"), key=lambda one: one["auc"])
        plain = json.loads((runs / "non-private" / "result.json").read_text())
        plain_attacks = json.loads((runs / "non-private" / "label" / "attacks.json").read_text())["attacks"]
        with Vault.open(folder.vault()) as vault:
            spent = vault.ledger().epsilon_per_record
        share = max(0.0, result["test_auc"] - 0.5) / (plain["test_auc"] - 0.5)
        assert claims(views[number], views) == {
            "total_epsilon": spent,
            "test_auc": result["test_auc"],
            "auc_lost": plain["test_auc"] - result["test_auc"],
            "share_kept": share,
            "attack_auc": strongest["auc"],
            "bound": strongest["ceiling"],
            "without_auc": attacks["no_transcript"]["auc"],
            "advantage": strongest["auc"] - attacks["no_transcript"]["auc"],
            "plain_auc": max(one["auc"] for one in plain_attacks.values()),
        }


def test_the_promise_is_the_odds_factor_rounded_up_with_its_condition(views: list[RunView]) -> None:
    """The factor in the sentence is never below e^ε of all releases that are known."""
    for total in (0.1, 1.0, 2.0, 6.0):
        promise = {"epsilon": total, "total_epsilon": total, "total_epsilon_text": f"{total:g}"}
        sentence = promise_sentence(changed(views[1], promise))
        factor = float(sentence.split("more than ")[1].split(" times")[0])
        assert exp(total) <= factor <= 1.01 * exp(total)
        assert f"(odds; ε = {total:g})" in sentence
    assert "more than e^20 times" in promise_sentence(changed(views[1], {"epsilon": 20.0, "total_epsilon": 20.0}))


@pytest.mark.parametrize(
    ("promise", "other", "parts"),
    [
        ({}, {}, ["Nothing that crossed the border can make anybody more than 7.39 times surer of a label", "ε = 2"]),
        ({}, {"state": "unfinished"}, ["Nothing that crosses the border", "7.39"]),
        ({}, {"spent_by": "run"}, ["in this run", "7.39", "other releases of the same labels would add"]),
        (
            {"delta": 1e-6, "delta_text": "1e-6", "total_delta": 1e-6, "total_delta_text": "1e-6"},
            {},
            ["7.39 times surer", "ε = 2; up to a slack of δ = 1e-6 in probability"],
        ),
        (
            {"total_epsilon": 6.0, "total_epsilon_text": "6"},
            {},
            ["by this run (ε = 2) and by others", "404 times", "ε = 6 in all"],
        ),
        (
            {"total_epsilon": 3.0, "total_epsilon_text": "3"},
            {"gone_vaults": 2},
            ["known to have been released", "20.1 times", "at least ε = 3: 2 vaults that runs name are gone"],
        ),
        ({}, {"gone_vaults": 1}, ["known to", "7.39 times", "at least ε = 2: 1 vault that runs name is gone"]),
        (
            {"private": False, "total_epsilon": None},
            {},
            ["Another release of these labels had no noise", "in this run alone makes nobody more than 7.39 times"],
        ),
        ({"private": False}, {}, ["Another release of these labels had seeded noise", "this run alone"]),
        ({"epsilon": 0.0, "total_epsilon": 0.0}, {}, ["Nothing that depends on a label crossed", "ε = 0"]),
        ({"large_delta": True}, {}, ["ε = 2", "expect the promise to fail for at least one record"]),
        ({"epsilon": None, "total_epsilon": None, "private": False}, {}, ["no noise", "shows the labels"]),
    ],
)
def test_every_kind_of_promise_has_its_sentence(
    views: list[RunView], promise: dict[str, Any], other: dict[str, Any], parts: list[str]
) -> None:
    sentence = promise_sentence(changed(views[1], promise, **other))
    assert all(part in sentence for part in parts), sentence
    promised = "can make anybody" in sentence
    assert promised == ("Another" not in parts[0] and any("times" in part or "7.39" in part for part in parts))


def test_seeded_noise_promises_nothing(runs: Path, views: list[RunView]) -> None:
    seeded = views[3]
    assert "came from a seed" in promise_sentence(seeded) and "nothing is promised" in promise_sentence(seeded)
    attacked = changed(seeded, attacks=Attacks.of(attacks_of(runs), seeded=True))
    assert claims(attacked, [attacked])["bound"] is None  # whoever has the seed is not bounded
    assert hero(seeded, [seeded]).verdict.code == "not private"


def test_a_total_with_vaults_that_are_gone_is_the_first_number(views: list[RunView]) -> None:
    total = {"total_epsilon": 3.0, "total_epsilon_text": "3"}
    view = changed(views[1], total, gone_vaults=1, epsilon_all_labels="inf", apart="other people")
    card = hero(view, [view]).cards[0]
    assert (card.number.value, card.number.text) == (3.0, "ε = 3")
    for words in ("at least ε = 3: 1 vault", "over all labels of the vault: ε = ∞", "other one: other people"):
        assert words in notes(view, [view])


def test_the_picture_shows_what_the_run_adds_to_what_features_tell(runs: Path, views: list[RunView]) -> None:
    view = views[1]
    attacks = attacks_of(runs)["attacks"]
    without, with_run = bar_of(view, views, "without_auc"), bar_of(view, views, "attack_auc")
    assert [bar.reached.claim for bar in hero(view, views).attack] == [
        "without_auc",
        "attack_auc",
        "plain_auc",
    ]
    assert with_run.start == without.reached.value == attacks["no_transcript"]["auc"]
    assert without.bound and without.bound.value == attacks["no_transcript"]["ceiling"]
    assert with_run.auc and with_run.auc[1:] == tuple(
        max(attacks.values(), key=lambda one: one["auc"])[f"auc_{end}"] for end in ("low", "high")
    )


def test_two_runs_of_one_epsilon_have_one_bound_however_sharp_the_attack(views: list[RunView]) -> None:
    assert views[1].attacks
    of_one_kind = tuple(one for one in views[1].attacks.made if one.kind == "noisy label")
    (likelihood,) = (one for one in of_one_kind if one.name == "likelihood")
    dull = replace(likelihood, auc=Interval(0.6, 0.59, 0.61))
    sharp, blunt = (changed(views[1], attacks=Attacks(made, {})) for made in (of_one_kind, (dull,)))
    bounds = [bar_of(view, [view], "attack_auc").bound for view in (sharp, blunt)]
    assert bounds[0] and bounds[0] == bounds[1] and bounds[0].value == pytest.approx(exp(2) / (1 + exp(2)))


def test_what_was_not_measured_is_said_with_the_command_that_measures_it(views: list[RunView]) -> None:
    laplace, stopped = views[1], views[4]
    assert hero(stopped, [stopped]).verdict.code == "unfinished"
    alone = changed(laplace, attacks=None)
    shown = notes(alone, [alone])
    assert "tpsl train JOB --set privacy.mechanism=none --scratch --out runs/plain" in shown
    assert "tpsl report RUN runs/plain" in shown and "tpsl attack RUN" in shown
    assert "local.record_transcript=true" not in shown
    assert "tpsl train JOB --set local.record_transcript=true" in notes(changed(alone, recorded=False), [alone])
    assert "runs/plain" not in notes(laplace, views)
    # What is known without an attack is one kind of attacker's bound, and says whose it is.
    assert claims(alone, [alone]) == {
        "total_epsilon": 2.0,
        "auc_lost": None,
        "advantage": None,
        "bound": laplace.promise.ceiling,
        "plain_auc": 1.0,
        "test_auc": laplace.auc and laplace.auc.value,
    }
    kinds = [bar.name for bar in hero(alone, [alone]).attack]
    assert [name.partition(": ")[2] for name in kinds[:2]] == ["noisy label alone", "noisy label and features"]
    unscored = changed(laplace, attacks=Attacks.of({"attacks": {"norm": {"auc": None, "needs": ""}}}, seeded=False))
    assert hero(unscored, [unscored]) == hero(alone, [alone])
    nothing = changed(alone, {"epsilon": 0.0, "total_epsilon": 0.0})
    assert "nothing that depends on a label crosses" in notes(nothing, [nothing])


def test_recorded_is_what_can_be_attacked(views: list[RunView]) -> None:
    assert [view.recorded for view in views] == [True, True, True, False, True]


def test_a_bound_is_rounded_up(views: list[RunView]) -> None:
    for bound, shown in ((0.73100001, "0.7311"), (0.731, "0.7310"), (0.5, "0.5000"), (0.999999, "1.0000")):
        view = changed(views[1], {"ceiling": bound}, attacks=None)
        assert bar_of(view, [view], "bound").reached.text == f"≤ {shown}"


def test_an_attack_above_a_proved_bound_by_more_than_chance_is_called_so(views: list[RunView]) -> None:
    assert views[1].attack
    view = changed(views[1], attacks=Attacks((replace(views[1].attack, above_bound=True),), {}))
    assert "above its bound by more than chance" in notes(view, [view])
    assert "above its bound" not in notes(views[1], views)


def test_an_average_over_classes_is_named(views: list[RunView]) -> None:
    four = hero(changed(views[1], classes=4), views)
    assert "mean over 4 classes, each against the rest" in four.utility_title
    assert "mean over pairs of classes" in four.attack_title
    assert "mean" not in str(hero(views[1], views).utility_title)
