"""Charts: what they show are the numbers of the runs, wherever they are drawn."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tpsl.report import charts
from tpsl.report.chart import Axis, Chart, Scale, Series
from tpsl.report.run_reading import read_feature_run, read_run
from tpsl.report.run_view import Attacks, RunView
from tpsl.report.svg import svg
from tpsl.run.job import make_job
from tpsl.run.one_process import train
from tpsl.run.run_folder import RunFolder
from tpsl.run.stages.prepare import load_wide


def series_of(chart: Chart | None) -> dict[str, Series]:
    assert chart is not None
    return {one.name: one for one in chart.series}


def test_points_stand_where_the_numbers_are(runs: Path, views: list[RunView]) -> None:
    attacks = json.loads((runs / "laplace" / "label" / "attacks.json").read_text())["attacks"]
    curve = series_of(charts.roc(views[1]))[f"likelihood ({attacks['likelihood']['auc']:.3f})"]
    found = attacks["likelihood"]["roc"]
    assert (list(curve.x), list(curve.y)) == ([0, *found["fpr"]], [0, *found["tpr"]])
    drawn = series_of(charts.attack_areas(views[1]))
    assert list(drawn["measured, 95 % interval"].x) == [attack["auc"] for attack in attacks.values()]
    # Each attack stands beside the bound of its own kind.
    bounds = drawn["bound of its kind of attacker"]
    assert list(bounds.x) == [attack["ceiling"] for attack in attacks.values()] and len(set(bounds.x)) == 3
    assert list(bounds.high) == [attack["ceiling_high"] for attack in attacks.values()]
    lines = series_of(charts.curves(views, "test_auc"))
    for view in views[:4]:
        assert list(lines[view.name].y) == [entry["test_auc"] for entry in view.curves]


def test_no_roc_curve_against_the_bound_is_of_an_attacker_whom_it_does_not_bind(views: list[RunView]) -> None:
    assert views[1].attacks
    drawn = {name.split(" (")[0] for name in series_of(charts.roc(views[1]))}
    others = {one.name.replace("_", " ") for one in views[1].attacks.made if one.kind != "noisy label"}
    assert others and not drawn & others


def test_an_attack_that_was_not_made_is_not_drawn(runs: Path, views: list[RunView]) -> None:
    assert charts.attack_areas(views[3]) is None
    attacks = json.loads((runs / "laplace" / "label" / "attacks.json").read_text())["attacks"]
    without = {name: {**one, "auc": None} if name == "norm" else one for name, one in attacks.items()}
    chart = charts.attack_areas(replace(views[1], attacks=Attacks.of({"attacks": without}, seeded=False)))
    assert chart is not None and "norm" not in chart.y.rows and len(chart.y.rows) == len(attacks) - 1


def test_seeded_noise_has_no_bound(runs: Path, views: list[RunView]) -> None:
    content = json.loads((runs / "laplace" / "label" / "attacks.json").read_text())
    seeded = replace(views[1], attacks=Attacks.of(content, seeded=True))
    bounds = series_of(charts.attack_areas(seeded))["bound of its kind of attacker"]
    assert set(bounds.x) == {None}
    assert svg(charts.attack_areas(seeded) or pytest.fail("no chart")).count("<svg") == 1


def test_curves_that_differ_by_rounding_alone_are_drawn(views: list[RunView]) -> None:
    """Two runs of one ranking: the same AUC, summed up in another order."""
    pair: list[RunView] = [
        replace(view, curves=[{"epoch": epoch, "test_auc": area} for epoch in (1, 2)])
        for view, area in zip(views[1:3], (0.2569444444444445, 0.2569444444444444), strict=True)
    ]
    chart = charts.curves(pair, "test_auc")
    assert chart is not None
    scale = Scale.over(chart.y, [value for one in chart.series for value in one.y], 100, 0)
    assert scale.low < 0.25 < 0.26 < scale.high


def test_a_drawing_has_every_point_inside_and_no_text_that_is_markup(views: list[RunView]) -> None:
    for chart in (charts.roc(views[1]), charts.attack_areas(views[1]),
                  charts.trade_off(views, "epsilon"), charts.trade_off(views, "attack"),
                  charts.curves(views, "test_auc")):  # fmt: skip
        assert chart is not None
        drawn = svg(replace(chart, title="<b>&"), prefix="a-")
        width, height = map(float, re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn)[0])
        for x, y in re.findall(r"M([-\d.e]+) ([-\d.e]+)", drawn):
            assert 0 <= float(x) <= width and 0 <= float(y) <= height
        assert "&lt;b&gt;&amp;" in drawn and "<b>" not in drawn and "<script" not in drawn
        assert f'id="a-{chart.name}-title"' in drawn


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.7312, 0.7313), (-3.0, 4000.0), (1.0, 4.0)])
def test_an_axis_has_a_few_round_ticks(low: float, high: float) -> None:
    scale = Scale.over(Axis(), [low, high], 0, 100)
    ticks = scale.ticks()
    assert 3 <= len(ticks) <= 8
    assert all(scale.low <= value <= scale.high for value, _ in ticks)
    assert len({text for _, text in ticks}) == len(ticks)


def test_a_logarithmic_axis_puts_equal_factors_at_equal_distances() -> None:
    scale = Scale.over(Axis(logarithmic=True), [0.5, 8.0], 0, 100)
    assert scale(2.0) - scale(1.0) == pytest.approx(scale(4.0) - scale(2.0))
    assert [value for value, _ in scale.ticks()] == pytest.approx([0.5, 1, 2, 5, 10])


def test_curves_on_test_records_are_those_of_predictions_and_labels(runs: Path, views: list[RunView]) -> None:
    view, run = views[1], RunFolder(runs / "laplace")
    result, curves = run.finished_result(), view.test_curves
    assert curves is not None and sum(curves.records_by_class) == result.test_records
    predicted = run.predictions(result.kept_epoch)["test"]
    drawn = series_of(charts.calibration(view))["this run, in bins of equally many records"]
    counts, means, rates = (np.array(column) for column in zip(*curves.calibration, strict=True))
    assert (list(drawn.x), list(drawn.y)) == (means.tolist(), rates.tolist())
    assert counts @ means == pytest.approx(predicted.sum(), rel=1e-6)
    assert counts @ rates == pytest.approx(curves.records_by_class[1])
    recall, precision = zip(*curves.precision_recall, strict=True)
    share = curves.records_by_class[1] / result.test_records
    assert (recall[0], precision[0]) == (1.0, share) and list(recall) == sorted(recall, reverse=True)
    chart = charts.precision_recall(view)
    assert chart is not None and chart.rules[0].value == share
    assert charts.precision_recall(replace(view, test_curves=None)) is charts.importance(view) is None


def test_what_columns_matter_is_what_the_additive_part_says(tmp_path: Path) -> None:
    """Also to the feature party, since it was fitted on noisy labels: its own page has it, and nothing else new."""
    content = {
        "data": {"source": "flights", "rows": 600},
        "privacy": {"epsilon": 5.0},
        "model": {"wide": True, "embedding_dim": 4, "bottom": [8]},
    }
    train(make_job({**content, "training": {"epochs": 1, "validation": 0.2}}, {}, "test"), tmp_path / "run")
    own = read_feature_run(tmp_path / "run", "feature")
    assert own.test_curves is None and len(own.importance) > 10
    assert read_run(tmp_path / "run").importance == own.importance
    numbers, fields = load_wide(tmp_path / "run" / "feature").spreads()
    assert sorted((*numbers, *fields.values()), reverse=True) == [value for _, value in own.importance]
    assert charts.importance(own) is not None
