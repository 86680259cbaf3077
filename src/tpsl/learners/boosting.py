"""Gradient boosting on noisy labels with LightGBM or XGBoost: the same settings, stopped by the same judges.

The Hessian of `NoisyLabelObjective` counts in clean labels. So the least Hessian of a leaf and the penalty of its value
hold at every ε and number of records: where noise leaves little, few leaves are made, or none.
"""

from __future__ import annotations

import abc
import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.learners.learner import LearnerError
from tpsl.learners.noisy_targets import Floats
from tpsl.learners.objective import NoisyLabelObjective

_LEAVES = 31
_LEARNING_RATE = 0.05
_PENALTY = 30.0
"""Of a leaf's value: its prior is normal with a variance of 1/30 in log-odds, before the learning rate."""
_RECORDS_OF_A_LEAF = 100
"""How many clean labels a leaf's records are worth, at least."""
_COLUMNS_OF_A_TREE = 0.5
_BINS = 63
_ROUNDS, _PATIENCE = 500, 30
CLEAR_GAIN = 0.1
"""Nats by which the judges must like it better within that patience; less is noise, and costs time."""
_CATEGORY_PENALTY, _CATEGORY_SMOOTHING = 100.0, 50.0
"""LightGBM groups the categories of a column by their noisy labels, which finds noise unless it is held back."""


@dataclass(frozen=True)
class BoostingInputs:
    """Records as boosting sees them."""

    columns: npt.NDArray[np.float32]
    categorical: tuple[int, ...]
    """The columns that hold codes of categories."""
    start: Floats
    """Log-odds before the first tree, `[n]` or `[n, k]`."""


