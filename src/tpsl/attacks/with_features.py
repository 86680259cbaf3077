"""The attacker who has features too: noisy label and features together, and the most that the two can tell.

For a record with features x and noisy label t, no score has a larger expected AUC than the log-odds of its label given
both (Neyman and Pearson),

    ln p(x) / (1 - p(x)) + λ_t,    p(x) = P(y = 1 | x),    λ_t = ln P(t | 1) / P(t | 0).

λ_t follows from the mechanism's table. p(x) is not known to anybody and has to be learned. The attacker learns it from
noisy labels; the label party, who wants to know how far any attacker could get, learns it from true ones. Both score a
record by a model of other records alone (out of fold): a model that has seen a record's own noisy label repeats it, and
it would count twice. With k classes there is one such sum for each class.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from tpsl.attacks.evidence import Evidence
from tpsl.data.features import Features
from tpsl.data.order import FOLD_STREAM, permutation
from tpsl.mechanisms import TOTAL, Mechanism, seeded_words
from tpsl.run.transcript import TranscriptStep

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

_BINS = 32
_FOLDS, _FOLDS_OF_MANY, _MANY = 5, 3, 50_000
"""Of many records two thirds are enough to learn from, and take less time."""
_FITTED_AT_MOST = 100_000
"""Records that one model is fitted on; more of them say little more."""
_SIMULATED = 100_000
_IMPOSSIBLE = -60.0


@dataclass(frozen=True)
class ReadTranscript:
    """What a whole transcript says about each of its records; all arrays have a row for each of `rows`."""

    rows: Rows
    """Ascending, each once."""
    evidence: Floats
    """`ln P(t | y = j)` up to a number of each record's own, shape `[n, k]`."""
    readable: npt.NDArray[np.bool_]
    """False where no step shows the noisy label."""
    logits: Floats
    """The network's prediction at the last step in which a record was seen, shape `[n, k]`."""


def read_transcript(steps: Iterable[TranscriptStep], rows: Rows, evidence: Evidence, classes: int) -> ReadTranscript:
    """Read the noisy label of each record off the first step that shows it; `rows` are those of the transcript."""
    found = ReadTranscript(
        rows, np.zeros((len(rows), classes)), np.zeros(len(rows), dtype=bool), np.zeros((len(rows), classes))
    )
    for seen in steps:
        at, reading = np.searchsorted(rows, seen.rows), evidence.read(seen)
        new = reading.readable & ~found.readable[at]
        found.evidence[at[new]] = _by_class(reading.evidence)[new]
        found.readable[at[new]] = True
        found.logits[at] = _by_class(reading.logits)
    return found


@dataclass(frozen=True)
class RowScores:
    """A score for each record that is the same at every step, as an attack returns it."""

    rows: Rows
    scores: Floats
    """Of each class, shape `[n, k]`."""

    def __call__(self, seen: TranscriptStep) -> Floats:
        """Return the scores of one step: `[n]` for two classes, `[n, k]` for k."""
        found = self.scores[np.searchsorted(self.rows, seen.rows)]
        return found[:, 1] - found[:, 0] if found.shape[1] == 2 else found


def noisy_label_with_features(read: ReadTranscript, features: Features, mechanism: Mechanism) -> RowScores:
    """The strongest attack of the suite: the noisy label, and a model of the label learned from all noisy labels.

    Uses no true label. The model is additive in the fields and some pairs of them (`tpsl.heads.wide_part`), fitted on
    unbiased estimates of the labels, out of fold. How far to trust it is one more number for all records, the one under
    which the noisy labels are most likely.
    """
    estimates = _unbiased(read.evidence, mechanism)
    learned = out_of_fold(features, read.rows, estimates, read.readable)
    weights, bias = most_likely_weights([learned], read.evidence)
    return RowScores(read.rows, weights[0] * learned + bias + read.evidence)


def best_combination(parts: Sequence[Floats], labels: npt.NDArray[np.int64]) -> Floats:
    """Return the weighted sum of scores under which the true labels are most likely, shape `[n, k]`."""
    truth = np.where(np.eye(parts[0].shape[1], dtype=bool)[labels], 0.0, _IMPOSSIBLE)
    weights, bias = most_likely_weights(parts, truth)
    return sum((weight * part for weight, part in zip(weights, parts, strict=True)), start=bias)


