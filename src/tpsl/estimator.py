"""`SplitClassifier`: split learning with private labels behind scikit-learn's interface, for those who want to try.

All parties are in this one process. What is computed is what two organisations compute with the same job: `fit` is
`tpsl.run.one_process.train` on a data set made of the arrays, in a run folder that is gone when it returns.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tpsl.data.data_frames import Block, is_frame, read_block
from tpsl.data.dataset import Dataset
from tpsl.data.encoder import EncoderState, IndexedCategories, learn
from tpsl.data.features import Features
from tpsl.data.sides import FeatureSide, LabelRecords, LabelSide
from tpsl.data.true_labels import TrueLabels
from tpsl.model.predictors import TrainedHalves
from tpsl.model.trained import TrainedModel
from tpsl.net.messages import LABEL_PARTY
from tpsl.run.job import Job, make_job
from tpsl.run.one_process import train
from tpsl.run.releases import check_first_releases
from tpsl.run.vaults import VaultChoice
from tpsl.vault import ReleasePolicy
from tpsl.vault.cost import DEFAULT_MAX_EPSILON
from tpsl.workers import one_thread

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_array, check_consistent_length, check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError("SplitClassifier needs scikit-learn 1.6 or newer: pip install 'tpsl[sklearn]'") from error

_FEATURE_PARTY = "feature"
_STEPS = 500
_MEMORY = Path("/dev/shm")  # noqa: S108
_ENOUGH_MEMORY = 1 << 30


class SplitClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that learns across a border: features on one side, labels on the other, ε between them.

    `fit(X, y)`: X is the feature party's, y the label party's. `parties` divides the columns of X among several feature
    parties, and the label party if it has features of its own. Data frames may have categorical columns (text or
    category); a missing value (NaN) is a value like any other.

    Guarantee: the trained network, and all that the feature party sees of the labels, is (ε, δ)-differentially private
    in each label, with the exact ε in `epsilon_`. Not protected are the *set* of classes, unless `classes` gives it,
    and what is computed from y elsewhere: `score`, and the choice of parameters by it.

    **Without `vault` a fit is a scratch run that no total counts: it draws fresh noise, and what fits release of the
    same labels adds up**: a grid search of 20 fits at ε = 1 costs ε = 20, and nobody is told. With `vault`, a folder of
    the label party's, each label is released once for all fits, whatever folds and parameters other than ε and
    mechanism they use; records are known by the index of the data frame X.

    Parameters
    ----------
    epsilon : float
        The privacy of one fit, smaller is more private; `float("inf")` trains without noise, with `not_private`.
    mechanism : str
        How labels become noisy; "auto" takes the least noise for ε and the number of classes.
    classes : sequence, optional
        All classes that may occur, known to everybody; None takes those that occur in y.
    parties : mapping, optional
        Which columns of X (names or positions) each party has, by its name; "label" is the label party.
    epochs : int, optional
        How often each record is used; None: as often as makes 500 steps, from 2 to 20.
    batch_size : int, optional
        Records in a step; None: a 64th of them, from 8 to 1024.
    learning_rate : float
        Of Adam, in both halves.
    bottom, top : sequence of int
        Widths of the layers of each bottom half and of the top half.
    embedding_dim : int
        Width of each category's embedding.
    members : int
        Networks trained side by side on the same noisy labels; costs no ε.
    wide : bool
        Fit an additive model of each party's columns first, for two classes; helps at small ε and costs none.
    averaging : float
        Decay of the weight average that predicts, as 0.995; 0: none.
    min_count : int
        A category that fewer training records have counts as unseen.
    vault : path, optional
        Where the label party keeps labels and releases, for all fits; None: a vault for this fit alone.
    random_state : int, RandomState or None
        Fixes batches and initial weights. Never the noise.
    noise_seed : int, optional
        Fixes the noise, for experiments, with `not_private`.
    max_epsilon : float
        The most that a label may have spent in all, releases of earlier fits from the `vault` counted.
    not_private : bool
        Permit a fit that promises nothing: no noise, or seeded noise.

    Attributes
    ----------
    classes_ : array
        The classes, in the order of `predict_proba`.
    epsilon_, delta_ : float
        What this fit's release cost each label, from the integers that were sampled.
    private_ : bool
        False for seeded noise and for none: then `epsilon_` promises nothing.
    privacy_spent_ : float
        The largest total ε of any label of the fit, all releases of the vault counted.
    halves_ : TrainedHalves
        The trained halves of the network.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.
    """

    classes_: npt.NDArray[Any]
    n_features_in_: int
    epsilon_: float
    delta_: float
    private_: bool
    privacy_spent_: float
    halves_: TrainedHalves
    _categorical: tuple[bool, ...]
    _shares: dict[str, list[int]]
    _encoders: dict[str, EncoderState]

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        mechanism: str = "auto",
        classes: Sequence[Any] | None = None,
        parties: Mapping[str, Sequence[str | int]] | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float = 1e-3,
        bottom: Sequence[int] = (128, 128),
        top: Sequence[int] = (128, 128),
        embedding_dim: int = 16,
        members: int = 1,
        wide: bool = False,
        averaging: float = 0.0,
        min_count: int = 2,
        vault: str | os.PathLike[str] | None = None,
        random_state: Any = None,
        noise_seed: int | None = None,
        max_epsilon: float = DEFAULT_MAX_EPSILON,
        not_private: bool = False,
    ) -> None:
        self.epsilon = epsilon
        self.mechanism = mechanism
        self.classes = classes
        self.parties = parties
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.bottom = bottom
        self.top = top
        self.embedding_dim = embedding_dim
        self.members = members
        self.wide = wide
        self.averaging = averaging
        self.min_count = min_count
        self.vault = vault
        self.random_state = random_state
        self.noise_seed = noise_seed
        self.max_epsilon = max_epsilon
        self.not_private = not_private

    def fit(self, X: Any, y: Any) -> Self:
        """Train on X and y.

        A fit that costs more than is permitted, or y with a few other values than a label in the `vault`, is a
        `VaultError` before anything is released.
        """
        numbers = self._class_numbers(y)
        block = self._read(X, reset=True)
        check_consistent_length(X, numbers)
        self._shares = self._columns_of_parties(block)
        job, policy = self._job(block), ReleasePolicy(_plain(self.max_epsilon), self.not_private)
        check_first_releases(job, len(self.classes_), block.rows, policy)
        if job.privacy.noise_seed is not None:
            warnings.warn("the noise is seeded: this fit is NOT private", stacklevel=2)
        ids = self._record_ids(X, block.rows)
        tables = {party: block.table(columns, ids) for party, columns in self._shares.items()}
        categories, everything = IndexedCategories(_plain(self.min_count)), np.arange(block.rows)
        encoded = {party: learn(table, categories, everything) for party, table in tables.items()}
        self._encoders = {party: encoder for party, (encoder, _) in encoded.items()}
        features = {party: found for party, (_, found) in encoded.items()}
        with one_thread(), tempfile.TemporaryDirectory(prefix="tpsl-", dir=_folder_in_memory()) as folder:
            run, data = Path(folder) / "run", _dataset(features, ids, numbers, self.classes_)
            path, scratch = None if self.vault is None else Path(self.vault), self.vault is None
            vault = VaultChoice(path, policy, scratch=scratch)
            result = train(job, run, vault=vault, data=data)
            self.halves_ = TrainedModel.open(run).halves(features)
        self.epsilon_, self.delta_, self.private_ = result.epsilon, result.delta, result.private
        self.privacy_spent_ = result.total_epsilon
        return self

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the probability of each class of `classes_`."""
        check_is_fitted(self)
        block = self._read(X, reset=False)
        nobody = pa.nulls(block.rows, pa.string())
        features = {
            party: self._encoders[party].encode(block.table(columns, nobody)) for party, columns in self._shares.items()
        }
        with one_thread():
            probabilities = self.halves_.probabilities(features).astype(np.float64)
        if probabilities.ndim == 1:
            return np.column_stack([1.0 - probabilities, probabilities])
        return np.asarray(probabilities / probabilities.sum(axis=1, keepdims=True))

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the most probable class."""
        most_probable = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[most_probable])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.non_deterministic = self.noise_seed is None and self.epsilon != math.inf
        return tags

    def _class_numbers(self, y: Any) -> npt.NDArray[np.int64]:
        """Return the position of each label among `classes_`, which is set here."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        y = np.asarray(validate_data(self, y=y))
        check_classification_targets(y)
        classes = np.unique(y if self.classes is None else np.asarray(self.classes))
        if len(classes) < 2:
            where = "y has one class only" if self.classes is None else f"`classes` is {self.classes!r}"
            raise ValueError(f"{type(self).__name__} needs two classes or more, and {where}")
        unknown = ~np.isin(y, classes)
        if unknown.any():
            raise ValueError(f"the label {y[unknown][0]!r} is not among `classes`")
        self.classes_ = classes
        numbers: npt.NDArray[np.int64] = np.searchsorted(classes, y).astype(np.int64)
        return numbers

    def _read(self, X: Any, *, reset: bool) -> Block:
        """Return all columns of X; unless `reset`, they must be those that `fit` got."""
        if not is_frame(X):
            X = check_array(X, dtype=np.float64, ensure_all_finite="allow-nan", estimator=self, input_name="X")
        validate_data(self, X, reset=reset, skip_check_array=True)
        if not len(X) or not X.shape[1]:
            raise ValueError(f"X has {len(X)} records and {X.shape[1]} columns: there is nothing to learn from")
        block = read_block("X", X, None if reset else self._categorical)
        if reset:
            self._categorical = block.categorical
        return block

    def _columns_of_parties(self, block: Block) -> dict[str, list[int]]:
        """Return the positions of the columns that each party has; the label party is last."""
        if self.parties is None:
            return {_FEATURE_PARTY: list(range(len(block.columns)))}
        shares = {party: [_position(column, block) for column in columns] for party, columns in self.parties.items()}
        held = [at for columns in shares.values() for at in columns]
        for at, name in enumerate(block.names):
            if held.count(at) != 1:
                raise ValueError(f"`parties` gives the column {name!r} of X to {held.count(at)} parties, not to one")
        own = shares.pop(LABEL_PARTY, [])
        if not shares:
            raise ValueError("`parties` names no feature party")
        return {**shares, **({LABEL_PARTY: own} if own else {})}

    def _record_ids(self, X: Any, records: int) -> Any:
        """Return an id for each record: in a vault that outlives the fit, the index of the data frame."""
        if self.vault is None:
            return pa.array(np.arange(records)).cast(pa.string())
        if self.classes is None:
            raise ValueError("a `vault` keeps the numbers of classes, so give `classes`: all that may ever occur")
        index = getattr(X, "index", None)
        if index is None or not getattr(index, "is_unique", False):
            raise ValueError("with a `vault`, X must be a pandas data frame whose index names each record once")
        return pa.array([str(name) for name in index], pa.string())

    def _job(self, block: Block) -> Job:
        """Return the job of this fit; a wrong parameter is an error that names it."""
        for name, value in (("privacy.epsilon", self.epsilon), ("max_epsilon", self.max_epsilon)):
            if isinstance(value, bool) or not isinstance(value, Real):
                raise ValueError(f"{type(self).__name__}: {name}: must be a number, got {value!r}")
        if self.mechanism == "none" and self.epsilon != math.inf:
            raise ValueError(f"epsilon is {self.epsilon}, but mechanism 'none' has no noise: its ε is float('inf')")
        noise = {"mechanism": self.mechanism, "epsilon": _plain(self.epsilon), "noise_seed": _plain(self.noise_seed)}
        batch_size = min(1024, max(8, block.rows // 64)) if self.batch_size is None else _plain(self.batch_size)
        epochs = _plain(self.epochs)
        if epochs is None:
            epochs = min(20, max(2, _STEPS * batch_size // block.rows)) if isinstance(batch_size, int) else 2
        updates = {"learning_rate": _plain(self.learning_rate)}
        content = {
            "data": self._described(block),
            "privacy": {"mechanism": "none"} if self.epsilon == math.inf else noise,
            "model": {
                "bottom": _plain(self.bottom),
                "top": _plain(self.top),
                "embedding_dim": _plain(self.embedding_dim),
                "members": _plain(self.members),
                "wide": _plain(self.wide),
            },
            "training": {
                "epochs": epochs,
                "patience": 0,
                "batch_size": batch_size,
                "averaging": _plain(self.averaging),
                "seed": int(check_random_state(self.random_state).randint(2**31 - 1)),
                "feature_optimizer": updates,
                "label_optimizer": updates,
            },
        }
        return make_job(content, {}, type(self).__name__)

    def _described(self, block: Block) -> dict[str, Any]:
        """Return the data part of the job: tables with these columns, in no file."""
        files = {
            party: {
                "path": "X",
                "party": party,
                "id": "(record)",
                "categorical": [block.names[at] for at in columns if block.categorical[at]],
                "numeric": [block.names[at] for at in columns if not block.categorical[at]],
            }
            for party, columns in self._shares.items()
        }
        label = {**files.pop(LABEL_PARTY, {"id": "(record)"}), "path": "y", "label": "(y)"}
        return {
            "source": "table",
            "features": list(files.values()),
            "label": label,
            "classes": len(self.classes_),
            "min_count": _plain(self.min_count),
        }


def _position(column: str | int, block: Block) -> int:
    if isinstance(column, str):
        if column not in block.names:
            raise ValueError(f"`parties` names the column {column!r}, which X does not have")
        return block.names.index(column)
    if not 0 <= column < len(block.names):
        raise ValueError(f"`parties` names the column {column!r}, and X has {len(block.names)} columns")
    return int(column)


def _dataset(
    features: dict[str, Features], ids: Any, numbers: npt.NDArray[np.int64], classes: npt.NDArray[Any]
) -> Dataset:
    """Return the records as a data set for training.

    A run evaluates test records, and here there are none: one is made up, the first record with a label that says
    nothing. So no true label is read but by the vault.
    """
    train = np.arange(len(numbers), dtype=np.int64)
    test, names = np.array([len(train)], dtype=np.int64), tuple(str(name) for name in classes)
    ids = pa.concat_arrays([ids, pa.array(["(made up)"])])
    held = {party: encoded.take(np.append(train, 0)) for party, encoded in features.items()}
    records = LabelRecords(ids, held.pop(LABEL_PARTY, None), names, train, test)
    sides = {party: FeatureSide(party, ids, encoded, train, test) for party, encoded in held.items()}
    return Dataset(sides, LabelSide(records, TrueLabels(np.append(numbers, 0), names)))


def _folder_in_memory() -> Path | None:
    """Return a folder in memory, if there is one: labels then touch no disk, and durable writes cost no time."""
    usable = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ENOUGH_MEMORY
    return _MEMORY if usable else None


def _plain(value: Any) -> Any:
    """Return NumPy's numbers, as a parameter grid may hold them, as Python's."""
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(part) for part in value]
    return value.item() if isinstance(value, np.generic) else value
