"""`SplitClassifier` is a good citizen of scikit-learn, and says what it costs."""

import importlib
import math
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from tests.vault_labels import true_labels

from tpsl import SplitClassifier, estimator
from tpsl.data.true_labels import reveal
from tpsl.vault import Vault, VaultError

QUICK: dict[str, Any] = {"epochs": 3, "batch_size": 32, "learning_rate": 0.02, "bottom": (16,), "top": (16,)}
INFINITE = float("inf")
pytestmark = pytest.mark.filterwarnings("ignore:the noise is seeded")
FRESH_NOISE = "compares two fits, and each draws noise of its own: that is what makes it private"
EXPECTED_FAILURES = {
    "check_fit_idempotent": FRESH_NOISE,
    "check_classifier_data_not_an_array": FRESH_NOISE,
    "check_supervised_y_2d": FRESH_NOISE,
}


@pytest.fixture(scope="module")
def records() -> tuple[pd.DataFrame, pd.Series]:
    """Records whose label is told by a number and a category together, at different parties if one likes."""
    rng = np.random.default_rng(5)
    number, word = rng.normal(size=400), rng.choice(["red", "green", "blue"], 400)
    late = number + np.where(word == "red", 2.0, -1.0) > 0
    frame = pd.DataFrame({"number": number, "word": word, "noise": rng.normal(size=400)})
    return frame, pd.Series(np.where(late, "late", "on time"))


@parametrize_with_checks(
    [SplitClassifier(4.0, noise_seed=1, not_private=True, **QUICK), SplitClassifier(2.0, **QUICK)],
    expected_failed_checks=lambda model: EXPECTED_FAILURES if model.noise_seed is None else {},
)
def test_scikit_learn_checks(estimator: SplitClassifier, check: Any) -> None:
    """With seeded noise every check passes; with fresh noise all but those that compare two fits."""
    check(estimator)


def test_default_settings_learn_a_small_data_set() -> None:
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    model = SplitClassifier(3.0, random_state=0, noise_seed=0, not_private=True).fit(X[::4], y[::4])
    assert model.score(X[1::2], y[1::2]) > 0.85  # 0.63 is guessing


BOTH = {"feature": ["number"], "label": ["word", "noise"]}


def test_a_wide_part_predicts_new_records_and_travels(records: tuple[pd.DataFrame, pd.Series]) -> None:
    X, y = records
    model = SplitClassifier(1.0, noise_seed=1, not_private=True, wide=True, parties=BOTH, **QUICK)
    model.fit(X[:300], y[:300])
    assert model.score(X[300:], y[300:]) > 0.75
    unseen = X[300:].assign(word="never seen")
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(unseen), model.predict_proba(unseen))
    with pytest.raises(ValueError, match="two classes, not for 3"):
        SplitClassifier(1.0, noise_seed=1, not_private=True, wide=True, **QUICK).fit(X[["number"]], X["word"])


def test_parties_are_groups_of_columns(records: tuple[pd.DataFrame, pd.Series]) -> None:
    X, y = records
    parties = {"airport": ["number"], "label": ["word"], "weather": [2]}
    model = SplitClassifier(INFINITE, not_private=True, random_state=0, parties=parties, **QUICK).fit(X, y)
    assert list(model.halves_.bottoms) == ["airport", "weather", "label"]
    assert model.n_features_in_ == 3
    assert model.score(X, y) > 0.9
    alone = SplitClassifier(INFINITE, not_private=True, random_state=0, **QUICK).fit(X[["number"]], y)
    assert alone.score(X[["number"]], y) < 0.85


