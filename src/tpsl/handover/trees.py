"""Boosted trees on noisy labels, by LightGBM.

    fitted = fit(LearnerRecords(features, rows, targets, held_out))
    fitted.model.probabilities(features)

For two classes an additive model of the fields comes first (`tpsl.heads.wide_part`), and trees learn what it
leaves over, from the numbers and from its score. Categories are its business: trees that group the categories of a
field by their noisy labels find mostly noise. As in the wide part of a network, a record that is fitted is scored by
a model that has not seen its noisy label. With more classes, and in the `plain` form, trees get the categories
themselves and start from the shares of the classes.

The Hessian of `NoisyLabelObjective` counts in clean labels. So the least Hessian of a leaf and the penalty of its value
hold at every ε and number of records: where noise leaves little, few leaves are made, or none. The hold-out chooses the
number of trees, none included. Then everything is fitted once more with its records.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save

from tpsl.data.features import Features
from tpsl.data.order import Rows
from tpsl.files import make_private_folder, write_atomically
from tpsl.handover.objective import Floats, NoisyLabelObjective, NoisyTargets, as_probabilities, mixture_log_likelihoods
from tpsl.heads.wide_part import AdditiveModel, cross_fit

_ROUNDS, _PATIENCE = 500, 30
_CLEAR_GAIN = 0.1
"""Nats by which the hold-out must like it better within that patience; less is noise, and costs time."""
_RECORDS_OF_A_LEAF = 100
"""How many clean labels a leaf's records are worth, at least."""
_BINS = 63
_SETTINGS = {
    "metric": "none",
    "num_leaves": 31,
    "learning_rate": 0.05,
    "lambda_l2": 30.0,  # a leaf's prior is normal with a variance of 1/30 in log-odds, before the learning rate
    "feature_fraction": 0.5,
    # The categories of a column are grouped by their noisy labels, which finds noise unless it is held back.
    "cat_l2": 100.0,
    "cat_smooth": 50.0,
    "deterministic": True,
    "force_row_wise": True,
    "verbose": -1,
}
_ADDITIVE = "additive."
_CALIBRATION_ROUNDS = 20
_SLOPE_VARIANCE = 0.1
"""Of the prior of the slope that straightens scores of the additive model; its mean is 1."""


class LearnerError(ValueError):
    """Records that trees cannot learn from, or a model that cannot be read; the sentence says which and why."""


@dataclass(frozen=True)
class LearnerRecords:
    """Features, and noisy labels of some of their rows."""

    features: Features
    rows: Rows
    """The rows with noisy labels."""
    targets: NoisyTargets
    """Their noisy labels, in the same order."""
    held_out: Rows
    """Positions among `rows` of the hold-out, ascending; what is chosen is chosen by its noisy labels."""
    seed: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.targets):
            raise ValueError(f"{len(self.rows)} rows with the noisy labels of {len(self.targets)}")
        if not 0 < len(self.held_out) < len(self.rows):
            raise ValueError(f"of {len(self.rows)} records, {len(self.held_out)} are held out: both parts need one")

    @property
    def trained(self) -> Rows:
        """Positions among `rows` of the records that are not held out."""
        return np.delete(np.arange(len(self.rows), dtype=np.int64), self.held_out)


@dataclass(frozen=True)
class _Inputs:
    """Records as boosting sees them."""

    columns: npt.NDArray[np.float32]
    categorical: list[int]
    """The columns that hold codes of categories."""
    start: Floats
    """Log-odds before the first tree, `[n]` or `[n, k]`."""

    def data(self, like: Any = None) -> Any:
        """Return them for LightGBM."""
        return _lightgbm().Dataset(
            self.columns,
            label=np.zeros(len(self.columns)),
            init_score=self.start,
            categorical_feature=self.categorical,
            reference=like,
            params={"max_bin": _BINS, "verbose": -1},
        )


