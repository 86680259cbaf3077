"""Criteo-shaped records with known label probabilities.

A *world*, drawn from the seed, fixes what every category and number is worth; records are drawn from it in chunks,
chunk c from (seed, c) alone, so that the first n records are the same whatever the total and no more than a chunk is
ever in work. Numbers are standard normal; a category of a vocabulary of V values is floor((V + 1)**u) - 1 with u
uniform, so that value v has probability ln((v + 2) / (v + 1)) / ln(V + 1): a long tail, as in logs of clicks. The score
of a record is

    signal * (sqrt(0.45) * numbers + sqrt(0.45) * categories + sqrt(0.1) * numbers' * categories') + intercept,

each of the four a weighted sum of mean 0 and variance 1 (a field's weight is normal, and divided by ln(V + 1), so that
most of what there is to learn lies in values that are seen often); two classes take the sigmoid of one score, k classes
the softmax of k. As the label is drawn from that probability, no classifier can expect to do better than it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tpsl.data.config import SyntheticData
from tpsl.data.features import Features
from tpsl.data.order import split_rows
from tpsl.data.party_file import numbered_ids
from tpsl.data.sides import FeatureSide, LabelRecords, LabelSide, Relabelling
from tpsl.data.true_labels import TrueLabels
from tpsl.progress import Progress, no_progress
from tpsl.tables import DataError

FEATURE_PARTY = "feature"
CHUNK_ROWS = 1 << 16
SMALLEST_VOCABULARY = 4
NUMBERS_SHARE, CATEGORIES_SHARE, INTERACTION_SHARE = 0.45, 0.45, 0.1

# Streams of randomness, the second part of each key: (seed, stream, ...).
WORLD, CATEGORY_WORTH, RECORDS, LABELS, CALIBRATION = range(5)


@dataclass(frozen=True)
class Chunk:
    """Consecutive records: `first` is the number of the first one."""

    first: int
    categorical: npt.NDArray[np.int32]  # [n, F], values from 0 within each field
    numeric: npt.NDArray[np.float32]
    probabilities: npt.NDArray[np.float64]  # [n, classes]
    labels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.categorical)


class World:
    """The truth behind the records of one configuration: vocabularies, and what each value is worth."""

    def __init__(self, config: SyntheticData, relabelling: Relabelling | None = None) -> None:
        self.config, self._relabelling = config, relabelling
        self.scores = 1 if config.classes == 2 else config.classes
        self.vocabularies = (
            np.geomspace(SMALLEST_VOCABULARY, config.largest_vocabulary, max(config.categorical_fields, 1))
            .round()
            .astype(np.int64)[: config.categorical_fields]
        )
        if self.vocabularies.sum() > np.iinfo(np.int32).max:
            raise DataError(
                f"largest_vocabulary: {config.largest_vocabulary} makes an embedding table of more than 2**31 rows"
            )
        rng = _generator(config.seed, WORLD)
        # [part, field, score]: part 0 enters the sum, part 1 the interaction.
        self._number_weights = _unit_columns(rng.standard_normal((2, config.numeric_fields, self.scores)))
        category_weights = rng.standard_normal((2, config.categorical_fields, self.scores))
        self._category_weights = _unit_columns(category_weights / np.log(self.vocabularies + 1.0)[:, None])
        self._category_worth = [self._worth(field, size) for field, size in enumerate(self.vocabularies)]
        self._intercept = 0.0
        if config.classes == 2:
            self._intercept = self._calibrated_intercept()

    @property
    def numeric_fields(self) -> tuple[str, ...]:
        """Names as in Criteo's logs: I1, I2, ..."""
        return tuple(f"I{number + 1}" for number in range(self.config.numeric_fields))

    @property
    def categorical_fields(self) -> tuple[str, ...]:
        """Names as in Criteo's logs: C1, C2, ..."""
        return tuple(f"C{number + 1}" for number in range(self.config.categorical_fields))

    def chunks(self, progress: Progress = no_progress) -> Iterator[Chunk]:
        """Yield the records of the configuration in order, at most `CHUNK_ROWS` at a time."""
        rows = self.config.rows
        for first in range(0, rows, CHUNK_ROWS):
            chunk = self._chunk(first // CHUNK_ROWS, min(CHUNK_ROWS, rows - first))
            if self._relabelling is not None:
                chunk = replace(chunk, labels=self._relabelling(chunk.labels, self.config.classes, chunk.first))
            yield chunk
            progress(first + len(chunk), rows, "drawing synthetic records")

    def _chunk(self, number: int, rows: int) -> Chunk:
        # The whole chunk is drawn and scored, then cut: its first records must not depend on how many are wanted, and
        # the last bit of a matrix product may depend on the number of rows.
        categorical, numeric = self._records(_generator(self.config.seed, RECORDS, number))
        uniform = _generator(self.config.seed, LABELS, number).random((CHUNK_ROWS, 1))
        probabilities = self._probabilities(categorical, numeric)
        labels = (uniform >= np.cumsum(probabilities, axis=1)[:, :-1]).sum(axis=1).astype(np.int64)
        return Chunk(number * CHUNK_ROWS, categorical[:rows], numeric[:rows], probabilities[:rows], labels[:rows])

    def _records(self, rng: np.random.Generator) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        numeric = rng.standard_normal((CHUNK_ROWS, self.config.numeric_fields), dtype=np.float32)
        uniform = rng.random((CHUNK_ROWS, self.config.categorical_fields))
        values = np.floor(np.exp(uniform * np.log(self.vocabularies + 1.0))).astype(np.int32) - 1
        return np.minimum(values, (self.vocabularies - 1).astype(np.int32)), numeric

    def _worth(self, field: int, vocabulary: int) -> npt.NDArray[np.float32]:
        """Return what each value of a field is worth, [value, part, score], mean 0 and variance 1 over records."""
        worth = _generator(self.config.seed, CATEGORY_WORTH, field).standard_normal((vocabulary, 2, self.scores))
        value = np.arange(vocabulary)
        chance = (np.log1p(1 / (value + 1.0)) / np.log(vocabulary + 1.0))[:, None, None]
        worth -= (chance * worth).sum(axis=0)
        worth /= np.sqrt((chance * worth**2).sum(axis=0))
        return worth.astype(np.float32)

    def _scores(self, categorical: npt.NDArray[np.int32], numeric: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        numbers = [numeric @ weights for weights in self._number_weights]
        categories = [np.zeros((len(categorical), self.scores)) for _ in range(2)]
        for field, worth in enumerate(self._category_worth):
            of_records = worth.take(categorical[:, field], axis=0)
            for part in range(2):
                categories[part] += of_records[:, part] * self._category_weights[part, field]
        parts = [
            (NUMBERS_SHARE, numbers[0]),
            (CATEGORIES_SHARE, categories[0]),
            (INTERACTION_SHARE, numbers[1] * categories[1]),
        ]
        has = (self.config.numeric_fields > 0, self.config.categorical_fields > 0)
        present = [part for part, there in zip(parts, (*has, all(has)), strict=True) if there]
        whole = sum(share for share, _ in present)
        score = sum(np.sqrt(share / whole) * values for share, values in present)
        return self.config.signal * np.asarray(score, dtype=np.float64)

    def _probabilities(
        self, categorical: npt.NDArray[np.int32], numeric: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float64]:
        scores = self._scores(categorical, numeric) + self._intercept
        if self.config.classes == 2:
            scores = np.concatenate([np.zeros_like(scores), scores], axis=1)
        scores -= scores.max(axis=1, keepdims=True)
        exponentials = np.exp(scores)
        return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True))

    def _calibrated_intercept(self) -> float:
        """Find by bisection the intercept that gives the wanted share of positives on a chunk drawn for this alone."""
        scores = self._scores(*self._records(_generator(self.config.seed, CALIBRATION)))
        low, high = -100.0, 100.0
        for _ in range(60):
            middle = (low + high) / 2
            share = (0.5 + 0.5 * np.tanh((scores + middle) / 2)).mean()
            low, high = (middle, high) if share < self.config.positive_rate else (low, middle)
        return (low + high) / 2