@pytest.mark.parametrize(
    ("parties", "sentence"),
    [
        ({"a": ["number", "word"]}, "gives the column 'noise' of X to 0 parties"),
        ({"a": ["number", "word", "noise"], "b": ["word"]}, "gives the column 'word' of X to 2 parties"),
        ({"a": ["number", "word", "noise", "age"]}, "names the column 'age', which X does not have"),
        ({"a": [0, 1, 3]}, "names the column 3, and X has 3 columns"),
        ({"label": [0, 1, 2]}, "names no feature party"),
        ({"an airport": [0, 1, 2]}, "the feature party 'an airport' needs a name of letters"),
    ],
)
def test_parties_that_do_not_fit_are_named(
    records: tuple[pd.DataFrame, pd.Series], parties: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        SplitClassifier(parties=parties).fit(*records)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"epsilon": -1.0}, "privacy: .*"),
        ({"epsilon": "much"}, "privacy.epsilon"),
        ({"epsilon": math.nan}, "privacy"),
        ({"epsilon": "1"}, "privacy.epsilon: must be a number, got '1'"),
        ({"max_epsilon": "10"}, "max_epsilon: must be a number, got '10'"),
        ({"mechanism": "none"}, r"mechanism 'none' has no noise: its ε is float\('inf'\)"),
        ({"mechanism": "magic"}, "privacy.mechanism"),
        ({"epochs": 0}, "training.epochs"),
        ({"batch_size": "all"}, "training.batch_size"),
        ({"bottom": 5}, "model.bottom"),
        ({"min_count": 0}, "data.min_count"),
        ({"classes": ["late"]}, "needs two classes or more, and `classes` is"),
        ({"classes": ["late", "early"]}, "the label 'on time' is not among `classes`"),
        ({"vault": "somewhere"}, "give `classes`"),
    ],
)
def test_a_wrong_parameter_is_one_sentence(
    records: tuple[pd.DataFrame, pd.Series], settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence) as raised:
        SplitClassifier(**settings).fit(*records)
    assert "\n" not in str(raised.value)


def test_random_state_fixes_everything_but_the_noise(records: tuple[pd.DataFrame, pd.Series]) -> None:
    X, y = records

    def fitted(**settings: Any) -> Any:
        model = SplitClassifier(1.0, **QUICK, **settings)
        return model.fit(X, y).predict_proba(X)

    assert not np.array_equal(fitted(random_state=0), fitted(random_state=0))
    seeded = fitted(random_state=0, noise_seed=1, not_private=True)
    assert np.array_equal(seeded, fitted(random_state=0, noise_seed=1, not_private=True))
    assert not np.array_equal(seeded, fitted(random_state=0, noise_seed=2, not_private=True))
    assert not np.array_equal(seeded, fitted(random_state=1, noise_seed=1, not_private=True))


def test_what_a_fit_cost(records: tuple[pd.DataFrame, pd.Series]) -> None:
    model = SplitClassifier(1.5, mechanism="laplace", **QUICK)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(*records)
    assert 1.499 < model.epsilon_ <= 1.5
    assert (model.delta_, model.private_, model.privacy_spent_) == (0.0, True, model.epsilon_)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "the noise is seeded: this fit is NOT private")
        assert not SplitClassifier(1.5, noise_seed=1, not_private=True, **QUICK).fit(*records).private_
        assert SplitClassifier(INFINITE, not_private=True, **QUICK).fit(*records).epsilon_ == INFINITE