@dataclass(frozen=True)
class TreeModel:
    """An additive model, straightened, or the shares of the classes, and the trees that correct it."""

    constants: Floats
    """With an additive model, (a, b) of `a + b·score`; without, the log-odds of class 1 or a score of each class."""
    lows: npt.NDArray[np.int64]
    """The lowest category of each field."""
    numbers: int
    """How many numeric fields there are."""
    additive: AdditiveModel | None
    booster: Any = None
    """The `lightgbm.Booster`; None where the hold-out liked no tree."""

    def inputs(self, features: Features, rows: Rows, scores: npt.NDArray[np.float32] | None = None) -> _Inputs:
        """Return these rows as boosting sees them; `scores` are theirs by the additive model where they are known."""
        found = (len(features.categorical_fields), len(features.numeric_fields))
        if found != (len(self.lows), self.numbers):
            known = f"{len(self.lows)} categorical and {self.numbers} numeric fields"
            raise LearnerError(f"the trees read {known}, not {found[0]} and {found[1]}")
        numeric = features.numeric[rows]
        if self.additive is not None:
            own = self.additive.scores(features, rows) if scores is None else scores
            start = self.constants[0] + self.constants[1] * own.astype(np.float64)
            return _Inputs(np.concatenate([numeric, own[:, None]], axis=1), [], start)
        codes = (features.categorical[rows] - self.lows).astype(np.float32)
        codes[codes < 0] = np.nan  # a category that training did not see
        categorical = list(range(self.numbers, self.numbers + len(self.lows)))
        start = np.tile(self.constants, (len(rows), 1)) if len(self.constants) > 1 else self.constants.repeat(len(rows))
        return _Inputs(np.concatenate([numeric, codes], axis=1), categorical, start)

    def log_odds(self, features: Features) -> Floats:
        """Return the log-odds of class 1 of each record (`[n]`), or a score of each class (`[n, k]`)."""
        inputs = self.inputs(features, np.arange(len(features), dtype=np.int64))
        return inputs.start if self.booster is None else inputs.start + _raised(self.booster, inputs)

    def probabilities(self, features: Features) -> npt.NDArray[np.float32]:
        """Return the probability of class 1 (`[n]`), or of each class (`[n, k]`)."""
        return as_probabilities(self.log_odds(features))

    def save(self, path: Path) -> None:
        """Write what trees start from, and LightGBM's text of the trees, as a file of tensors."""
        additive = {} if self.additive is None else self.additive.tensors()
        grown = b"" if self.booster is None else self.booster.model_to_string().encode()
        make_private_folder(path.parent)
        tensors = {
            "constants": torch.from_numpy(self.constants),
            "lows": torch.from_numpy(self.lows),
            "numbers": torch.tensor([self.numbers]),
            "trees": torch.from_numpy(np.frombuffer(bytearray(grown), np.uint8)),
            **{f"{_ADDITIVE}{name}": tensor for name, tensor in additive.items()},
        }
        write_atomically(path, save(tensors))

    @classmethod
    def load(cls, path: Path) -> TreeModel:
        """Return the model that `save` has written; a file that holds none is an error in one sentence."""
        try:
            tensors = load_file(path)
            own = {name.removeprefix(_ADDITIVE): t for name, t in tensors.items() if name.startswith(_ADDITIVE)}
            additive, grown = AdditiveModel.from_tensors(own) if own else None, tensors["trees"].numpy().tobytes()
            booster = _lightgbm().Booster(model_str=grown.decode()) if grown else None
            constants, lows = tensors["constants"].numpy(), tensors["lows"].numpy()
            return cls(constants, lows, int(tensors["numbers"]), additive, booster)
        except LearnerError:
            raise
        except Exception as error:  # of LightGBM, whatever its text of trees may be
            raise LearnerError(f"{path}: its model cannot be read ({error})") from error


