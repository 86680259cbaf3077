"""The committee of networks and trees that `auto` is at a larger ε: made of the scores that their cells have left.

A cell's scores lie beside its row: of each held-out record how likely its noisy label is, and the probabilities of the
test records. The weights are those under which the noisy labels are most likely; true labels only evaluate.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tpsl.data.dataset import Dataset
from tpsl.data.true_labels import reveal
from tpsl.files import write_atomically
from tpsl.prediction.committee import Mixture
from tpsl.training.evaluation import evaluate
from tpsl.training.stacking import committee_weights
from tpsl_research.frontier_cells import Row


def scores_beside(row: Path) -> Path:
    """Return where the scores of a cell are, from the path of its row."""
    return row.with_suffix(".npz")


def write_scores(path: Path, judged: npt.NDArray[np.floating], test: npt.NDArray[np.floating]) -> None:
    """Write what a cell leaves: `ln P(t_i | prediction)` of each held-out record, and test probabilities."""
    content = io.BytesIO()
    np.savez_compressed(content, judged=judged.astype(np.float32), test=test.astype(np.float32))
    write_atomically(path, content.getvalue())


def committee_row(rows: Sequence[Row], scores: Sequence[Path], data: Dataset) -> Row:
    """Return the row of the committee of several cells on the same noisy labels."""
    found = [np.load(path) for path in scores]
    likelihoods = [one["judged"].astype(np.float64) for one in found]
    weights = [float(weight) for weight in committee_weights(likelihoods)]
    mixture = Mixture()
    for weight, one in zip(weights, found, strict=True):
        mixture.add(weight, one["test"])
    said = np.logaddexp.reduce([np.log(w) + one for w, one in zip(weights, likelihoods, strict=True)])
    result = {
        "configuration": ", ".join(f"{w:.2f} {row['method']}" for w, row in zip(weights, rows, strict=True)),
        "validation_log_likelihood": float(said.sum()),
        **asdict(evaluate(mixture.predict(), reveal(data.labels)[data.test])),
    }
    promised = {name: rows[0][name] for name in ("mechanism", "exact_epsilon", "delta")}
    return {**promised, "method": " and ".join(row["method"] for row in rows), "results": {"run": result}}
