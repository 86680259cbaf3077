from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest

from tpsl.data.features import Features
from tpsl.run.job import Job, make_job
from tpsl.select.parallel import load_once
from tpsl.select.space import configuration
from tpsl_research import frontier as module
from tpsl_research import frontier_cells
from tpsl_research.frontier import frontier
from tpsl_research.frontier_cells import (
    AUTO,
    CEILING,
    HANDED_OVER,
    JOINED_LOGISTIC,
    JOINED_TREES,
    METHODS,
    NETWORK,
    STATISTIC,
    TREES,
    Cell,
    Row,
    base_job,
    batch_size_for,
    cells,
)
from tpsl_research.frontier_ensemble import scores_beside
from tpsl_research.frontier_figure import frontier_figure
from tpsl_research.frontier_report import (
    HEADLINE,
    HEADLINE_LOCAL,
    Series,
    auc,
    loss,
    loss_ratio,
    markdown,
    summary,
    table,
    write_tables,
)
from tpsl_research.frontier_runs import all_features, as_one_result
from tpsl_research.intervals import mean_estimate, ratio_estimate
from tpsl_research.paper import DISCRETE, GAUSSIAN, LAPLACE, NON_PRIVATE
from tpsl_research.sweep import gaussian_sigma_like_laplace

PRETRAIN = {"method": "masked", "epochs": 1}


@pytest.fixture(scope="module")
def base() -> Job:
    content: dict[str, Any] = {
        "data": {"source": "synthetic", "rows": 1000, "numeric_fields": 3, "categorical_fields": 2, "signal": 3.0},
        "model": {"embedding_dim": 4, "bottom": [8], "top": [8]},
        "training": {"batch_size": 100, "epochs": 1, "validation": 0.1, "checkpoint_every": 1 << 30},
    }
    return make_job(content, {}, "test")