@dataclass(frozen=True)
class BoostingTask:
    """What to grow trees on."""

    inputs: BoostingInputs
    objective: NoisyLabelObjective
    """The noisy labels of the same records."""
    seed: int
    threads: int

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.objective.targets.classes

    @property
    def least_information(self) -> float:
        """The least sum of Hessians in a leaf."""
        shares = self.objective.targets.class_shares()
        return _RECORDS_OF_A_LEAF * float((shares * (1 - shares)).mean())

    @property
    def most_rounds(self) -> int:
        """The most trees for each score: with many classes a round is many trees."""
        return _ROUNDS if self.classes == 2 else max(20, 10 * _ROUNDS // self.classes)


class Booster(abc.ABC):
    """Grown trees, which add to the log-odds that they started from."""

    @classmethod
    @abc.abstractmethod
    def grow(cls, task: BoostingTask, rounds: int) -> Booster:
        """Grow this number of trees for each score."""

    @classmethod
    @abc.abstractmethod
    def judged(cls, task: BoostingTask, judges: BoostingInputs, objective: NoisyLabelObjective) -> tuple[int, float]:
        """Grow until the judges' noisy labels like it less; return the best number of rounds, and their likelihood."""

    @abc.abstractmethod
    def raise_by(self, inputs: BoostingInputs) -> Floats:
        """Return what the trees add to the log-odds of each record."""

    @abc.abstractmethod
    def content(self) -> bytes:
        """Return the trees as text."""

    @classmethod
    @abc.abstractmethod
    def from_content(cls, content: bytes) -> Booster:
        """Return the trees that `content` was made of."""


class LightGBM(Booster):
    """Trees of LightGBM; categories are split by its own method."""

    def __init__(self, booster: Any) -> None:
        self._booster = booster

    @classmethod
    def grow(cls, task: BoostingTask, rounds: int) -> LightGBM:
        """Grow this number of trees for each score."""
        library = _library("lightgbm", "LightGBM", "tpsl[trees]")
        return cls(library.train(cls._settings(task), cls._data(library, task.inputs), num_boost_round=rounds))

    @classmethod
    def judged(cls, task: BoostingTask, judges: BoostingInputs, objective: NoisyLabelObjective) -> tuple[int, float]:
        """Grow until the judges' noisy labels like it less; return the best number of rounds, and their likelihood."""
        library = _library("lightgbm", "LightGBM", "tpsl[trees]")
        grown = library.train(
            cls._settings(task),
            data := cls._data(library, task.inputs),
            num_boost_round=task.most_rounds,
            valid_sets=[cls._data(library, judges, like=data)],
            valid_names=["judges"],
            feval=lambda scores, _: ("likelihood", float(objective.log_likelihoods(scores).sum()), True),
            callbacks=[library.early_stopping(_PATIENCE, verbose=False, min_delta=CLEAR_GAIN)],
        )
        return int(grown.best_iteration), float(grown.best_score["judges"]["likelihood"])

    @staticmethod
    def _settings(task: BoostingTask) -> dict[str, Any]:
        many = {} if task.classes == 2 else {"num_class": task.classes}
        return many | {
            "objective": task.objective.lightgbm,
            "metric": "none",
            "num_leaves": _LEAVES,
            "learning_rate": _LEARNING_RATE,
            "lambda_l2": _PENALTY,
            "min_sum_hessian_in_leaf": task.least_information,
            "feature_fraction": _COLUMNS_OF_A_TREE,
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
            params={"max_bin": _BINS, "verbose": -1},
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
        library = _library("lightgbm", "LightGBM", "tpsl[trees]")
        try:
            return cls(library.Booster(model_str=content.decode()))
        except library.basic.LightGBMError as error:
            raise LearnerError(f"LightGBM cannot read its trees ({error})") from error


class XGBoost(Booster):
    """Trees of XGBoost, grown leaf by leaf as those of LightGBM."""

    def __init__(self, booster: Any) -> None:
        self._booster = booster

    @classmethod
    def grow(cls, task: BoostingTask, rounds: int) -> XGBoost:
        """Grow this number of trees for each score."""
        library = _library("xgboost", "XGBoost", "xgboost")
        data = cls._data(library, task.inputs)
        return cls(library.train(cls._settings(task), data, num_boost_round=rounds, obj=task.objective.xgboost))

    @classmethod
    def judged(cls, task: BoostingTask, judges: BoostingInputs, objective: NoisyLabelObjective) -> tuple[int, float]:
        """Grow until the judges' noisy labels like it less; return the best number of rounds, and their likelihood."""
        library = _library("xgboost", "XGBoost", "xgboost")
        grown = library.train(
            cls._settings(task),
            cls._data(library, task.inputs),
            num_boost_round=task.most_rounds,
            obj=task.objective.xgboost,
            evals=[(cls._data(library, judges), "judges")],
            custom_metric=lambda scores, _: ("likelihood", float(objective.log_likelihoods(scores).sum())),
            callbacks=[library.callback.EarlyStopping(rounds=_PATIENCE, maximize=True, min_delta=CLEAR_GAIN)],
            verbose_eval=False,
        )
        return int(grown.best_iteration) + 1, float(grown.best_score)

    @staticmethod
    def _settings(task: BoostingTask) -> dict[str, Any]:
        many = {} if task.classes == 2 else {"num_class": task.classes}
        return many | {
            "disable_default_eval_metric": True,
            "tree_method": "hist",
            "grow_policy": "lossguide",
            "max_depth": 0,
            "max_leaves": _LEAVES,
            "eta": _LEARNING_RATE,
            "lambda": _PENALTY,
            "min_child_weight": task.least_information,
            "colsample_bytree": _COLUMNS_OF_A_TREE,
            "max_bin": _BINS,
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
        library = _library("xgboost", "XGBoost", "xgboost")
        scores = self._booster.predict(self._data(library, inputs), output_margin=True)
        return np.asarray(scores, dtype=np.float64) - inputs.start

    def content(self) -> bytes:
        """Return XGBoost's own JSON."""
        return bytes(self._booster.save_raw("json"))

    @classmethod
    def from_content(cls, content: bytes) -> XGBoost:
        """Return the trees that `content` was made of."""
        library = _library("xgboost", "XGBoost", "xgboost")
        try:
            return cls(library.Booster(model_file=bytearray(content)))
        except library.core.XGBoostError as error:
            raise LearnerError(f"XGBoost cannot read its trees ({str(error).splitlines()[0]})") from error


BOOSTERS: dict[str, type[Booster]] = {"lightgbm": LightGBM, "xgboost": XGBoost}


def _library(module: str, name: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise LearnerError(f"{name} is not installed: `pip install '{package}'` gets it") from None
