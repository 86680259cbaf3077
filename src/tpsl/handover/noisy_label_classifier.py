"""`NoisyLabelClassifier`: any classifier of scikit-learn that takes sample weights, on noisy labels.

Every record is given to the classifier once for each class, with a weight. All of it is post-processing of the release:
forms and classifiers may be compared at no cost.

| form        | weight of class j                            | for                                                    |
|-------------|----------------------------------------------|--------------------------------------------------------|
| `unbiased`  | the debiased label, negative for some        | linear models: on average, the loss of clean labels    |
| `posterior` | `P(y = j given t)` at the shares of classes  | trees and others that want no negative weight          |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self, get_args

import numpy as np
import numpy.typing as npt

from tpsl.handover.objective import NoisyTargets, posterior
from tpsl.mechanisms import Mechanism

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
    from sklearn.utils import _safe_indexing
    from sklearn.utils.validation import check_is_fitted, has_fit_parameter
except ImportError as error:
    raise ImportError("NoisyLabelClassifier needs scikit-learn: `pip install 'tpsl[trees]'` gets it") from error

Form = Literal["unbiased", "posterior"]


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
    form : "unbiased" or "posterior"
        How a noisy label becomes weights.
    classes : sequence, optional
        The classes in the order of the mechanism; None: 0 to k-1.

    Attributes
    ----------
    estimator_ : classifier
        The fitted one.
    classes_ : array
        The classes, in the order of `predict_proba`.
    """

    estimator_: Any
    classes_: npt.NDArray[Any]

    def __init__(
        self,
        estimator: Any,
        mechanism: Mechanism,
        *,
        form: Form = "posterior",
        classes: Sequence[Any] | None = None,
    ) -> None:
        self.estimator = estimator
        self.mechanism = mechanism
        self.form = form
        self.classes = classes

    def fit(self, X: Any, outcomes: Any) -> Self:
        """Fit a clone of the estimator to these records and their outcomes."""
        targets = self._checked(X, outcomes)
        if self.form == "unbiased":
            weights = targets.unbiased()
        else:  # all records are alike: of class j with the share of that class
            weights = posterior(targets.log_likelihood(), np.log(targets.class_shares())[None, :])
        records, classes = np.nonzero(weights)
        given = _safe_indexing(X, records)
        self.estimator_ = clone(self.estimator).fit(given, classes, sample_weight=weights[records, classes])
        return self

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the probability of each class."""
        check_is_fitted(self)
        by_class = np.zeros((X.shape[0], len(self.classes_)))  # 0 for a class that no record had a weight for
        by_class[:, self.estimator_.classes_] = self.estimator_.predict_proba(X)
        return by_class

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
