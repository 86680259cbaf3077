"""Trees learn from noisy labels, the hold-out sizes them, and their model is saved and loaded."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tpsl.handover.objective import NoisyTargets
from tpsl.handover.trees import LearnerError, TreeModel, fit
from tpsl.mechanisms import Mechanism, identity, laplace, randomized_response
from tpsl.metrics import accuracy, auc

from .conftest import MakeRecords

RR = randomized_response(1.0)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("mechanism", [randomized_response(2.0), laplace(2.0)], ids=str)
def test_trees_learn_and_are_saved_and_loaded(
    mechanism: Mechanism, plain: bool, make_records: MakeRecords, tmp_path: Path
) -> None:
    records, y = make_records(mechanism, 5000)
    fitted = fit(records, plain=plain)
    assert fitted.predicted.shape == (500,) and fitted.evidence > 3
    found = fitted.model.probabilities(records.features)
    assert found.dtype == np.float32
    assert auc(found[5000:], y[5000:]).value > 0.7
    fitted.model.save(tmp_path / "model")
    np.testing.assert_array_equal(TreeModel.load(tmp_path / "model").probabilities(records.features), found)


def test_ten_classes(make_records: MakeRecords, tmp_path: Path) -> None:
    records, y = make_records(randomized_response(4.0, 10), 2000)
    model = fit(records).model
    found = model.probabilities(records.features)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)
    assert accuracy(found[2000:], y[2000:]) > 1.1 * np.bincount(y[:2000]).max() / 2000
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(TreeModel.load(tmp_path / "model").probabilities(records.features), found)


def test_noise_that_hides_everything_leaves_the_shares(make_records: MakeRecords, tmp_path: Path) -> None:
    """No tree is grown on labels that are worth a few: what is predicted is nearly the same for all."""
    records, _ = make_records(randomized_response(0.05), 2000, tested=500)
    for plain in (False, True):
        found = fit(records, plain=plain)
        assert found.rounds == 0 and found.evidence < 3
        probabilities = found.model.probabilities(records.features)
        assert probabilities.std() < 0.15
        found.model.save(tmp_path / "model")
        np.testing.assert_array_equal(TreeModel.load(tmp_path / "model").probabilities(records.features), probabilities)


def test_trees_correct_what_the_additive_model_cannot_say(make_records: MakeRecords) -> None:
    records, y = make_records(identity(), 5000)
    fitted = fit(records)
    assert fitted.rounds > 20
    models = fitted.model, replace(fitted.model, booster=None)
    corrected, additive = (auc(model.probabilities(records.features)[5000:], y[5000:]).value for model in models)
    assert corrected > additive + 0.01


def test_the_hold_out_has_no_part_in_its_predictions_and_a_part_in_the_model(make_records: MakeRecords) -> None:
    mechanism = randomized_response(0.1)
    records, _ = make_records(mechanism, 3000, tested=100)
    drawn = records.targets.draws[0].copy()
    drawn[records.held_out[7]] ^= 1
    one, other = fit(records), fit(replace(records, targets=NoisyTargets(mechanism, (drawn,))))
    assert one.rounds == other.rounds
    np.testing.assert_array_equal(one.predicted, other.predicted)
    assert one.evidence != other.evidence
    assert (one.model.probabilities(records.features) != other.model.probabilities(records.features)).any()


def test_a_missing_library_is_named(make_records: MakeRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    records, _ = make_records(RR, 1000, tested=100)
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(LearnerError, match=r"LightGBM is not installed: `pip install 'tpsl\[trees\]'` gets it"):
        fit(records)


def test_a_file_without_a_model_is_a_sentence(make_records: MakeRecords, tmp_path: Path) -> None:
    path = tmp_path / "trees.safetensors"
    with pytest.raises(LearnerError, match="cannot be read"):
        TreeModel.load(path)
    records, _ = make_records(identity(), 1000, tested=100)
    fit(records).model.save(path)
    whole = path.read_bytes()
    save_file({"constants": np.zeros(1)}, tmp_path / "part")
    save_file({**load_file(path), "trees": np.frombuffer(b"no trees", np.uint8)}, tmp_path / "spoilt")
    for content in (b"no tensors", whole[:-10], *((tmp_path / name).read_bytes() for name in ("part", "spoilt"))):
        path.write_bytes(content)
        with pytest.raises(LearnerError, match="cannot be read"):
            TreeModel.load(path)


def test_features_of_another_table_are_refused(make_records: MakeRecords) -> None:
    records, _ = make_records(RR, 1000, tested=100)
    narrow = records.features.take(np.arange(5))
    other = type(narrow)(narrow.categorical, narrow.numeric[:, :2], 46, narrow.categorical_fields, ("a", "b"))
    with pytest.raises(LearnerError, match="2 and 2"):
        fit(records).model.probabilities(other)