def with_bins(features: Features) -> Features:
    """Return the features with each number also as a category: its bin, of equally many records."""
    categorical, names, size = [features.categorical], list(features.categorical_fields), features.embedding_rows
    for name, values in zip(features.numeric_fields, features.numeric.T, strict=True):
        edges = np.unique(np.quantile(values, np.arange(1, _BINS) / _BINS))
        categorical.append((size + np.searchsorted(edges, values, side="right")).astype(np.int32)[:, None])
        names.append(f"{name} in bins")
        size += len(edges) + 1
    return replace(
        features,
        categorical=np.concatenate(categorical, axis=1),
        embedding_rows=max(size, 1),
        categorical_fields=tuple(names),
    )


def out_of_fold(features: Features, rows: Rows, estimates: Floats, usable: npt.NDArray[np.bool_]) -> Floats:
    """Return the log-odds of each class for each of these rows, by models of other rows alone: shape `[n, k]`.

    `estimates` are unbiased for 1 in the column of the true class and 0 in the others. Models are fitted on `usable`
    rows. Of two classes the second column says all.
    """
    from tpsl.heads.backfitting import fit_additive  # loads Numba

    learned = np.zeros(estimates.shape)
    place = permutation(len(rows), FOLD_STREAM, 0)
    count = _FOLDS if len(rows) < _MANY else _FOLDS_OF_MANY
    folds = place % count
    for fold in range(count):
        inside, outside = folds == fold, np.flatnonzero((folds != fold) & usable)
        outside = outside[np.argsort(place[outside])[:_FITTED_AT_MOST]]  # in random order
        if len(outside) < 2:
            continue
        for column in range(1, 2) if estimates.shape[1] == 2 else range(estimates.shape[1]):
            model = fit_additive(features, rows[outside], estimates[outside, column])
            learned[inside, column] = model.scores(features, rows[inside])
    return learned


def most_likely_weights(parts: Sequence[Floats], log_likelihood: Floats) -> tuple[Floats, Floats]:
    """Return weights w ≥ 0 and biases b of the classes under which what was seen is most likely.

    They maximise `Σ_i ln Σ_j softmax(Σ_m w_m part_m + b)_ij · e^(log_likelihood_ij)`: a softmax regression on few
    numbers, for labels that are known through their likelihood. No weight is negative: where features say nothing, a
    prediction out of fold is a little too low for records of the more frequent label, because they are missing where it
    was fitted, and a negative weight would give that away.
    """
    inputs = torch.from_numpy(np.stack(parts, axis=2))
    likelihood = torch.from_numpy(log_likelihood)
    roots = torch.ones(len(parts), dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(log_likelihood.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([roots, bias], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        logits = torch.log_softmax(inputs @ roots.square() + bias, dim=1)
        # The small term keeps weights finite where labels could be told apart without error.
        value = -torch.logsumexp(logits + likelihood, dim=1).mean() + 1e-6 * roots.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return roots.detach().square().numpy(), bias.detach().numpy()


def drawn_evidence(mechanism: Mechanism, labels: npt.NDArray[np.int64], draw: int = 0) -> Floats:
    """Return the evidence of a draw made for an evaluation and never sent: `ln P(t | y = j)`, shape `[n, k]`."""
    likelihood = mechanism.log_likelihood(mechanism.release(labels, seeded_words(draw, "ceiling")).outcomes)
    evidence: Floats = np.maximum(likelihood - likelihood.max(axis=1, keepdims=True), _IMPOSSIBLE)
    return evidence


def _unbiased(evidence: Floats, mechanism: Mechanism) -> Floats:
    """Return of each class an estimate whose mean is 1 for records of that class and 0 for others.

    `softmax(evidence)` has one mean on the true class and another on the rest where classes are treated alike. The
    attacker finds the first by drawing from the mechanism itself; together they are 1. Where classes are not
    treated alike, the means follow from the integers.
    """
    classes = mechanism.classes
    if mechanism.coordinate is None:
        probabilities = mechanism.weights.astype(np.float64) / TOTAL
        means = probabilities @ _softmax(mechanism.log_likelihood(np.arange(mechanism.outcomes)))
        return _softmax(evidence) @ np.linalg.pinv(means)
    labels = np.arange(_SIMULATED) % classes
    own = float(_softmax(drawn_evidence(mechanism, labels))[np.arange(_SIMULATED), labels].mean())
    other = (1.0 - own) / (classes - 1)
    return (_softmax(evidence) - other) / (own - other)


def _softmax(evidence: Floats) -> Floats:
    return torch.softmax(torch.from_numpy(evidence), dim=1).numpy()


def _by_class(scores: Floats) -> Floats:
    """Return scores for class 1 of two as those of two classes; scores of k classes as they are."""
    return np.stack([np.zeros(len(scores)), scores], axis=1) if scores.ndim == 1 else scores
