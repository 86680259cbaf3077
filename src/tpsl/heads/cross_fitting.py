"""The wide part of the network: an additive model of one party's own fields, fitted on noisy labels.

A deep network learns what the labels say of a field only while it learns everything else, and at small ε the noise is
learned faster. The additive model (`tpsl.heads.additive`) has few effects for each field, each shrunk by how much the
field's effects vary, and nothing has to be tuned. All of it is post-processing of the noisy labels.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tpsl.data.features import Features
from tpsl.data.order import FOLD_STREAM, Rows, permutation, subset_rows
from tpsl.data.out_of_core import RowStack, others
from tpsl.heads.additive import AdditiveModel
from tpsl.progress import Progress, no_progress

SCORE_FIELD = "wide score"
MOST_RECORDS = 1 << 24
"""What the model is fitted on at most, so that time and memory have a bound.

Measured on synthetic records (39 fields, up to 100,000 categories each, ε = 1): fitted on 1, 2, 4 and 8 million it has
a test AUC of 0.7921, 0.7961, 0.7996 and 0.8028.
"""
_MANY_RECORDS = 1 << 22
_FOLDS, _FOLDS_OF_MANY = 5, 2
"""n folds take as long as n fits on all records. Where there are many, two are enough: on 110,000 records of Criteo at
ε = 1 the network's test AUC is 0.7389 with either number (three seeds)."""
_COPIED_AT_ONCE = 1 << 18  # records
_FITTING = "fitting the wide part"


def cross_fit(
    features: Features,
    rows: Rows,
    estimates: npt.NDArray[np.floating],
    seed: int,
    progress: Progress = no_progress,
) -> tuple[AdditiveModel, npt.NDArray[np.float32]]:
    """Return the model of these rows, and a score for every row of the features.

    A row that was fitted is scored by a model of the other four fifths, or of the other half where there are many: its
    own noisy label has no part in its score. A network that sees scores of such a model would otherwise learn to trust
    its noise. All other rows are scored by the model itself. Of more than `MOST_RECORDS` rows as many are fitted, drawn
    by the seed.
    """
    progress(0, 0, _FITTING)
    from tpsl.heads.backfitting import STEPS, fit_additive  # loads Numba

    if len(rows) > MOST_RECORDS:
        drawn = subset_rows(len(rows), MOST_RECORDS, seed)
        rows, estimates = rows[drawn], estimates[drawn]
    count = _folds(len(rows))
    steps = iter(range(1, (1 + count) * STEPS + 1))

    def step() -> None:
        progress(next(steps), (1 + count) * STEPS, _FITTING)

    model = fit_additive(features, rows, estimates, step)
    scores = np.empty(len(features), dtype=np.float32)
    rest = others(len(features), rows)
    scores[rest] = model.scores(features, rest)
    folds = permutation(len(rows), FOLD_STREAM, seed) % count
    for fold in range(count):
        inside = folds == fold
        without = fit_additive(features, rows[~inside], estimates[~inside], step)
        scores[rows[inside]] = without.scores(features, rows[inside])
    return model, scores


def _folds(fitted: int) -> int:
    return min(_FOLDS if fitted <= _MANY_RECORDS else _FOLDS_OF_MANY, max(fitted - 1, 1))


def with_scores(features: Features, scores: npt.NDArray[np.float32]) -> Features:
    """Return the features with the score of each row as their last number, as a bottom half with a wide part reads."""
    numbers = RowStack(np.float32, features.numeric.shape[1] + 1)
    for start in range(0, len(features), _COPIED_AT_ONCE):
        part = slice(start, start + _COPIED_AT_ONCE)
        numbers.add(np.concatenate([features.numeric[part], scores[part, None]], axis=1))
        features.release_pages()
    return Features(
        features.categorical,
        numbers.finish(),
        features.embedding_rows,
        features.categorical_fields,
        (*features.numeric_fields, SCORE_FIELD),
    )


def newly_scored_features(features: Features, model: AdditiveModel) -> Features:
    """Return features of any records with the scores that a wide part gives them."""
    return with_scores(features, model.scores(features, np.arange(len(features), dtype=np.int64)))


def unscored_features(features: Features) -> Features:
    """Return the features with a score of 0 for each record: what a half sees before there are noisy labels."""
    return with_scores(features, np.zeros(len(features), dtype=np.float32))
