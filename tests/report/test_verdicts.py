"""Which run a page opens with, and what a run comes to: decided by intervals, not by the largest number."""

from dataclasses import replace
from typing import Any

import pytest

from tpsl.report.run_view import Interval, RunView
from tpsl.report.verdicts import (
    baseline,
    cost,
    first_shown,
    lead,
    recommended,
    share_kept,
    verdict,
)


def changed(view: RunView, promise: dict[str, Any] | None = None, **other: Any) -> RunView:
    return replace(view, **other, promise=replace(view.promise, **(promise or {})))


def run_of(view: RunView, epsilon: float | None, auc: float, half: float = 0.01, **other: Any) -> RunView:
    """A finished run with this ε, in all and of its own, and this test AUC."""
    text = "∞" if epsilon is None else f"{epsilon:g}"
    promise = {"epsilon": epsilon, "total_epsilon": epsilon, "epsilon_text": text, "total_epsilon_text": text}
    promise |= {"private": epsilon is not None}
    return changed(view, promise, name=f"eps-{text}", auc=Interval(auc, auc - half, auc + half), **other)


SWEEP = ((0.5, 0.687), (1.0, 0.694), (2.0, 0.694), (4.0, 0.696))


@pytest.mark.parametrize(
    ("half", "opened"),
    [(0.017, "eps-0.5"), (0.005, "eps-1"), (0.001, "eps-4"), (0.25, "eps-0.5")],
)
def test_a_page_opens_with_the_smallest_epsilon_whose_interval_holds_the_best(
    views: list[RunView], half: float, opened: str
) -> None:
    sweep = [run_of(views[1], epsilon, auc, half) for epsilon, auc in SWEEP]
    best = recommended(sweep)
    assert best is not None and best.name == opened
    assert sweep[first_shown(sweep)] is best
    assert f" is that of {opened}, which promises ε = " in lead(sweep)
    backwards = [*reversed(sweep), run_of(views[0], None, 0.71)]
    assert backwards[first_shown(backwards)].name == opened  # whatever the order, and never one without noise


def test_of_one_total_the_smaller_release_comes_first(views: list[RunView]) -> None:
    """Runs of one vault share a total; the same release twice is decided by the AUC."""
    large, small, smaller = (
        changed(run_of(views[1], epsilon, auc, 0.02), {"total_epsilon": 7.0})
        for epsilon, auc in ((4.0, 0.7), (2.0, 0.69), (2.0, 0.695))
    )
    assert recommended([large, small, smaller]) is smaller


def test_a_run_that_learned_nothing_is_not_recommended_beside_one_that_did(views: list[RunView]) -> None:
    useless, useful = run_of(views[1], 0.1, 0.52, 0.07), run_of(views[1], 1.0, 0.57, 0.06)
    assert recommended([useless, useful]) is useful
    assert recommended([useless]) is useless
    assert verdict(useful, [useless, useful]).code == "no comparison"


def test_only_private_runs_on_the_same_data_are_compared(views: list[RunView]) -> None:
    first = run_of(views[1], 1.0, 0.6)
    elsewhere = run_of(views[1], 0.5, 0.99, data="other", data_group="other")
    loose = changed(run_of(views[1], 0.2, 0.6), {"large_delta": True})
    assert recommended([first, elsewhere, loose]) is first
    second = run_of(views[1], 2.0, 0.7)
    assert f"is that of {second.name}, " in lead([first, second, elsewhere, loose])
    assert first_shown([views[0], views[3], views[4]]) == 2  # none was tested: the first that promises something
    assert first_shown([views[0]]) == 0
    assert recommended([views[0], views[3]]) is None


