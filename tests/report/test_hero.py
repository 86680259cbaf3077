"""The first screen in words and numbers: something true for every kind of run."""

import json
from pathlib import Path
from typing import Any

import pytest

from tpsl.report.hero import first_shown, hero
from tpsl.report.run_view import RunView
from tpsl.report.words import lead, praised
from tpsl.training.run_folder import RunFolder
from tpsl.vault import Vault


def changed(view: RunView, promise: dict[str, Any] | None = None, **other: Any) -> RunView:
    return {**view, **other, "promise": {**view["promise"], **(promise or {})}}  # type: ignore[typeddict-item]


def claims(view: RunView, views: list[RunView]) -> dict[str, float | None]:
    facts = [fact for card in hero(view, views)["cards"] for fact in (card["number"], *card["notes"])]
    return {str(fact["claim"]): fact["value"] for fact in facts if fact["claim"]}


def notes(view: RunView, views: list[RunView]) -> str:
    return "; ".join(note["text"] for card in hero(view, views)["cards"] for note in card["notes"])


def test_the_five_claims_are_the_numbers_of_result_findings_and_ledger(runs: Path, views: list[RunView]) -> None:
    for number in (1, 2):
        folder = RunFolder(runs / views[number]["name"])
        result = json.loads((folder.path / "result.json").read_text())
        attack = json.loads((folder.label / "attacks.json").read_text())["attacks"]["shortest_distance"]
        plain = json.loads((runs / "non-private" / "result.json").read_text())
        with Vault.open(folder.vault()) as vault:
            spent = vault.ledger().epsilon_per_record
        assert claims(views[number], views) == {
            "total_epsilon": spent,
            "test_auc": result["test_auc"],
            "accuracy_lost": plain["test_auc"] - result["test_auc"],
            "attack_auc": attack["auc"],
            "ceiling": attack["ceiling"],
        }


def test_the_headline_says_what_is_capped_and_what_is_kept(views: list[RunView]) -> None:
    plain, laplace = views[0], views[1]
    better = changed(laplace, test={**(laplace["test"] or {}), "test_auc": 0.7})
    reference = changed(plain, test={**(plain["test"] or {}), "test_auc": 0.75})
    assert hero(better, [reference, better])["headline"] == (
        "Plain split learning gives away every label. This run caps what its gradients tell of labels at 0.881 "
        "and keeps 80\u00a0% of the accuracy."
    )
    assert hero(better, [better])["headline"].endswith("at 0.881 and reaches a test AUC of 0.700.")
    assert hero(reference, [reference])["headline"] == "This run has no noise: it gives away the labels."
    equal = changed(plain, test=better["test"])
    assert hero(better, [equal, better])["headline"].endswith("and keeps all of the accuracy.")
    more = changed(plain, test={**(plain["test"] or {}), "test_auc": 0.6})
    assert hero(better, [more, better])["headline"].endswith("and keeps all of the accuracy.")
    assert "0.100 more than without privacy" in notes(better, [more, better])
    worse = changed(laplace, test={**(laplace["test"] or {}), "test_auc": 0.45})
    assert hero(worse, [reference, worse])["headline"].endswith("and its model is no better than guessing.")
    assert "0.300 less than without privacy; no better than guessing" in notes(worse, [reference, worse])


@pytest.mark.parametrize(
    ("promise", "sentence"),
    [
        ({"private": False}, "The noise of this run came from a seed: nothing is promised about the labels."),
        ({"private": False, "total_epsilon": None}, "Another release of these labels had no noise: nothing is"),
        ({"large_delta": True}, "This run promises ε = 2: expect it to fail for at least one record."),
        ({"total_epsilon": 6.0, "total_epsilon_text": "6"}, "This run alone caps what its gradients tell of labels"),
        ({"attack": "likelihood"}, "This run caps what its noisy labels tell at 0.881"),
        ({"attack": "statistic"}, "This run caps what its noisy statistic tells of labels at 0.881"),
        ({"epsilon": 0.0, "total_epsilon": 0.0}, "In this run nothing that depends on a label crosses the border"),
    ],
)
def test_every_kind_of_promise_has_its_sentence(views: list[RunView], promise: dict[str, Any], sentence: str) -> None:
    view = changed(views[1], promise)
    assert sentence in hero(view, [view])["headline"]
    held = promise.get("private", True) and not promise.get("large_delta")
    assert ("gives away every label" in hero(view, [view])["headline"]) == held


def test_what_is_not_known_is_said(views: list[RunView]) -> None:
    laplace, seeded, stopped = views[1], views[3], views[4]
    assert hero(stopped, [stopped])["headline"].endswith("It is not finished: epoch 1 of 3.")
    assert "not finished: epoch 1 of 3" in notes(stopped, [stopped])
    alone = changed(laplace, attacks=None)
    assert "no run without noise here to compare with; not attacked yet" in notes(alone, [alone])
    assert claims(alone, [alone])["attack_auc"] is None
    unscored = changed(laplace, attacks={"attacks": {"shortest_distance": {"auc": None}}})
    assert hero(unscored, [unscored]) == hero(alone, [alone])
    assert [bar["text"] for bar in hero(alone, [alone])["attack"]] == ["1.000 in theory", "at most 0.881"]
    assert claims(seeded, [seeded])["ceiling"] is None  # whoever has the seed is not limited
    job = {**laplace["job"], "training": {**laplace["job"]["training"], "exchange": "labels"}}
    assert "the model is the feature party’s" in notes(changed(laplace, test=None, job=job), [])
    assert "its test records are all of one class" in notes(changed(laplace, test=None, test_records=4), [])
    assert "no test records" in notes(changed(laplace, test=None, test_records=0), [])
    sharp = changed(laplace, {"ceiling": 0.51})
    assert "it limits the average, not a sample" in notes(sharp, [sharp])


def test_two_runs_of_one_epsilon_have_one_limit_however_sharp_the_attack(views: list[RunView]) -> None:
    found = (views[1]["attacks"] or {})["attacks"]
    sharper = {"attacks": {**found, "shortest_distance": {**found["shortest_distance"], "auc": 0.99}}}
    one, other = (hero(view, [view])["attack"][-1] for view in (views[1], changed(views[1], attacks=sharper)))
    assert one["ceiling"] == other["ceiling"] and one["value"] != other["value"]


def test_a_bound_is_rounded_up(views: list[RunView]) -> None:
    for ceiling, shown in ((0.7310001, "0.732"), (0.731, "0.731"), (0.5, "0.500"), (0.99999, "1.000")):
        view = changed(views[1], {"ceiling": ceiling}, attacks=None)
        assert hero(view, [view])["attack"][-1]["text"] == f"at most {shown}"


def test_the_run_shown_first_is_the_one_that_the_text_praises(views: list[RunView]) -> None:
    best = praised(views)
    assert best is not None and views[first_shown(views)] is best
    assert f"The most accurate of them, {best['name']}," in lead(views)
    assert first_shown([views[0], views[3], views[4]]) == 2  # nothing to praise: the first that promises something
    assert first_shown([views[0]]) == 0
    elsewhere = changed(
        views[1], name="elsewhere", data="other", data_group="x", test={**(views[1]["test"] or {}), "test_auc": 0.99}
    )
    assert praised([*views, elsewhere]) is best  # AUCs on other data do not compare
    assert f"The most accurate of them on {best['data']}, {best['name']}," in lead([*views, elsewhere])
