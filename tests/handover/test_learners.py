"""Learners by name: they learn from noisy labels, are compared by them, and their models are saved and loaded."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load as tensors_of
from safetensors.numpy import save as tensors_as_bytes

from tpsl.handover.learner import LearnerError
from tpsl.handover.learners import ENSEMBLE, LEARNERS, fit, load, save
from tpsl.handover.objective import NoisyTargets
from tpsl.mechanisms import identity, laplace, randomized_response
from tpsl.metrics import accuracy, auc
from tpsl.registry import UnknownName

from .conftest import MakeRecords

RR = randomized_response(1.0)


@pytest.mark.parametrize("name", ["lightgbm", "logistic", "plain_lightgbm", ENSEMBLE])
def test_a_learner_is_fitted_saved_and_loaded(name: str, make_records: MakeRecords, tmp_path: Path) -> None:
    records, y = make_records(randomized_response(2.0), 5000)
    fitted = fit(name, records)
    assert fitted.predicted.shape == (500,) and fitted.evidence > 3
    found = fitted.model.probabilities(records.features)
    assert found.dtype == np.float32
    assert auc(found[5000:], y[5000:]).value > 0.7
    save(fitted.model, tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").probabilities(records.features), found)


@pytest.mark.parametrize("name", ["lightgbm", "logistic"])
def test_ten_classes(name: str, make_records: MakeRecords, tmp_path: Path) -> None:
    records, y = make_records(randomized_response(4.0, 10), 2000)
    model = fit(name, records).model
    found = model.probabilities(records.features)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)
    assert accuracy(found[2000:], y[2000:]) > 1.1 * np.bincount(y[:2000]).max() / 2000
    save(model, tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").probabilities(records.features), found)


def test_a_hundred_classes(make_records: MakeRecords) -> None:
    records, y = make_records(randomized_response(6.0, 100), 2000, tested=500)
    found = fit("logistic", records).model.probabilities(records.features)
    assert found.shape == (2500, 100)
    assert accuracy(found[2000:], y[2000:]) > 1.15 * np.bincount(y[:2000]).max() / 2000


def test_laplace_is_learned_from_like_randomised_response(make_records: MakeRecords) -> None:
    records, y = make_records(laplace(2.0), 5000)
    found = fit("lightgbm", records).model.probabilities(records.features)
    assert auc(found[5000:], y[5000:]).value > 0.7


def test_noise_that_hides_everything_leaves_the_shares(make_records: MakeRecords) -> None:
    """No tree is grown on labels that are worth a few: what is predicted is nearly the same for all."""
    records, _ = make_records(randomized_response(0.05), 2000, tested=500)
    for name in ("lightgbm", "plain_lightgbm"):
        found = fit(name, records)
        assert found.setting == "0 rounds of trees"
        assert found.model.probabilities(records.features).std() < 0.15


def test_trees_correct_what_the_additive_model_cannot_say(make_records: MakeRecords) -> None:
    records, y = make_records(identity(), 5000)
    trees, linear = fit("lightgbm", records), fit("logistic", records)
    rounds = int(trees.setting.split()[0])
    assert rounds > 20
    assert trees.log_likelihood > linear.log_likelihood
    scores = [one.model.probabilities(records.features)[5000:] for one in (trees, linear)]
    assert auc(scores[0], y[5000:]).value > auc(scores[1], y[5000:]).value + 0.02


@pytest.mark.parametrize(("name", "epsilon"), [("lightgbm", 0.1), ("logistic", 1.0)])
def test_the_hold_out_has_no_part_in_its_predictions_and_a_part_in_the_model(
    name: str, epsilon: float, make_records: MakeRecords
) -> None:
    mechanism = randomized_response(epsilon)
    records, _ = make_records(mechanism, 3000, tested=100)
    drawn = records.targets.draws[0].copy()
    drawn[records.held_out[7]] ^= 1
    others = replace(records, targets=NoisyTargets(mechanism, (drawn,)))
    one, other = fit(name, records), fit(name, others)
    assert one.setting == other.setting
    np.testing.assert_array_equal(one.predicted, other.predicted)
    assert one.log_likelihood != other.log_likelihood
    assert (one.model.probabilities(records.features) != other.model.probabilities(records.features)).any()


def test_a_missing_library_is_named(make_records: MakeRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    records, _ = make_records(RR, 1000, tested=100)
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(LearnerError, match=r"LightGBM is not installed: `pip install 'tpsl\[trees\]'` gets it"):
        fit("lightgbm", records)


def test_an_unknown_learner_is_refused_with_the_known_ones(make_records: MakeRecords) -> None:
    records, _ = make_records(RR, 1000, tested=100)
    with pytest.raises(UnknownName, match="unknown learner 'forest'; known are lightgbm, logistic"):
        fit("forest", records)
    assert set(LEARNERS) >= {"lightgbm", "plain_lightgbm", "logistic", ENSEMBLE}


def test_a_file_without_a_model_is_a_sentence(make_records: MakeRecords, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(LearnerError, match="cannot be read"):
        load(path)
    records, _ = make_records(RR, 1000, tested=100)
    save(fit("logistic", records).model, path)
    whole = path.read_bytes()
    for kind, version, said in (("forest", "1", "a model 'forest', version '1'"), ("logistic", "2", "version '2'")):
        path.write_bytes(tensors_as_bytes(tensors_of(whole), {"model": kind, "version": version}))
        with pytest.raises(LearnerError, match=f"holds .*{said}; known are"):
            load(path)
    path.write_bytes(tensors_as_bytes({"base": np.zeros(1)}, {"model": "logistic", "version": "1"}))
    with pytest.raises(LearnerError, match="cannot be read"):
        load(path)
    for content in (b"no tensors", whole[:-10]):
        path.write_bytes(content)
        with pytest.raises(LearnerError, match="cannot be read"):
            load(path)


def test_features_of_another_table_are_refused(make_records: MakeRecords) -> None:
    records, _ = make_records(RR, 1000, tested=100)
    narrow = records.features.take(np.arange(5))
    other = type(narrow)(narrow.categorical, narrow.numeric[:, :2], 46, narrow.categorical_fields, ("a", "b"))
    for name in ("lightgbm", "logistic"):
        with pytest.raises(LearnerError, match=r"2 and 2|49 categories and numbers, not 48"):
            fit(name, records).model.probabilities(other)