@pytest.mark.parametrize(
    ("of", "beside", "code", "parts"),
    [
        ((1.0, 0.51, 0.10), (None, 0.80, 0.01), "guessing", ["no better than guessing", "0.410–0.610"]),
        ((1.0, 0.51, 0.01), (None, 0.80, 0.01), "guessing", ["reaches 0.5"]),
        ((1.0, 0.52, 0.01), (None, 0.80, 0.01), "costs", ["0.280 AUC", "7\u00a0% of the AUC above chance"]),
        ((1.0, 0.75, 0.01), (None, 0.80, 0.01), "costs", ["0.050 AUC", "83\u00a0% of the AUC above chance"]),
        ((1.0, 0.795, 0.01), (None, 0.80, 0.01), "costs nothing", []),
        ((1.0, 0.81, 0.001), (None, 0.80, 0.001), "costs nothing", []),
        ((4.0, 0.70, 0.01), (0.5, 0.695, 0.01), "smaller epsilon", ["ε = 0.5 would do as well", "eps-0.5", "0.700"]),
        ((4.0, 0.70, 0.01), (0.5, 0.68, 0.01), "no comparison", ["0.700"]),
        ((0.5, 0.70, 0.01), (4.0, 0.70, 0.01), "no comparison", []),
        ((None, 0.80, 0.01), (1.0, 0.70, 0.01), "not private", ["0.800"]),
    ],
)
def test_a_verdict(
    views: list[RunView],
    of: tuple[float | None, float, float],
    beside: tuple[float | None, float, float],
    code: str,
    parts: list[str],
) -> None:
    view, other = run_of(views[1], *of), run_of(views[1], *beside)
    found = verdict(view, [other, view])
    assert found.code == code and all(part in found.text for part in parts), found


def test_a_run_without_a_test_has_a_verdict_too(views: list[RunView]) -> None:
    laplace = views[1]
    assert verdict(views[4], views).code == "unfinished"
    exchange = {**laplace.job, "training": {**laplace.job["training"], "exchange": "labels"}}
    for other, why in (
        ({"job": exchange}, "the feature party has the model"),
        ({"test_records": 4}, "tpsl label evaluate RUN"),
        ({"test_records": 4, "scores": {"log loss": 0.1}}, "all test records are of one class"),
        ({"test_records": 0}, "there are no test records"),
        ({"local_head_words": "There is one."}, "only the local head was trained"),
    ):
        found = verdict(changed(laplace, **{"auc": None, "scores": None, **other}), views)
        assert found.code == "untested" and why in found.text


def test_a_difference_has_the_interval_of_both(views: list[RunView]) -> None:
    lost = Interval(0.8, 0.77, 0.83).less(Interval(0.7, 0.66, 0.74))
    assert lost == pytest.approx((0.1, 0.05, 0.15))
    plain, private = run_of(views[0], None, 0.8, 0.03), run_of(views[1], 1.0, 0.7, 0.04)
    assert cost(private, [plain, private]) == pytest.approx((0.1, 0.05, 0.15))
    assert share_kept(private, [plain, private]) == pytest.approx(2 / 3)
    assert cost(plain, [plain, private]) is None and cost(private, [private]) is None
    assert share_kept(private, [run_of(views[0], None, 0.5), private]) is None


def test_the_baseline_is_the_run_without_noise_on_the_same_data(views: list[RunView]) -> None:
    assert baseline(views[1], views) is views[0]
    assert baseline(views[1], views[1:]) is None and baseline(views[0], views) is None
    elsewhere = replace(views[1], data_group="other data")
    assert baseline(elsewhere, [*views, elsewhere]) is None


def test_the_strongest_attack_is_the_largest_auc_that_uses_the_run(views: list[RunView]) -> None:
    assert views[1].attacks
    areas = {"norm": 0.7, "no_transcript": 0.9}
    made = tuple(replace(one, auc=Interval.at(areas.get(one.name, 0.6))) for one in views[1].attacks.made)
    view = replace(views[1], attacks=replace(views[1].attacks, made=made))
    assert view.attack and view.attack_without_run
    assert (view.attack.name, view.attack.auc.value, view.attack.kind) == ("norm", 0.7, "noisy label and features")
    assert view.attack_without_run.name == "no_transcript"
    assert view.bound == next(one.bound for one in views[1].attacks.made if one.name == "norm")


def test_the_lead_says_how_many_are_private_and_which_to_take(views: list[RunView]) -> None:
    plain, laplace, discrete, seeded, _ = views
    assert laplace.auc
    assert lead([plain, laplace, discrete]).startswith("2 of these 3 runs are private. The smallest ε whose interval ")
    one = lead([laplace, plain])
    assert one.startswith("1 of these 2 runs is private. The smallest ε") and "promises ε = 2 and" in one
    assert one.endswith(f"has a test AUC of {laplace.auc.value:.4f}.")
    assert lead([plain, seeded]) == "None of these 2 runs is private."