@pytest.fixture(scope="module")
def small_spaces() -> Iterator[None]:
    """Spaces of two configurations, one epoch of pre-training, a small local head."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tpsl.heads.local_training.WIDTHS", (16,))
        patch.setattr(frontier_cells, "BASELINE_SPACE", (configuration(1e-2), configuration(3e-2)))
        wide = {**configuration(1e-2), "model": {"wide": True}}
        patch.setattr("tpsl.select.space.RECOMMENDED_SPACE", (configuration(1e-2), wide))
        patch.setattr(frontier_cells, "_MASKED", PRETRAIN)
        yield


FOUR = (LAPLACE, DISCRETE, GAUSSIAN, NETWORK)


def wanted(**changes: Any) -> list[Cell]:
    """One seed, one ε, both parts, networks on noisy labels."""
    chosen = {"seeds": [0], "epsilons": [2.0], "parts": ["private", "local"], "algorithms": FOUR, **changes}
    return cells(**chosen)


@pytest.fixture(scope="module")
def computed(
    base: Job, small_spaces: None, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Row], list[str]]:
    """One seed, one ε, both parts: the folder, the rows, and what progress said."""
    out, notes = tmp_path_factory.mktemp("frontier"), list[str]()
    *_, rows = frontier(base, out, wanted(), progress=lambda done, total, note: notes.append(f"{done}/{total} {note}"))
    return out, rows, notes


def test_each_cell_leaves_a_row_and_no_run(computed: tuple[Path, list[Row], list[str]]) -> None:
    out, rows, notes = computed
    assert [(row["part"], row["algorithm"], row["epsilon"]) for row in rows] == [
        ("private", NON_PRIVATE, None),
        ("private", NETWORK, None),
        *(("private", name, 2.0) for name in (LAPLACE, DISCRETE, GAUSSIAN, NETWORK)),
        ("local", NETWORK, 0.0),
        *(("local", name, 2.0) for name in (LAPLACE, DISCRETE, GAUSSIAN, NETWORK)),
    ]
    assert not any(row["private"] for row in rows)
    assert {path.name for path in out.iterdir()} == {"cells", "pretrained"}
    assert notes[0] == "0/11 "
    assert notes[1].startswith("0/11 pre-training "), "what others wait for comes first"
    assert notes[-1] == f"11/11 {NETWORK}, local head, ε = 2, seed 0"
    assert len(notes) == 1 + 1 + 11, "one pre-training for all that share it"


def test_a_tuned_cell_reports_all_rules(computed: tuple[Path, list[Row], list[str]]) -> None:
    _, rows, _ = computed
    for row in rows[:6]:
        candidates, results = row["candidates"], row["results"]
        assert len(candidates) == 2
        chosen = max(candidates, key=lambda candidate: candidate["validation_log_likelihood"])
        assert results["best"]["test_auc"] == chosen["test_auc"]
        assert results["oracle"]["test_auc"] == max(candidate["test_auc"] for candidate in candidates)
        assert 0 < results["ensemble"]["test_auc"] < 1
    assert rows[0]["exact_epsilon"] is rows[1]["exact_epsilon"] is None
    assert rows[2]["exact_epsilon"] == pytest.approx(2.0)
    assert rows[5]["mechanism"] == "discrete", "what auto takes for two classes"


def test_a_local_cell_reports_the_local_head(computed: tuple[Path, list[Row], list[str]]) -> None:
    _, rows, _ = computed
    nothing_sent, laplace = rows[6], rows[7]
    assert nothing_sent["private_head_auc"] is None
    assert nothing_sent["exact_epsilon"] == 0
    assert 0 < nothing_sent["results"]["local"]["test_auc"] < 1
    assert laplace["private_head_auc"] != laplace["results"]["local"]["test_auc"]


def test_what_has_a_row_is_not_computed_again(
    computed: tuple[Path, list[Row], list[str]], base: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, rows, _ = computed
    monkeypatch.setattr(module, "run_cell", None)
    assert list(frontier(base, out, wanted())) == [rows]
    assert list(frontier(base, out, wanted(parts=["local"]))) == [rows[6:]]


def test_a_cell_that_was_lost_comes_out_the_same(computed: tuple[Path, list[Row], list[str]], base: Job) -> None:
    out, rows, _ = computed
    (out / "cells" / f"{Cell('private', NETWORK, 2.0, 0).key(base)}.json").unlink()
    assert len(next(iter(frontier(base, out, wanted())))) == 10
    *_, again = frontier(base, out, wanted())
    for old, new in zip(rows, again, strict=True):
        assert {**old, "seconds": 0, "cpu_seconds": 0} == {**new, "seconds": 0, "cpu_seconds": 0}


def test_rows_of_another_job_are_not_taken(computed: tuple[Path, list[Row], list[str]], base: Job) -> None:
    out, _, _ = computed
    other = make_job(base.model_dump(mode="json", exclude_none=True), {"training": {"epochs": 2}}, "test")
    assert next(iter(frontier(other, out, wanted()))) == []
    assert next(iter(frontier(base, out, wanted(seeds=[1])))) == []


def test_cells_differ_in_what_they_say_and_in_nothing_else(base: Job, small_spaces: None) -> None:
    laplace, gaussian = Cell("private", LAPLACE, 0.5, 3).job(base), Cell("private", GAUSSIAN, 0.5, 3).job(base)
    ours, local = Cell("private", NETWORK, 0.5, 3).job(base), Cell("local", NETWORK, 0.5, 3).job(base)
    assert (laplace.privacy.noise_seed, laplace.training.seed, laplace.privacy.estimator) == (3, 3, "linear")
    assert gaussian.privacy.sigma == gaussian_sigma_like_laplace(0.5)
    assert gaussian.training == laplace.training == ours.training
    assert (ours.privacy.mechanism, ours.privacy.estimator) == ("auto", "posterior")
    assert (local.training.head, local.training.patience, local.training.validation) == ("local", 1, 0.1)
    assert local.training.pretrain is not None
    assert (ours.model.wide, local.model.wide) == (False, True), "in the part `private` the space says so"
    assert Cell("local", LAPLACE, 0.5, 3).job(base).training.pretrain is None
    assert not Cell("local", NETWORK, 0.0, 3).job(base).trains
    everything = cells(range(5), (0.1, 0.5, 1.0, 2.0), ("private", "local"), FOUR)
    assert len({cell.key(base) for cell in everything}) == len({cell.name for cell in everything}) == 5 * (18 + 17)
    assert {cell.seed for cell in everything[:35]} == {0}


def test_all_methods_have_cells_and_one_seed_shows_the_hand_over() -> None:
    everything = cells(range(3), (0.1, 1.0), ("private",))
    assert {cell.algorithm for cell in everything} == {NON_PRIVATE, *METHODS.values()}
    assert {cell.seed for cell in everything if cell.algorithm == HANDED_OVER} == {0}
    assert {cell.seed for cell in everything if cell.algorithm == AUTO} == {0, 1, 2}


def test_a_cell_that_fails_is_a_row_with_its_reason_and_is_tried_again(
    base: Job, small_spaces: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = wanted(parts=["private"], algorithms=(LAPLACE,))
    compute = module.compute

    def fails(cell: Cell, *rest: Any) -> Row:
        if cell.algorithm == LAPLACE:
            raise MemoryError("out of\nmemory")
        return compute(cell, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(module, "compute", fails)
        *_, rows = frontier(base, tmp_path, chosen)
    assert [row.get("failed") for row in rows] == [None, None, "out of memory"]
    assert "- Laplace (ε = 2, 1 seed): out of memory" in markdown(rows, "synthetic")
    (*_, again) = frontier(base, tmp_path, chosen)
    assert "failed" not in again[2] and again[2]["results"]
    assert again[:2] == rows[:2]


def test_auto_takes_over_the_row_of_the_statistic(base: Job, small_spaces: None, tmp_path: Path) -> None:
    """At ε = 0.5 a noisy label is worth a twentieth of a clean one."""
    chosen = wanted(epsilons=[0.5], parts=["private"], algorithms=(STATISTIC, AUTO))
    *_, rows = frontier(base, tmp_path, chosen)
    statistic, auto = rows[2:]
    assert auto["results"] == statistic["results"] and auto["seconds"] < statistic["seconds"], "not computed twice"
    assert (statistic["method"], auto["method"]) == ("statistic", "statistic")
    assert 0 < statistic["results"]["run"]["test_auc"] < 1
    assert statistic["exact_epsilon"] <= 0.5 and statistic["delta"] > 0
    assert "`auto` chose: statistic at ε = 0.5" in markdown(rows, "synthetic")


def test_auto_is_the_ensemble_of_networks_and_trees(base: Job, small_spaces: None, tmp_path: Path) -> None:
    """At ε = 2 noisy labels are worth enough; what `auto` combines, and nobody asked for, has a row of its own then."""
    *_, rows = frontier(base, tmp_path, wanted(parts=["private"], algorithms=(NETWORK, AUTO)))
    network, auto = rows[2:]
    assert auto["method"] == "network and trees" and auto["exact_epsilon"] == network["exact_epsilon"]
    *_, (*_, trees, again) = frontier(base, tmp_path, wanted(parts=["private"], algorithms=(TREES, AUTO)))
    assert again == auto
    found, alone = auto["results"]["run"], trees["results"]["run"]
    weight = float(found["configuration"].split()[0])
    assert 0 < weight < 1 and found["configuration"] == f"{weight:.2f} network, {1 - weight:.2f} trees"
    judged = [one["validation_log_likelihood"] for one in (*network["candidates"], alone)]
    assert found["validation_log_likelihood"] > sum(judged) / len(judged)
    assert found["test_auc"] > min(alone["test_auc"], network["results"]["ensemble"]["test_auc"])
    assert "`auto` chose: network and trees at ε = 2" in markdown(rows, "synthetic")
    scores = scores_beside(tmp_path / "cells" / f"{Cell('private', NETWORK, 2.0, 0).key(base)}.json")
    scores.unlink()
    (tmp_path / "cells" / f"{Cell('private', AUTO, 2.0, 0).key(base)}.json").unlink()
    *_, (*_, anew) = frontier(base, tmp_path, wanted(parts=["private"], algorithms=(AUTO,)))
    assert anew["results"] == auto["results"] and scores.exists(), "a network without scores is trained again"


def test_a_network_on_as_many_clean_labels(base: Job, small_spaces: None, tmp_path: Path) -> None:
    *_, rows = frontier(base, tmp_path, wanted(parts=["private"], algorithms=(CEILING,)))
    (ceiling,) = rows[2:]
    assert 100 <= ceiling["clean_labels"] < 800
    assert 0 < ceiling["results"]["ensemble"]["test_auc"] < 1
    assert f"worth this many clean ones: {ceiling['clean_labels']} at ε = 2" in markdown(rows, "synthetic")


def test_labels_handed_over_give_the_same_network_and_trees(base: Job, small_spaces: None, tmp_path: Path) -> None:
    chosen = (NETWORK, HANDED_OVER, TREES, JOINED_LOGISTIC, JOINED_TREES)
    *_, rows = frontier(base, tmp_path, wanted(parts=["private"], algorithms=chosen))
    network, handed_over, *learned = rows[2:]
    assert as_one_result(network)["results"] == {"run": network["results"]["ensemble"]}
    assert handed_over["results"] == network["results"], "to the last bit"
    for row in learned:
        assert 0.6 < row["results"]["run"]["test_auc"] < 1
        assert row["exact_epsilon"] == network["exact_epsilon"]
    text = markdown(rows, "synthetic")
    assert "give the network of split training, bit for bit: 1 of 1 do" in text
    assert "## Without a result" not in text


def test_features_of_all_parties_are_joined() -> None:
    data = load_once(make_job({"data": {"source": "flights", "rows": 200, "layout": "natural"}}, {}, "test"))
    (feature,), label = data.feature_parties.values(), data.label_features
    assert isinstance(feature, Features) and isinstance(label, Features)
    joined = all_features(data)
    assert joined.numeric.shape[1] == len(feature.numeric_fields) + len(label.numeric_fields)
    assert joined.embedding_rows == feature.embedding_rows + label.embedding_rows
    assert np.array_equal(joined.categorical[:, : len(feature.categorical_fields)], feature.categorical)
    assert joined.categorical[:, len(feature.categorical_fields) :].min() >= feature.embedding_rows


def test_batches_are_smaller_on_small_data_and_the_same_for_all(base: Job, small_spaces: None) -> None:
    assert [batch_size_for(n) for n in (10, 24_000, 50_000, 110_000, 262_000, 10**7)] == [
        64,
        128,
        512,
        1024,
        1024,
        1024,
    ]
    job = make_job(base.model_dump(mode="json", exclude_none=True), {"model": {"members": 4, "wide": True}}, "test")
    taken = base_job(job, {"epochs": 1})
    assert (taken.model.members, taken.model.wide, taken.model.bottom) == (1, False, (8,))
    assert (taken.training.batch_size, taken.training.epochs, taken.training.validation) == (64, 1, 0.1)
    assert {cell.job(taken).training.batch_size for cell in wanted()} == {64}


# Made-up rows: what the tables say can be computed by hand.

AUCS = {
    ("private", NON_PRIVATE, None, "best"): [0.780, 0.784, 0.776],
    ("private", LAPLACE, 1.0, "best"): [0.730, 0.742, 0.734],
    ("private", LAPLACE, 1.0, "ensemble"): [0.731, 0.741, 0.733],
    ("private", LAPLACE, 1.0, "oracle"): [0.740, 0.744, 0.738],
    ("private", NETWORK, 1.0, "best"): [0.752, 0.760, 0.750],
    ("private", NETWORK, 1.0, "ensemble"): [0.750, 0.761, 0.751],
    ("private", AUTO, 1.0, "run"): [0.756, 0.764, 0.753],
    ("local", NETWORK, 1.0, "local"): [0.765, 0.769, 0.760],
    ("local", NETWORK, 0.0, "local"): [0.700, 0.701, 0.699],
}


@pytest.fixture
def rows() -> list[Row]:
    by_cell: dict[tuple[Any, ...], Row] = {}
    for (part, algorithm, epsilon, rule), values in AUCS.items():
        for seed, value in enumerate(values):
            row = by_cell.setdefault(
                (part, algorithm, epsilon, seed),
                {"part": part, "algorithm": algorithm, "epsilon": epsilon, "seed": seed, "private": False},
            )
            row.setdefault("results", {})[rule] = {"test_auc": value, "test_log_loss": 0.5}
            row["candidates"] = [{"test_auc": value}]
    return list(by_cell.values())


def test_auc_loss_and_ratio_are_those_of_the_rows(rows: list[Row]) -> None:
    plain = AUCS["private", NON_PRIVATE, None, "best"]
    ours = [p - v for p, v in zip(plain, AUCS["private", AUTO, 1.0, "run"], strict=True)]
    local = [p - v for p, v in zip(plain, AUCS["local", NETWORK, 1.0, "local"], strict=True)]
    theirs = [p - v for p, v in zip(plain, AUCS["private", LAPLACE, 1.0, "oracle"], strict=True)]
    assert auc(rows, HEADLINE, 1.0) == mean_estimate(AUCS["private", AUTO, 1.0, "run"])
    assert loss(rows, HEADLINE, 1.0) == mean_estimate(ours)
    assert loss_ratio(rows, HEADLINE, Series(LAPLACE, "oracle"), 1.0) == ratio_estimate(ours, theirs)
    found = loss_ratio(rows, HEADLINE_LOCAL, Series(LAPLACE, "oracle"), 1.0)
    assert found is not None
    assert found.value == pytest.approx(mean(local) / mean(theirs))
    assert auc(rows, HEADLINE, 2.0) is None


def test_seeds_that_are_missing_on_one_side_are_left_out(rows: list[Row]) -> None:
    kept = [row for row in rows if not (row["algorithm"] == LAPLACE and row["seed"] == 1)]
    found = loss_ratio(kept, HEADLINE, Series(LAPLACE, "best"), 1.0)
    assert found is not None
    assert found.value == pytest.approx((0.780 - 0.756 + 0.776 - 0.753) / (0.780 - 0.730 + 0.776 - 0.734))
    diverged = [{**row, "results": {}} if row["algorithm"] == LAPLACE else row for row in rows]
    assert loss_ratio(diverged, HEADLINE, Series(LAPLACE, "best"), 1.0) is None


def test_tables_show_the_numbers(rows: list[Row], tmp_path: Path) -> None:
    text = markdown(rows, "flights")
    estimate = mean_estimate(AUCS["private", AUTO, 1.0, "run"])
    assert f"| auto | {estimate.value:.4f} ± {estimate.margin:.4f} |" in text
    assert f"| {NETWORK}, local head | 0.7000 ± 0.0025 | 0.7647 ±" in text
    assert "not private" in text
    assert "not a selection rule" in text
    ratio = loss_ratio(rows, HEADLINE, Series(LAPLACE, "best"), 1.0)
    assert ratio is not None
    assert f"| {ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] |" in text
    lines = list(csv.DictReader(io.StringIO(table(rows, "flights"))))
    assert len(lines) == sum(len(values) for values in AUCS.values())
    assert {line["rule"] for line in lines if line["algorithm"] == NETWORK} == {"best", "ensemble", "local"}
    content = summary(rows, "flights")
    assert all("candidates" not in cell for cell in content["cells"])
    (headline,) = [
        line for line in content["frontier"] if (line["algorithm"], line["rule"]) == (HEADLINE.algorithm, HEADLINE.rule)
    ]
    assert headline["loss"]["value"] == pytest.approx(mean([0.024, 0.020, 0.023]))
    written = write_tables(rows, "flights", tmp_path)
    assert json.loads(written["json"].read_text()) == content
    assert written["md"].read_text() == text


def test_tables_and_figure_of_what_is_there_so_far(rows: list[Row], tmp_path: Path) -> None:
    assert "–" in markdown([], "flights")
    one = [row for row in rows if row["seed"] == 0 and row["part"] == "private"]
    assert "0.7560 |" in markdown(one, "flights")
    estimate = auc(one, HEADLINE, 1.0)
    assert estimate is not None
    assert math.isnan(estimate.margin)
    for some in (one, rows):
        frontier_figure(some, "flights", [tmp_path / "figure.png", tmp_path / "figure.svg"])
        assert (tmp_path / "figure.png").stat().st_size > 5000