def feature_side(
    config: SyntheticData, progress: Progress = no_progress, relabelling: Relabelling | None = None
) -> FeatureSide:
    """Draw all records and keep the features; every field has as many embedding rows as its vocabulary has values."""
    world = World(config, relabelling)
    offsets = np.concatenate([[0], np.cumsum(world.vocabularies)])
    categorical = np.empty((config.rows, config.categorical_fields), dtype=np.int32)
    numeric = np.empty((config.rows, config.numeric_fields), dtype=np.float32)
    for chunk in world.chunks(progress):
        rows = slice(chunk.first, chunk.first + len(chunk))
        np.add(chunk.categorical, offsets[:-1].astype(np.int32), out=categorical[rows])
        numeric[rows] = chunk.numeric
    features = Features(categorical, numeric, int(offsets[-1]), world.categorical_fields, world.numeric_fields)
    train, test = split_rows(config.rows, config.split, config.test_fraction, config.split_seed)
    return FeatureSide(FEATURE_PARTY, numbered_ids(0, config.rows), features, train, test)


def label_side(
    config: SyntheticData, progress: Progress = no_progress, relabelling: Relabelling | None = None
) -> LabelSide:
    """Draw all records and keep the labels."""
    labels = np.empty(config.rows, dtype=np.int64)
    for chunk in World(config, relabelling).chunks(progress):
        labels[chunk.first : chunk.first + len(chunk)] = chunk.labels
    train, test = split_rows(config.rows, config.split, config.test_fraction, config.split_seed)
    records = LabelRecords(numbered_ids(0, config.rows), None, config.class_names, train, test)
    return LabelSide(records, TrueLabels(labels, config.class_names))


def _generator(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(list(key))))


def _unit_columns(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Scale the weights over the fields (axis 1) to length 1, so that a sum of unit-variance fields has variance 1."""
    if weights.shape[1] == 0:
        return weights
    return np.asarray(weights / np.linalg.norm(weights, axis=1, keepdims=True))
