"""Boosting on noisy labels with XGBoost, where it is installed."""

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


class XGBoost(Booster):
    """Trees of XGBoost, grown leaf by leaf as those of LightGBM."""

    def __init__(self, booster: Any) -> None:
        self._booster = booster

    @classmethod
    def grow(cls, task: BoostingTask, rounds: int) -> XGBoost:
        """Grow this number of trees for each score."""
        library = _xgboost()
        data = cls._data(library, task.inputs)
        return cls(library.train(cls._settings(task), data, num_boost_round=rounds, obj=task.objective))

    @classmethod
    def grow_judged(cls, task: BoostingTask, judges: BoostingInputs, said: NoisyLabelObjective) -> tuple[XGBoost, int]:
        """Grow until noisy labels of the judges like it less; return the trees that they like best, and how many."""
        library = _xgboost()
        grown = library.train(
            cls._settings(task),
            cls._data(library, task.inputs),
            num_boost_round=task.most_rounds,
            obj=task.objective,
            evals=[(cls._data(library, judges), "judges")],
            custom_metric=lambda scores, _: ("likelihood", float(said.log_likelihoods(scores).sum())),
            callbacks=[library.callback.EarlyStopping(rounds=PATIENCE, maximize=True, min_delta=CLEAR_GAIN)],
            verbose_eval=False,
        )
        rounds = int(grown.best_iteration) + 1
        return cls(grown[:rounds]), rounds

    @staticmethod
    def _settings(task: BoostingTask) -> dict[str, Any]:
        many = {} if task.classes == 2 else {"num_class": task.classes}
        return many | {
            "disable_default_eval_metric": True,
            "tree_method": "hist",
            "grow_policy": "lossguide",
            "max_depth": 0,
            "max_leaves": LEAVES,
            "eta": LEARNING_RATE,
            "lambda": PENALTY,
            "min_child_weight": task.least_information,
            "colsample_bytree": COLUMNS_OF_A_TREE,
            "max_bin": BINS,
            "base_score": 0.0,
            "seed": task.seed % (1 << 31),
            "nthread": task.threads,
        }

    @staticmethod
    def _data(library: Any, inputs: BoostingInputs) -> Any:
        kinds = ["c" if number in inputs.categorical else "q" for number in range(inputs.columns.shape[1])]
        margin = inputs.start if inputs.start.ndim == 1 else inputs.start.astype(np.float32)
        return library.DMatrix(inputs.columns, base_margin=margin, feature_types=kinds, enable_categorical=True)

    def raise_by(self, inputs: BoostingInputs) -> Floats:
        """Return what the trees add to the log-odds of each record."""
        library = _xgboost()
        scores = self._booster.predict(self._data(library, inputs), output_margin=True)
        return np.asarray(scores, dtype=np.float64) - inputs.start

    def content(self) -> bytes:
        """Return XGBoost's own JSON."""
        return bytes(self._booster.save_raw("json"))

    @classmethod
    def from_content(cls, content: bytes) -> XGBoost:
        """Return the trees that `content` was made of."""
        library = _xgboost()
        try:
            return cls(library.Booster(model_file=bytearray(content)))
        except library.core.XGBoostError as error:
            raise LearnerError(f"XGBoost cannot read its trees ({str(error).splitlines()[0]})") from error


def _xgboost() -> Any:
    return require("xgboost", "XGBoost", "xgboost")