def test_a_fit_without_a_vault_is_a_scratch_run_that_leaves_nothing(
    records: tuple[pd.DataFrame, pd.Series], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choices, chosen = [], estimator.VaultChoice
    monkeypatch.setattr(
        estimator, "VaultChoice", lambda *path, **how: choices.append(chosen(*path, **how)) or choices[-1]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            SplitClassifier(1.0, **QUICK).fit(*records)
    assert [choice.scratch for choice in choices] == [True, True]
    assert list(tmp_path.iterdir()) == []


def test_a_vault_releases_each_label_once_for_all_fits(records: tuple[pd.DataFrame, pd.Series], tmp_path: Path) -> None:
    X, y = records[0].iloc[:120], records[1].iloc[:120]
    quick = {**QUICK, "classes": ("late", "on time"), "vault": tmp_path / "vault"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        search = GridSearchCV(SplitClassifier(2.0, **quick), {"epochs": np.array([1, 2])}, cv=2)
        search.fit(X, y)
    assert search.best_estimator_.privacy_spent_ == 2.0
    with Vault.open(tmp_path / "vault") as vault:
        ledger = vault.ledger()
        assert len(vault) == 120
        assert not vault.verify()
    assert [(part.records, part.epsilon) for part in ledger.spent] == [(120, 2.0)]
    with pytest.raises(ValueError, match="released"):
        SplitClassifier(1.0, **quick).fit(X, y)
    corrected = y.where(np.arange(120) >= 3, y.map({"late": "on time", "on time": "late"}))
    with pytest.raises(
        VaultError, match=r"^3 of the 120 training records that the vault .* knows have another label there"
    ):
        SplitClassifier(2.0, **quick).fit(X, corrected)
    with pytest.raises(ValueError, match="whose index names each record once"):
        SplitClassifier(2.0, **quick).fit(X[["number"]].to_numpy(), y)
    with pytest.raises(ValueError, match="whose index names each record once"):
        SplitClassifier(2.0, **quick).fit(X.set_axis([0] * 120), y)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"epsilon": 35.0}, r"more than the ε = 10 that the label party permits"),
        ({"epsilon": 2.0, "max_epsilon": 1.5}, r"ε = 2 in all, more than the ε = 1\.5"),
        ({"epsilon": 1.0, "noise_seed": 1}, "NOT PRIVATE"),
        ({"epsilon": INFINITE}, "NOT PRIVATE"),
        ({"epsilon": INFINITE, "mechanism": "none"}, "NOT PRIVATE"),
    ],
)
@pytest.mark.parametrize("named", [True, False], ids=["vault", "no vault"])
def test_a_fit_has_the_limits_of_every_release(
    records: tuple[pd.DataFrame, pd.Series], tmp_path: Path, settings: dict[str, Any], sentence: str, named: bool
) -> None:
    vault = {"classes": ("late", "on time"), "vault": tmp_path / "vault"} if named else {}
    with pytest.raises(VaultError, match=sentence):
        SplitClassifier(**QUICK, **vault, **settings).fit(*records)
    assert list(tmp_path.iterdir()) == [], "no label was stored, and no fit counted"
    permitting = {**settings, "not_private": True, "max_epsilon": 40.0}
    assert SplitClassifier(**QUICK, **vault, **permitting).fit(*records).privacy_spent_ >= 1.0


def test_seeded_noise_is_told(records: tuple[pd.DataFrame, pd.Series]) -> None:
    with pytest.warns(UserWarning, match="the noise is seeded: this fit is NOT private"):
        SplitClassifier(1.0, noise_seed=1, not_private=True, **QUICK).fit(*records)


def test_other_labels_than_those_of_the_vault_are_refused_before_they_are_released(
    records: tuple[pd.DataFrame, pd.Series], tmp_path: Path
) -> None:
    X, y = records
    classes = ("late", "on time")
    labels = np.searchsorted(classes, y)
    ids = [str(name) for name in X.index]
    with Vault.create(tmp_path / "vault", batches=[(ids, labels, None)]) as vault:
        head = vault.head()
        with pytest.raises(VaultError, match=r"of the 300 training records that the vault .* knows have another label"):
            SplitClassifier(1.0, classes=classes, vault=vault.address, **QUICK).fit(X[:300], y[:300].iloc[::-1])
        assert vault.head() == head
        assert true_labels(vault, ids).tolist() == labels.tolist()
    new = X[300:].set_axis(range(1000, 1100))
    SplitClassifier(1.0, classes=classes, vault=tmp_path / "vault", **QUICK).fit(new, y[300:])
    with Vault.open(tmp_path / "vault") as vault:
        assert len(vault) == 500, "records that the vault does not know are added"


