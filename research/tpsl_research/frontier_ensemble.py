"""The ensemble of networks and trees that `auto` is at a larger ε: made of the scores that their cells have left.

The weights are those under which the noisy labels of held-out records are most likely; true labels only evaluate.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tpsl.data.dataset import Dataset
from tpsl.data.true_labels import reveal
from tpsl.files import write_atomically
from tpsl.model.predictors import mixture
from tpsl.run.evaluation import ensemble_weights, evaluate
from tpsl_research.frontier_cells import Row


@dataclass(frozen=True)
class Scores:
    """What a cell on noisy labels leaves beside its row."""

    judged: npt.NDArray[np.floating]
    """`ln P(t_i | prediction)` of each held-out record, without which the prediction was learned."""
    test: npt.NDArray[np.floating]
    """Probabilities of the test records."""


def scores_beside(row: Path) -> Path:
    """Return where the scores of a cell are, from the path of its row."""
    return row.with_suffix(".npz")


def write_scores(path: Path, scores: Scores) -> None:
    """Write the scores of a cell, in single precision."""
    content = io.BytesIO()
    np.savez_compressed(content, judged=scores.judged.astype(np.float32), test=scores.test.astype(np.float32))
    write_atomically(path, content.getvalue())


def read_scores(path: Path) -> Scores:
    """Return what `write_scores` has written."""
    with np.load(path) as found:
        return Scores(found["judged"].astype(np.float64), found["test"])


def ensemble_row(rows: Sequence[Row], scores: Sequence[Scores], data: Dataset) -> Row:
    """Return the row of the ensemble of several cells on the same noisy labels."""
    weights = [float(weight) for weight in ensemble_weights([one.judged for one in scores])]
    mixed = mixture((weight, one.test) for weight, one in zip(weights, scores, strict=True))
    said = np.logaddexp.reduce([np.log(w) + one.judged for w, one in zip(weights, scores, strict=True)])
    result = {
        "configuration": ", ".join(f"{w:.2f} {row['method']}" for w, row in zip(weights, rows, strict=True)),
        "validation_log_likelihood": float(said.sum()),
        **asdict(evaluate(mixed, reveal(data.labels)[data.test])),
    }
    promised = {name: rows[0][name] for name in ("mechanism", "exact_epsilon", "delta")}
    return {**promised, "method": " and ".join(row["method"] for row in rows), "results": {"run": result}}
