"""What noisy labels are worth: `method: auto` gives the same answer at every party; a class that drowns is told."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpsl import metrics
from tpsl.data.dataset import Dataset
from tpsl.mechanisms import best_for, identity, randomized_response
from tpsl.mechanisms.effective_labels import effective_labels, effective_labels_of_class
from tpsl.run.job import Job, make_job
from tpsl.run.job_sections import PrivacyConfig
from tpsl.run.method import ENOUGH_OF_A_CLASS, best_method, rare_label_warning, resolve_method
from tpsl.run.observer import Watching
from tpsl.run.one_process import load_records, train
from tpsl.run.run_folder import RunFolder


def job(epsilon: float, **changes: Any) -> Job:
    content = {
        "data": {"source": "synthetic", "rows": 600, "numeric_fields": 2, "categorical_fields": 2},
        "privacy": {"epsilon": epsilon},
        "model": {"embedding_dim": 4, "bottom": [8], "top": [8], "wide": True, "members": 2},
        "method": "auto",
    }
    return make_job(content, changes, "test")


@pytest.mark.parametrize(
    ("epsilon", "records", "method"),
    [
        (0.1, 261_877, "statistic"),
        (0.5, 261_877, "statistic"),
        (1.0, 261_877, "network"),
        (2.0, 261_877, "network"),
        (0.7, 24_000, "statistic"),
        (1.0, 24_000, "network"),
    ],
)
def test_it_chooses_by_what_the_noisy_labels_are_worth(epsilon: float, records: int, method: str) -> None:
    asked = job(epsilon, statistic={"share_codes": True, "delta": 1e-7})
    found, why = best_method(asked, records)
    assert found.method == method
    assert why.startswith(f"method auto takes '{method}': {records:,} noisy labels at ε = {epsilon:g} are worth about ")
    if method == "statistic":
        assert found.statistic is not None
        assert (found.statistic.share_codes, found.statistic.delta) == (True, 1e-7)
        assert (found.model.wide, found.model.members) == (False, 1)
    else:
        changes = {"method": "network", "training": {"averaging": 0.995}}
        assert found == make_job({**asked.model_dump(mode="json"), "statistic": None}, changes, "test")
    assert best_method(found.model_copy(update={"method": "auto"}), records)[0].method == method


@pytest.mark.parametrize(
    ("epsilon", "records", "named", "releases"),
    [(0.5, 261_877, {}, 2), (0.5, 96_000, {}, 1), (0.1, 261_877, {}, 1), (0.5, 261_877, {"releases": 1}, 1)],
)
def test_many_records_get_a_second_statistic_unless_the_job_names_it(
    epsilon: float, records: int, named: dict[str, int], releases: int
) -> None:
    found = best_method(job(epsilon, statistic={"share_codes": True, **named}), records)[0]
    assert found.statistic is not None
    assert found.statistic.releases == releases


def test_a_network_gets_a_wide_part_and_averaged_weights_unless_the_job_names_them() -> None:
    plain = make_job({"privacy": {"epsilon": 4.0}, "method": "auto"}, {}, "test")
    found = best_method(plain, 261_877)[0]
    assert (found.method, found.model.wide, found.training.averaging) == ("network", True, 0.995)
    named = {"model": {"wide": False}, "training": {"averaging": 0.5}}
    found = best_method(make_job({"privacy": {"epsilon": 4.0}, "method": "auto", **named}, {}, "test"), 261_877)[0]
    assert (found.method, found.model.wide, found.training.averaging) == ("network", False, 0.5)
    several = make_job({"data": {"source": "synthetic", "classes": 4}, "method": "auto"}, {}, "test")
    assert not best_method(several, 10_000_000)[0].model.wide


def test_a_statistic_without_codes_is_for_the_smallest_epsilon() -> None:
    asked = [job(epsilon, statistic={"share_codes": False}) for epsilon in (0.1, 0.5)]
    assert [best_method(one, 261_877)[0].method for one in asked] == ["statistic", "network"]


@pytest.mark.parametrize(
    ("changes", "wide"),
    [
        ({"privacy": {"epsilon": 0.01}}, True),
        ({"privacy": {"mechanism": "none"}}, True),
        ({"privacy": {"mechanism": "gaussian", "sigma": 1.0, "delta": 1e-6}}, True),
        ({"privacy": {"gradients": "none"}, "training": {"head": "local"}}, False),
        ({"privacy": {"draws": 2}}, True),
        ({"training": {"exchange": "labels"}}, True),
        ({"data": {"source": "own", "parties": ["shop"]}}, False),
        ({"data": {"task": "delay5"}}, False),
        ({"model": {"cut": {"label": 4}}}, False),
    ],
)
def test_without_a_section_it_takes_a_network_whatever_the_job_says(changes: dict[str, Any], wide: bool) -> None:
    found, why = best_method(make_job({"method": "auto"}, changes, "test"), 1000)
    assert (found.method, found.model.wide, found.training.averaging) == ("network", wide, 0.995)
    assert why == "method auto takes 'network': the job has no section 'statistic'"


def test_with_many_classes_noisy_labels_are_worth_less() -> None:
    codes = {"share_codes": True}
    assert best_method(job(2.0, model={"wide": False}, statistic=codes), 261_877)[0].method == "network"
    many = job(2.0, model={"wide": False}, statistic=codes, data={"classes": 100})
    assert best_method(many, 261_877)[0].method == "statistic"


def test_the_run_keeps_the_job_as_it_was_resolved_and_goes_on_with_it(tmp_path: Path) -> None:
    said: list[str] = []
    asked = job(0.5, privacy={"noise_seed": 1}, statistic={"share_codes": False})
    first = train(asked, tmp_path / "run", watching=Watching(reason=said.append))
    assert sum(text.startswith("method auto takes 'statistic'") for text in said) == 1
    assert RunFolder(tmp_path / "run").job() == best_method(asked, 480)[0]
    assert train(asked, tmp_path / "run").as_dict() == first.as_dict()


def test_records_are_read_only_if_the_answer_depends_on_their_number() -> None:
    said: list[str] = []
    plain = make_job({}, {}, "test")
    assert resolve_method(plain, lambda: 1 // 0, said.append) == plain
    assert said == []
    assert resolve_method(make_job({"method": "auto"}, {}, "test"), lambda: 1 // 0, said.append).model.wide
    asked = job(0.5, statistic={"share_codes": False})
    assert resolve_method(asked, lambda: 480, said.append) == best_method(asked, 480)[0]
    assert [text.split(":")[0] for text in said] == ["method auto takes 'network'", "method auto takes 'statistic'"]


FRAUD = {"no": 15_900, "yes": 100}


def warning(classes: dict[str, int], **privacy: Any) -> str | None:
    return rare_label_warning(PrivacyConfig(**privacy), classes)


def test_of_two_classes_a_class_has_its_share_of_what_the_labels_are_worth() -> None:
    counts = list(FRAUD.values())
    worth = effective_labels(randomized_response(1.0), counts)
    assert worth == pytest.approx(107.2, abs=0.1)
    assert effective_labels_of_class(randomized_response(1.0), counts, 1) == pytest.approx(worth * 100 / 16_000)
    assert effective_labels_of_class(identity(2), counts, 1) == 100
    assert effective_labels_of_class(identity(2), [0, 0], 1) == 0
    assert effective_labels_of_class(randomized_response(1.0), counts, 1, draws=2) > worth * 100 / 16_000
    five = best_for(1.0, 5)[0]
    assert 0 < effective_labels_of_class(five, [900, 25, 25, 25, 25], 1) < 25


def test_the_warning_has_the_numbers_of_this_file_and_what_is_enough() -> None:
    said = warning(FRAUD, epsilon=1.0)
    assert said is not None
    assert "100 labels 'yes' drown in the noise at ε = 1, where they are worth 0.7 clean ones" in said
    assert "use ε ≥ 3, 15 times as many records or" in said
    assert warning(FRAUD, epsilon=3.0) is None
    assert warning({name: 15 * count for name, count in FRAUD.items()}, epsilon=1.0) is None
    smallest = next(e for e in (0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0) if warning(FRAUD, epsilon=e) is None)
    assert smallest == 3.0


@pytest.mark.parametrize(
    ("classes", "privacy"),
    [
        ({"no": 12_000, "yes": 4_000}, {"epsilon": 1.0}),
        ({"a": 4_000, "b": 3_000, "c": 2_000}, {"epsilon": 1.0}),
        ({"no": 9, "yes": 1}, {"mechanism": "none"}),  # few, but there is no noise
        ({"no": 10, "yes": 0}, {"epsilon": 1.0}),  # nothing to learn, which is told elsewhere
    ],
)
def test_there_is_none_where_noise_drowns_no_class(classes: dict[str, int], privacy: dict[str, Any]) -> None:
    assert warning(classes, **privacy) is None


def test_every_mechanism_and_two_draws_have_one() -> None:
    assert "100 labels 'yes' drown in the noise at ε = 1" in (warning(FRAUD, mechanism="laplace", epsilon=1.0) or "")
    many = warning({"a": 9_000, "b": 900, "c": 20}, epsilon=1.0)
    assert many is not None and "20 labels 'c' drown" in many
    two = warning(FRAUD, epsilon=0.5, draws=2)
    assert two is not None and "at ε = 1, where" in two


def fitted_auc(positives: float, records: int, epsilon: float, seed: int) -> tuple[float, float]:
    """The AUC of a logistic regression on noisy labels of 20 columns, and its test interval's lower end."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=20)
    true /= np.linalg.norm(true)
    start = math.log(positives / (1 - positives))

    def drawn(count: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.normal(size=(count, 20))
        return x, rng.random(count) < 1 / (1 + np.exp(-start - x @ true))

    x, y = drawn(records)
    flip = 1 / (1 + math.exp(epsilon))
    t, weights = y ^ (rng.random(records) < flip), np.zeros(20)
    for _ in range(10):
        share = 1 / (1 + np.exp(-start - x @ weights))
        mean, slope = flip + (1 - 2 * flip) * share, (1 - 2 * flip) * share * (1 - share)
        information = (x * (slope**2 / (mean * (1 - mean)))[:, None]).T @ x + np.eye(20)
        step = np.linalg.solve(information, x.T @ ((t - mean) * slope / (mean * (1 - mean))) - weights)
        weights += step / max(1.0, float(np.linalg.norm(step)))
    tested, truth = drawn(records // 4)
    seen = metrics.auc(tested @ weights, truth)
    large, labels = drawn(40_000)
    return metrics.auc(large @ weights, labels).value, seen.low


def test_below_the_threshold_a_regression_guesses_and_above_it_learns() -> None:
    """Clean labels give an AUC of about 0.75; the worth of the rare class is 0.7, then 29."""
    drowned = [fitted_auc(0.00625, 16_000, 1.0, seed) for seed in range(8)]
    enough = [fitted_auc(0.05, 16_000, 1.0, seed) for seed in range(8)]
    counts = [round(16_000 * (1 - share)) for share in (0.00625, 0.05)]
    worth = [effective_labels_of_class(randomized_response(1.0), [no, 16_000 - no], 1) for no in counts]
    assert worth[0] < ENOUGH_OF_A_CLASS / 10 and worth[1] > 2 * ENOUGH_OF_A_CLASS
    assert np.mean([area for area, _ in drowned]) < 0.58
    assert sum(metrics.no_better_than_guessing(low) for _, low in drowned) >= 5
    assert np.mean([area for area, _ in enough]) > 0.64
    assert sum(metrics.no_better_than_guessing(low) for _, low in enough) <= 2


def rare_job(**training: Any) -> Job:
    content = {
        "data": {"source": "synthetic", "rows": 1500},
        "privacy": {"epsilon": 1.0, "noise_seed": 1},
        "model": {"embedding_dim": 2, "bottom": [4], "top": [4]},
        "training": {"batch_size": 512, "epochs": 1, **training},
    }
    return make_job(content, {}, "test")


def with_positives(job: Job, count: int) -> Dataset:
    """The job's records, of which so many in training are positive."""
    data = load_records(job)
    labels = np.zeros(len(data.label_side.records.ids), np.int64)
    labels[data.label_side.records.train[:count]] = 1
    labels[data.label_side.records.test[:count]] = 1
    return data.with_labels(labels)


@pytest.mark.parametrize("exchange", ["gradients", "labels"])
def test_a_run_says_it_before_the_release(tmp_path: Path, exchange: str) -> None:
    job, said = rare_job(exchange=exchange), list[str]()
    for count in (12, 500):
        train(job, tmp_path / f"run{count}", data=with_positives(job, count), watching=Watching(notice=said.append))
    (about,) = [number for number, text in enumerate(said) if "clean ones" in text]
    assert said[about].startswith("about 12 labels '1' drown in the noise at ε = 1, ")
    assert about < next(number for number, text in enumerate(said) if "released" in text)
    assert not any(b"drown" in file.read_bytes() for file in (tmp_path / "run12").rglob("*") if file.is_file())