def test_no_true_label_is_left_anywhere_but_in_the_weights(
    records: tuple[pd.DataFrame, pd.Series], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing remains of the run folder, and the labels of the data set's test record are made up."""
    monkeypatch.setattr(estimator, "_folder_in_memory", lambda: tmp_path)
    seen = {}
    real = estimator.train

    def watched(job: Any, run: Path, **options: Any) -> Any:
        seen["data"] = options["data"]
        assert run.is_relative_to(tmp_path)
        return real(job, run, **options)

    monkeypatch.setattr(estimator, "train", watched)
    model = SplitClassifier(INFINITE, not_private=True, **QUICK).fit(*records)
    assert list(tmp_path.iterdir()) == []
    data = seen["data"]
    assert data.test.tolist() == [400]
    assert reveal(data.labels)[data.test].tolist() == [0]
    assert all(np.size(value) < 400 for value in vars(model).values() if isinstance(value, np.ndarray | list | tuple))


def test_where_the_run_folder_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(estimator, "_ENOUGH_MEMORY", 0)
    monkeypatch.setattr(estimator, "_MEMORY", tmp_path)
    assert estimator._folder_in_memory() == tmp_path
    monkeypatch.setattr(estimator, "_ENOUGH_MEMORY", 1 << 62)
    assert estimator._folder_in_memory() is None
    monkeypatch.setattr(estimator, "_MEMORY", tmp_path / "none")
    assert estimator._folder_in_memory() is None


def test_categories_and_missing_values(records: tuple[pd.DataFrame, pd.Series]) -> None:
    X, y = records
    typed = X.assign(word=X["word"].astype("category"))
    model = SplitClassifier(INFINITE, not_private=True, random_state=0, **QUICK).fit(typed, y)
    assert list(model.feature_names_in_) == ["number", "word", "noise"]
    as_text = SplitClassifier(INFINITE, not_private=True, random_state=0, **QUICK).fit(X, y)
    assert np.array_equal(model.predict_proba(typed), as_text.predict_proba(X))
    strange = pd.DataFrame({"number": [0.3, None], "word": ["violet", None], "noise": [0.0, 1.0]})
    assert np.isfinite(model.predict_proba(strange)).all()
    arrow = pa.Table.from_pandas(X)
    assert np.array_equal(model.predict(arrow), model.predict(X))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(X[["word", "number", "noise"]])
    with pytest.warns(UserWarning, match="does not have valid feature names"), pytest.raises(ValueError, match="frame"):
        model.predict(np.zeros((2, 3)))


def test_a_fitted_model_travels(records: tuple[pd.DataFrame, pd.Series]) -> None:
    X, y = records
    model = SplitClassifier(INFINITE, not_private=True, **QUICK).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.get_params() == model.get_params()


def test_works_where_scikit_learn_passes_one_X(records: tuple[pd.DataFrame, pd.Series]) -> None:
    X, y = records[0][["number", "noise"]], records[1]
    pipeline = make_pipeline(StandardScaler(), SplitClassifier(INFINITE, not_private=True, random_state=0, **QUICK))
    assert cross_val_score(pipeline, X, y, cv=2).min() > 0.6


def test_classes_may_be_more_than_occur(records: tuple[pd.DataFrame, pd.Series]) -> None:
    X, y = records
    model = SplitClassifier(INFINITE, not_private=True, classes=["on time", "late", "cancelled"], **QUICK).fit(X, y)
    assert model.classes_.tolist() == ["cancelled", "late", "on time"]
    assert model.predict_proba(X).shape == (400, 3)
    assert set(model.predict(X)) <= {"late", "on time"}


def test_threads_are_as_before(records: tuple[pd.DataFrame, pd.Series]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        SplitClassifier(INFINITE, not_private=True, **QUICK).fit(*records)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_without_scikit_learn_the_error_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "tpsl.estimator")
    with pytest.raises(ImportError, match=r"^SplitClassifier needs scikit-learn .*: pip install 'tpsl\[sklearn\]'$"):
        importlib.import_module("tpsl.estimator")