@dataclass(frozen=True)
class Fitted:
    """Trees that have learned from the records."""

    rounds: int
    """Of boosting, as the hold-out chose; none where trees only add noise."""
    model: TreeModel
    """Fitted on all records, those of the hold-out included."""
    predicted: npt.NDArray[np.float32]
    """Probabilities of the hold-out, by as many rounds without it."""
    evidence: float
    """How much more likely the hold-out's noisy labels are than under the shares of the classes alone, in nats."""


def fit(records: LearnerRecords, *, plain: bool = False) -> Fitted:
    """Grow trees, as many as the hold-out likes, and grow them again with its records.

    Guarantee: a function of features and noisy labels, so post-processing of them. `plain` is without the additive
    model: what one would do first.
    """
    additive = not plain and records.targets.classes == 2
    hold_out = NoisyLabelObjective(records.targets.take(records.held_out))
    fitting = _Fitting(records, records.trained, additive)
    held = fitting.inputs(records.rows[records.held_out])
    rounds, log_odds = fitting.chosen(held, hold_out)
    whole = _Fitting(records, np.arange(len(records.rows), dtype=np.int64), additive)
    model = replace(whole.start, booster=whole.grown(rounds)) if rounds else whole.start
    shares = np.log(records.targets.take(records.trained).class_shares())
    alone = mixture_log_likelihoods(hold_out.targets.log_likelihood(), shares[None, :])
    evidence = float((hold_out.log_likelihoods(log_odds) - alone).sum())
    return Fitted(rounds, model, as_probabilities(log_odds), evidence)


class _Fitting:
    """The start for some records, and trees grown on them."""

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
        self.start = TreeModel(constants, lows, len(features.numeric_fields), model)
        self._data = self.inputs(self._rows).data()

    def inputs(self, rows: Rows) -> _Inputs:
        return self.start.inputs(self._records.features, rows, None if self._scores is None else self._scores[rows])

    def chosen(self, held: _Inputs, hold_out: NoisyLabelObjective) -> tuple[int, Floats]:
        """Grow until the hold-out likes it less; return the number of trees that it likes best, and its log-odds."""
        classes = self._records.targets.classes
        most = _ROUNDS if classes == 2 else max(20, 10 * _ROUNDS // classes)  # with many a round is many trees
        grown = self.grown(
            most,
            valid_sets=[held.data(like=self._data)],
            valid_names=["hold-out"],
            feval=lambda scores, _: ("likelihood", float(hold_out.log_likelihoods(scores).sum()), True),
            callbacks=[_lightgbm().early_stopping(_PATIENCE, verbose=False, min_delta=_CLEAR_GAIN)],
        )
        found = held.start + _raised(grown, held)  # by the best number of trees
        if hold_out.log_likelihoods(found).sum() <= hold_out.log_likelihoods(held.start).sum() + _CLEAR_GAIN:
            return 0, held.start
        return int(grown.best_iteration), found

    def grown(self, rounds: int, **watched: Any) -> Any:
        """Grow this number of trees for each score."""
        classes, shares = self._records.targets.classes, self._objective.targets.class_shares()
        settings = _SETTINGS | {
            "objective": self._objective,
            "min_sum_hessian_in_leaf": _RECORDS_OF_A_LEAF * float((shares * (1 - shares)).mean()),
            "seed": self._records.seed % (1 << 31),
            "num_threads": self._records.threads,
            **({} if classes == 2 else {"num_class": classes}),
        }
        return _lightgbm().train(settings, self._data, num_boost_round=rounds, **watched)


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


def _raised(booster: Any, inputs: _Inputs) -> Floats:
    """Return what trees add to the log-odds of each record."""
    return np.asarray(booster.predict(inputs.columns, raw_score=True), dtype=np.float64)


def _lightgbm() -> Any:
    try:
        import lightgbm as library
    except ImportError:
        raise LearnerError("LightGBM is not installed: `pip install 'tpsl[trees]'` gets it") from None
    return library
