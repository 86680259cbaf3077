"""Boosting on noisy labels with LightGBM."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpsl.handover.boosting import (
    BINS,
    CLEAR_GAIN,
    COLUMNS_OF_A_TREE,
    LEARNING_RATE,
    LEAVES,
    PATIENCE,
    PENALTY,
    Booster,
    BoostingInputs,
    BoostingTask,
    require,
)
from tpsl.handover.learner import LearnerError
from tpsl.handover.noisy_targets import Floats
from tpsl.handover.objective import NoisyLabelObjective

_CATEGORY_PENALTY, _CATEGORY_SMOOTHING = 100.0, 50.0
"""LightGBM groups the categories of a column by their noisy labels, which finds noise unless it is held back."""


class LightGBM(Booster):
    """Trees of LightGBM; categories are split by its own method."""

    def __init__(self, booster: Any) -> None:
        self._booster = booster

    @classmethod
    def grow(cls, task: BoostingTask, rounds: int) -> LightGBM:
        """Grow this number of trees for each score."""
        library = _lightgbm()
        return cls(library.train(cls._settings(task), cls._data(library, task.inputs), num_boost_round=rounds))

    @classmethod
    def grow_judged(cls, task: BoostingTask, judges: BoostingInputs, said: NoisyLabelObjective) -> tuple[LightGBM, int]:
        """Grow until noisy labels of the judges like it less; return the trees that they like best, and how many."""
        library = _lightgbm()
        grown = library.train(
            cls._settings(task),
            data := cls._data(library, task.inputs),
            num_boost_round=task.most_rounds,
            valid_sets=[cls._data(library, judges, like=data)],
            valid_names=["judges"],
            feval=lambda scores, _: ("likelihood", float(said.log_likelihoods(scores).sum()), True),
            callbacks=[library.early_stopping(PATIENCE, verbose=False, min_delta=CLEAR_GAIN)],
        )
        return cls(grown), int(grown.best_iteration)  # it predicts with those alone

    @staticmethod
    def _settings(task: BoostingTask) -> dict[str, Any]:
        many = {} if task.classes == 2 else {"num_class": task.classes}
        return many | {
            "objective": task.objective,
            "metric": "none",
            "num_leaves": LEAVES,
            "learning_rate": LEARNING_RATE,
            "lambda_l2": PENALTY,
            "min_sum_hessian_in_leaf": task.least_information,
            "feature_fraction": COLUMNS_OF_A_TREE,
            "cat_l2": _CATEGORY_PENALTY,
            "cat_smooth": _CATEGORY_SMOOTHING,
            "seed": task.seed % (1 << 31),
            "num_threads": task.threads,
            "deterministic": True,
            "force_row_wise": True,
            "verbose": -1,
        }

    @staticmethod
    def _data(library: Any, inputs: BoostingInputs, like: Any = None) -> Any:
        return library.Dataset(
            inputs.columns,
            label=np.zeros(len(inputs.columns)),
            init_score=inputs.start,
            categorical_feature=list(inputs.categorical),
            reference=like,
            params={"max_bin": BINS, "verbose": -1},
        )

    def raise_by(self, inputs: BoostingInputs) -> Floats:
        """Return what the trees add to the log-odds of each record."""
        return np.asarray(self._booster.predict(inputs.columns, raw_score=True), dtype=np.float64)

    def content(self) -> bytes:
        """Return LightGBM's own text format."""
        return str(self._booster.model_to_string()).encode()

    @classmethod
    def from_content(cls, content: bytes) -> LightGBM:
        """Return the trees that `content` was made of."""
        library = _lightgbm()
        try:
            return cls(library.Booster(model_str=content.decode()))
        except library.basic.LightGBMError as error:
            raise LearnerError(f"LightGBM cannot read its trees ({error})") from error


def _lightgbm() -> Any:
    return require("lightgbm", "LightGBM", "tpsl[trees]")
