"""`NoisyLabelClassifier`: any classifier of scikit-learn that takes sample weights, on noisy labels.

Every record is given to the classifier once for each class, with a weight. All of it is post-processing of the release:
forms, rounds and classifiers may be compared at no cost.

| form        | weight of class j                            | for                                                    |
|-------------|----------------------------------------------|--------------------------------------------------------|
| `unbiased`  | the debiased label, negative for some        | linear models: on average, the loss of clean labels    |
| `posterior` | `P(y = j given t)` at the shares of classes  | trees and others that want no negative weight          |
| `em`        | `P(y = j given t, x)` by the round before    | the same; each round is less timid than the one before |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self, get_args

import numpy as np
import numpy.typing as npt

from tpsl.data.order import VALIDATION_STREAM, permutation
from tpsl.handover.objective import Floats, NoisyTargets, mixture_log_likelihoods, posterior
from tpsl.mechanisms import Mechanism

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
    from sklearn.utils import _safe_indexing
    from sklearn.utils.validation import check_is_fitted, has_fit_parameter
except ImportError as error:
    raise ImportError("NoisyLabelClassifier needs scikit-learn: `pip install 'tpsl[trees]'` gets it") from error

Form = Literal["unbiased", "posterior", "em"]
_LEAST_PROBABILITY = 1e-12


class NoisyLabelClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that learns true labels from noisy ones.

    `fit(X, outcomes)`: what the mechanism drew for each record, as the vault or a hand-over gives it; shape `[n]`, or
    `[n, k]` where each class has a coordinate of its own. `predict` and `predict_proba` speak of true labels.

    Guarantee: a function of X and the outcomes, so post-processing of their release.

    Parameters
    ----------
    estimator : classifier
        Any classifier whose `fit` takes `sample_weight`; for `form="unbiased"` one that takes negative weights.
    mechanism : Mechanism
        What drew the outcomes, as `tpsl.mechanisms.from_spec` rebuilds it from a card.
    form : "unbiased", "posterior" or "em"
        How a noisy label becomes weights.
    rounds : int
        The most rounds of EM. At small ε each moves little: the share of a label that noise leaves.
    validation : float
        The share of the records that are held out: their noisy labels choose the round of EM that is kept.
    classes : sequence, optional
        The classes in the order of the mechanism; None: 0 to k-1.
    random_state : int
        Chooses the hold-out.

    Attributes
    ----------
    estimator_ : classifier
        The fitted one.
    classes_ : array
        The classes, in the order of `predict_proba`.
    log_likelihoods_ : list of float
        Of EM: what the noisy labels of the hold-out said of each round.
    """

    estimator_: Any
    classes_: npt.NDArray[Any]
    log_likelihoods_: list[float]

    def __init__(
        self,
        estimator: Any,
        mechanism: Mechanism,
        *,
        form: Form = "posterior",
        rounds: int = 10,
        validation: float = 0.1,
        classes: Sequence[Any] | None = None,
        random_state: int = 0,
    ) -> None:
        self.estimator = estimator
        self.mechanism = mechanism
        self.form = form
        self.rounds = rounds
        self.validation = validation
        self.classes = classes
        self.random_state = random_state

    def fit(self, X: Any, outcomes: Any) -> Self:
        """Fit a clone of the estimator to these records and their outcomes."""
        targets = self._checked(X, outcomes)
        if self.form == "em":
            self._fit_rounds(X, targets)
        else:
            self.estimator_ = self._fitted(
                X, targets.unbiased() if self.form == "unbiased" else _prior_weights(targets)
            )
        return self

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the probability of each class."""
        check_is_fitted(self)
        return _probabilities(self.estimator_, X, len(self.classes_))

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the most probable class."""
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])

    def _checked(self, X: Any, outcomes: Any) -> NoisyTargets:
        if self.form not in get_args(Form):
            raise ValueError(f"unknown form {self.form!r}; known are {', '.join(get_args(Form))}")
        if not has_fit_parameter(self.estimator, "sample_weight"):
            raise ValueError(f"{type(self.estimator).__name__} takes no sample_weight, which noisy labels need")
        drawn, shape = np.asarray(outcomes), self.mechanism.outcome_shape
        if drawn.dtype.kind not in "iub" or drawn.shape[1:] != shape or len(drawn) != X.shape[0] or not len(drawn):
            raise ValueError(
                f"outcomes of type {drawn.dtype} and shape {drawn.shape} do not fit {X.shape[0]} records of "
                f"{self.mechanism}"
            )
        if drawn.min() < 0 or drawn.max() >= self.mechanism.outcomes:
            raise ValueError(f"{self.mechanism} has no outcome {int(drawn.min() if drawn.min() < 0 else drawn.max())}")
        self.classes_ = np.arange(self.mechanism.classes) if self.classes is None else np.asarray(self.classes)
        if len(np.unique(self.classes_)) != self.mechanism.classes:
            raise ValueError(f"`classes` must be {self.mechanism.classes} different ones, got {self.classes!r}")
        return NoisyTargets(self.mechanism, (drawn,))

    def _fitted(self, X: Any, weights: Floats) -> Any:
        """Fit a clone to each record once for every class, with these weights `[n, k]`."""
        records, classes = np.nonzero(weights)
        given = _safe_indexing(X, records)
        return clone(self.estimator).fit(given, classes, sample_weight=weights[records, classes])

    def _fit_rounds(self, X: Any, targets: NoisyTargets) -> None:
        """Expectation and maximisation in turn, until the hold-out likes a round less than the one before."""
        count = max(1, round(len(targets) * self.validation))
        order = permutation(len(targets), VALIDATION_STREAM, self.random_state)
        held, trained = np.sort(order[:count]), np.sort(order[count:])
        of_trained, of_held = targets.take(trained), targets.take(held).log_likelihood()
        own, theirs = _safe_indexing(X, trained), _safe_indexing(X, held)
        likelihood, weights = of_trained.log_likelihood(), _prior_weights(of_trained)
        self.log_likelihoods_ = []
        for _ in range(max(1, self.rounds)):
            fitted = self._fitted(own, weights)
            found = float(mixture_log_likelihoods(of_held, self._log_probabilities(fitted, theirs)).sum())
            if self.log_likelihoods_ and found <= self.log_likelihoods_[-1]:
                break
            self.estimator_ = fitted
            self.log_likelihoods_.append(found)
            weights = posterior(likelihood, self._log_probabilities(fitted, own))

    def _log_probabilities(self, fitted: Any, X: Any) -> Floats:
        found: Floats = np.log(np.maximum(_probabilities(fitted, X, len(self.classes_)), _LEAST_PROBABILITY))
        return found


def _prior_weights(targets: NoisyTargets) -> Floats:
    """Return `P(y = j | t)` of records that are alike: all are of class j with the share of that class."""
    return posterior(targets.log_likelihood(), np.log(targets.class_shares())[None, :])


def _probabilities(fitted: Any, X: Any, classes: int) -> Floats:
    """Return a column for each class; one that no record had a weight for has probability 0."""
    by_class = np.zeros((X.shape[0], classes))
    by_class[:, fitted.classes_] = fitted.predict_proba(X)
    return by_class
