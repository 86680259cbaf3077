"""Boosted trees on noisy labels.

For two classes an additive model of the fields comes first (`tpsl.heads.wide_part`), and trees learn what it
leaves over, from the numbers and from its score. Categories are its business: trees that group the categories of a
field by their noisy labels find mostly noise. As in the wide part of a network, a record that is fitted is scored by
a model that has not seen its noisy label. With more classes, and in the `plain` form, trees get the categories
themselves and start from the shares of the classes.

The judges choose the number of trees, none included. Then everything is fitted once more with their records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load, save

from tpsl.data.features import Features
from tpsl.data.order import Rows
from tpsl.handover.boosting import CLEAR_GAIN, Booster, BoostingInputs, BoostingTask
from tpsl.handover.learner import Fitted, LearnedModel, LearnerError, LearnerRecords, judged_by
from tpsl.handover.lightgbm_trees import LightGBM
from tpsl.handover.noisy_targets import Floats
from tpsl.handover.objective import NoisyLabelObjective
from tpsl.handover.xgboost_trees import XGBoost
from tpsl.heads.wide_part import AdditiveModel, cross_fit

BOOSTERS: dict[str, type[Booster]] = {"lightgbm": LightGBM, "xgboost": XGBoost}

_TREES, _START = "trees", "start.safetensors"
_CALIBRATION_ROUNDS = 20
_SLOPE_VARIANCE = 0.1
"""Of the prior of the slope that straightens scores of the additive model; its mean is 1."""


@dataclass(frozen=True)
class Start:
    """What trees start from: the additive model, straightened, or the shares of the classes."""

    constants: Floats
    """With an additive model, (a, b) of `a + b·score`; without, the log-odds of class 1 or a score of each class."""
    lows: npt.NDArray[np.int64]
    """The lowest category of each field."""
    numbers: int
    """How many numeric fields there are."""
    additive: AdditiveModel | None

    def inputs(self, features: Features, rows: Rows, scores: npt.NDArray[np.float32] | None = None) -> BoostingInputs:
        """Return these rows as boosting sees them; `scores` are theirs by the additive model where they are known."""
        found = (len(features.categorical_fields), len(features.numeric_fields))
        if found != (len(self.lows), self.numbers):
            raise LearnerError(
                f"the trees read {len(self.lows)} categorical and {self.numbers} numeric fields, not {found[0]} and "
                f"{found[1]}"
            )
        numeric = features.numeric[rows]
        if self.additive is not None:
            own = self.additive.scores(features, rows) if scores is None else scores
            start = self.constants[0] + self.constants[1] * own.astype(np.float64)
            return BoostingInputs(np.concatenate([numeric, own[:, None]], axis=1), (), start)
        codes = (features.categorical[rows] - self.lows).astype(np.float32)
        codes[codes < 0] = np.nan  # a category that training did not see
        categorical = tuple(range(self.numbers, self.numbers + len(self.lows)))
        start = np.tile(self.constants, (len(rows), 1)) if len(self.constants) > 1 else self.constants.repeat(len(rows))
        return BoostingInputs(np.concatenate([numeric, codes], axis=1), categorical, start)


@dataclass(frozen=True)
class TreeModel(LearnedModel):
    """An additive model, or the shares of the classes, and the trees that correct it."""

    start: Start
    engine: str
    booster: Booster | None
    """None where the judges liked no tree."""

    kind = "trees"

    def log_odds(self, features: Features) -> Floats:
        """Return the log-odds of class 1 of each record (`[n]`), or a score of each class (`[n, k]`)."""
        inputs = self.start.inputs(features, np.arange(len(features), dtype=np.int64))
        return inputs.start if self.booster is None else inputs.start + self.booster.raise_by(inputs)

    def files(self) -> dict[str, bytes]:
        """Return the start as tensors, and the trees in the format of their library."""
        tensors = {
            "constants": torch.from_numpy(self.start.constants),
            "lows": torch.from_numpy(self.start.lows),
            "numbers": torch.tensor([self.start.numbers]),
        }
        if self.start.additive is not None:
            tensors |= {f"additive.{name}": tensor for name, tensor in self.start.additive.tensors().items()}
        grown = {} if self.booster is None else {f"{_TREES}.{self.engine}": self.booster.content()}
        return {_START: save(tensors), **grown}

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> TreeModel:
        """Return the model that `files` was made of."""
        tensors = load(files[_START])
        own = {name.removeprefix("additive."): t for name, t in tensors.items() if name.startswith("additive.")}
        additive = AdditiveModel.from_tensors(own) if own else None
        start = Start(tensors["constants"].numpy(), tensors["lows"].numpy(), int(tensors["numbers"][0]), additive)
        for engine, library in BOOSTERS.items():
            if (name := f"{_TREES}.{engine}") in files:
                return cls(start, engine, library.from_content(files[name]))
        return cls(start, next(iter(BOOSTERS)), None)


def train_trees(records: LearnerRecords, engine: str, *, plain: bool = False) -> Fitted:
    """Grow trees, as many as the judges like, and grow them again with the judges' records."""
    library, additive = BOOSTERS[engine], not plain and records.targets.classes == 2
    said = NoisyLabelObjective(records.targets.take(records.held_out))
    fitting = _Fitting(records, records.trained, additive)
    judges = fitting.inputs(records.rows[records.held_out])
    grown, rounds = library.grow_judged(fitting.task(), judges, said)
    judged = judges.start + grown.raise_by(judges)
    if said.log_likelihoods(judged).sum() <= said.log_likelihoods(judges.start).sum() + CLEAR_GAIN:
        judged, rounds = judges.start, 0
    whole = _Fitting(records, np.arange(len(records.rows), dtype=np.int64), additive)
    model = TreeModel(whole.start, engine, library.grow(whole.task(), rounds) if rounds else None)
    name = f"plain_{engine}" if plain else engine
    return judged_by(records, name, f"{rounds} rounds of trees", model, judged)


