"""Any classifier of scikit-learn on noisy labels: forms, conventions, hostile input."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from tpsl.handover.noisy_label_classifier import NoisyLabelClassifier
from tpsl.mechanisms import identity, optimized_unary, randomized_response, subset_selection
from tpsl.metrics import accuracy, auc, log_loss

RR = randomized_response(1.0)


def records(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Records of two classes, one in five positive, with a known linear log-odds."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 5))
    p = 1 / (1 + np.exp(-(x @ [1.2, -0.8, 0.5, 0, 0] - 1.7)))
    return x, (rng.random(n) < p).astype(int)


X, Y = records(20_000)
X_TEST, Y_TEST = records(20_000, seed=1)


def test_it_predicts_true_labels_better_than_training_on_flips() -> None:
    outcomes = RR.release(Y, rng=2).outcomes
    ours = NoisyLabelClassifier(LogisticRegression(), RR, form="unbiased").fit(X, outcomes).predict_proba(X_TEST)
    raw = LogisticRegression().fit(X, outcomes).predict_proba(X_TEST)
    best = LogisticRegression().fit(X, Y).predict_proba(X_TEST)
    assert log_loss(ours, Y_TEST) < log_loss(best, Y_TEST) + 0.01
    assert log_loss(raw, Y_TEST) > log_loss(best, Y_TEST) + 0.05
    assert auc(ours[:, 1], Y_TEST).value > auc(best[:, 1], Y_TEST).value - 0.005


def test_posterior_weights_serve_a_forest() -> None:
    outcomes = RR.release(Y, rng=3).outcomes
    forest = RandomForestClassifier(12, max_samples=0.5, min_samples_leaf=300, random_state=0)
    found = NoisyLabelClassifier(forest, RR, form="posterior").fit(X, outcomes)
    assert auc(found.predict_proba(X_TEST)[:, 1], Y_TEST).value > 0.76


@pytest.mark.parametrize("form", ["unbiased", "posterior"])
def test_without_noise_it_is_the_classifier_itself(form: str) -> None:
    plain = LogisticRegression().fit(X, Y).predict_proba(X_TEST)
    wrapped = NoisyLabelClassifier(LogisticRegression(), identity(), form=form).fit(X, Y)
    np.testing.assert_allclose(wrapped.predict_proba(X_TEST), plain, atol=1e-3)


@pytest.mark.parametrize("form", ["unbiased", "posterior"])
def test_ten_classes(form: str) -> None:
    mechanism, rng = subset_selection(2.0, 10), np.random.default_rng(5)
    y = rng.integers(0, 10, 6000)
    x = np.eye(10)[y] + 0.3 * rng.normal(size=(6000, 10))
    names = [f"class {j}" for j in range(10)]
    wrapped = NoisyLabelClassifier(LogisticRegression(max_iter=300), mechanism, form=form, classes=names)
    fitted = wrapped.fit(x, mechanism.release(y, rng=6).outcomes)
    assert accuracy(fitted.predict_proba(x), y) > 0.5
    assert set(fitted.predict(x)) == set(names)


def test_a_hundred_classes() -> None:
    mechanism, rng = optimized_unary(6.0, 100), np.random.default_rng(5)
    y = rng.integers(0, 100, 3000)
    x = np.stack([y // 10, y % 10], axis=1).astype(float)
    tree = DecisionTreeClassifier(max_depth=8, random_state=0)
    fitted = NoisyLabelClassifier(tree, mechanism).fit(x, mechanism.release(y, rng=6).outcomes)
    assert accuracy(fitted.predict_proba(x), y) > 0.5


def test_it_keeps_scikit_learns_conventions() -> None:
    outcomes = RR.release(Y, rng=7).outcomes
    wrapped = NoisyLabelClassifier(LogisticRegression(C=0.5), RR, form="unbiased")
    assert clone(wrapped).get_params()["estimator__C"] == 0.5
    pipeline = make_pipeline(StandardScaler(), wrapped).fit(X, outcomes)
    assert pipeline.predict(X_TEST).shape == Y_TEST.shape
    search = GridSearchCV(wrapped, {"estimator__C": [1e-3, 1.0]}, scoring="neg_log_loss", cv=2).fit(X, outcomes)
    assert search.best_estimator_.classes_.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("classifier", "outcomes", "sentence"),
    [
        (NoisyLabelClassifier(KNeighborsClassifier(), RR), Y, "KNeighborsClassifier takes no sample_weight"),
        (NoisyLabelClassifier(LogisticRegression(), RR, form="linear"), Y, "unknown form 'linear'; known are unbiased"),
        (NoisyLabelClassifier(LogisticRegression(), RR), Y[:9], "do not fit 20000 records"),
        (NoisyLabelClassifier(LogisticRegression(), RR), Y + 0.5, "outcomes of type float64"),
        (NoisyLabelClassifier(LogisticRegression(), RR), Y + 1, "has no outcome 2"),
        (NoisyLabelClassifier(LogisticRegression(), RR, classes=["a"]), Y, "must be 2 different ones"),
        (NoisyLabelClassifier(LogisticRegression(), subset_selection(1.0, 10)), Y, "do not fit 20000 records"),
    ],
)
def test_what_does_not_fit_is_a_sentence(classifier: NoisyLabelClassifier, outcomes: np.ndarray, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        classifier.fit(X, outcomes)