class _Fitting:
    """The start for some records, and what trees are grown on."""

    def __init__(self, records: LearnerRecords, positions: Rows, additive: bool) -> None:
        self._records, self._rows = records, records.rows[positions]
        self._objective = NoisyLabelObjective(records.targets.take(positions))
        self._scores: npt.NDArray[np.float32] | None = None
        features, model = records.features, None
        if additive:
            estimates = self._objective.targets.unbiased()[:, 1]
            model, self._scores = cross_fit(features, self._rows, estimates, records.seed)
            constants = _straightened(self._objective, self._scores[self._rows].astype(np.float64))
        else:
            constants = self._objective.targets.base_scores()
        lows = features.categorical[self._rows].min(axis=0, initial=features.embedding_rows).astype(np.int64)
        self.start = Start(constants, lows, len(features.numeric_fields), model)

    def inputs(self, rows: Rows) -> BoostingInputs:
        return self.start.inputs(self._records.features, rows, None if self._scores is None else self._scores[rows])

    def task(self) -> BoostingTask:
        return BoostingTask(self.inputs(self._rows), self._objective, self._records.seed, self._records.threads)


def _straightened(objective: NoisyLabelObjective, scores: Floats) -> Floats:
    """Return (a, b) for which `a + b·score` makes the noisy labels most likely: Newton's method, by the information.

    Shrunk models are too timid, and b is a little above 1. Where noise hides it, the prior keeps it at 1.
    """
    found, design = np.array([0.0, 1.0]), np.stack([np.ones(len(scores)), scores], axis=1)
    prior, precision = found.copy(), np.diag([1.0, 1 / _SLOPE_VARIANCE])
    for _ in range(_CALIBRATION_ROUNDS):
        gradient, hessian = objective.gradient_and_hessian(design @ found)
        slope = design.T @ gradient + precision @ (found - prior)
        step = np.linalg.solve(design.T @ (hessian[:, None] * design) + precision, slope)
        found = found - step
        if np.abs(step).max() < 1e-6:
            break
    return found


lightgbm = partial(train_trees, engine="lightgbm")
xgboost = partial(train_trees, engine="xgboost")
plain_lightgbm = partial(train_trees, engine="lightgbm", plain=True)
