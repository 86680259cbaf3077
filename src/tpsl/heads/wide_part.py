"""The wide part of the network: an additive model of one party's own fields, fitted on noisy labels.

    log-odds of a record = base + Σ_j slope_j·x_j + Σ_f effect of its category in field f + Σ_(f,g) effect of its cell

where the cells are those of some pairs (f, g) of fields, or of numbers in bins.

A deep network learns what the labels say of a field only while it learns everything else, and at small ε the noise is
learned faster. The additive model has few effects for each field, each shrunk by how much the field's effects vary, and
nothing has to be tuned. All of it is post-processing of the noisy labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tpsl.data.features import Features
from tpsl.data.order import FOLD_STREAM, Rows, permutation, subset_rows
from tpsl.data.out_of_core import RowStack, counting, others, parts
from tpsl.progress import Progress, no_progress

Floats = npt.NDArray[np.float64]
Scores = npt.NDArray[np.float32]

SCORE_FIELD = "wide score"
FAR = 5.0
"""Standard deviations; a number farther out counts as this far."""
MOST_RECORDS = 1 << 24
"""What the model is fitted on at most, so that time and memory have a bound."""
_MANY_RECORDS = 1 << 22
_FOLDS, _FOLDS_OF_MANY = 5, 2
"""n folds take as long as n fits on all records. Where there are many, two are enough: on 110,000 records of Criteo at
ε = 1 the network's test AUC is 0.7389 with either number (three seeds)."""
_SCORED_AT_ONCE, _COPIED_AT_ONCE = 1 << 16, 1 << 18  # records
_FITTING = "fitting the wide part"


class Axis(nn.Module):
    """What tells records apart: a categorical field, or a number in bins, if there are `edges`."""

    edges: Tensor

    def __init__(self, column: int, low: int, size: int, edges: Tensor) -> None:
        """`low` is the lowest category; of `size` codes, one more stands for what training did not see."""
        super().__init__()
        self.column, self.low, self.size = column, low, size
        self.register_buffer("edges", edges)

    def forward(self, categorical: Tensor, numbers: Tensor) -> Tensor:
        """Return the codes of all records, from 0 to `size`; a number at an edge is in the bin above it."""
        if len(self.edges):
            return (numbers[:, self.column, None] >= self.edges).sum(dim=1)
        codes = categorical[:, self.column].long() - self.low
        return torch.where((codes >= 0) & (codes < self.size), codes, self.size)


class Group(nn.Module):
    """The effects of a field's categories (one axis), or of the cells of a pair (two).

    Cell (a, b) of a pair is at `a·(b's size + 1) + b`; what was not seen in training has the effect 0.
    """

    effects: Tensor

    def __init__(self, axes: Iterable[Axis], effects: Tensor) -> None:
        super().__init__()
        self.axes = nn.ModuleList(axes)
        self.sizes = [axis.size for axis in axes]
        self.register_buffer("effects", effects)

    def forward(self, categorical: Tensor, numbers: Tensor) -> Tensor:
        """Return the effect on each record."""
        cells = torch.zeros(1, dtype=torch.int64)
        for axis, size in zip(self.axes, self.sizes, strict=True):
            cells = cells * (size + 1) + axis(categorical, numbers)
        return self.effects[cells]


class AdditiveModel(nn.Module):
    """A fitted model; it reads features that are encoded as those it was fitted on."""

    slopes: Tensor

    def __init__(self, base: float, slopes: Tensor, groups: Iterable[Group]) -> None:
        super().__init__()
        self.base = base
        self.register_buffer("slopes", slopes)
        self.groups = nn.ModuleList(groups)

    def forward(self, categorical: Tensor, numeric: Tensor) -> Tensor:
        """Return the log-odds of class 1 of records, float32 `[n, 1]`; that of a record does not depend on others."""
        numbers = numeric.double()
        odds = torch.full((numbers.shape[0],), self.base, dtype=torch.float64)
        for column in range(len(self.slopes)):
            odds = odds + self.slopes[column] * numbers[:, column].clamp(-FAR, FAR)
        for group in self.groups:
            odds = odds + group(categorical, numbers)
        return odds.float()[:, None]

    @torch.no_grad()
    def scores(self, features: Features, rows: Rows | None = None) -> Scores:
        """Return the log-odds of class 1 for these rows, or all, as `forward` does."""
        rows = counting(len(features)) if rows is None else rows
        found = np.empty(len(rows), np.float32)
        for part in parts(len(rows), _SCORED_AT_ONCE):
            some = features.take(rows[part])
            found[part] = self(torch.from_numpy(some.categorical), torch.from_numpy(some.numeric))[:, 0]
            features.release_pages()
        return found

    def spreads(self) -> tuple[list[float], dict[int, float]]:
        """Return how far effects spread, in log-odds: of each number its slope, of fields the standard deviation.

        Numbers are standardised; the categories of a field count alike. Pairs of columns are left out.
        """
        found = {}
        for group in self.groups:
            assert isinstance(group, Group)
            axis = group.axes[0]
            assert isinstance(axis, Axis)
            if len(group.axes) == 1 and not len(axis.edges):
                found[axis.column] = float(group.effects[: axis.size].std(unbiased=False))
        return self.slopes.abs().tolist(), found

    def tensors(self) -> dict[str, Tensor]:
        """Return the model as named tensors, for a file."""
        found = {"base": torch.tensor([self.base], dtype=torch.float64), "slopes": self.slopes}
        for number, group in enumerate(self.groups):
            assert isinstance(group, Group)
            found[f"{number}.effects"] = group.effects
            for place, axis in enumerate(group.axes):
                assert isinstance(axis, Axis)
                found[f"{number}.axis {place}"] = torch.tensor([axis.column, axis.low, axis.size])
                found[f"{number}.edges {place}"] = axis.edges.clone()  # pairs may share an axis
        return found

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> AdditiveModel:
        """Return the model that `tensors` was made of."""
        groups = list[Group]()
        while (effects := tensors.get(f"{len(groups)}.effects")) is not None:
            axes, name = list[Axis](), f"{len(groups)}"
            while (axis := tensors.get(f"{name}.axis {len(axes)}")) is not None:
                column, low, size = axis.tolist()
                axes.append(Axis(column, low, size, tensors[f"{name}.edges {len(axes)}"]))
            groups.append(Group(axes, effects))
        return cls(float(tensors["base"]), tensors["slopes"], groups)


def cross_fit(
    features: Features,
    rows: Rows,
    estimates: npt.NDArray[np.floating],
    seed: int,
    progress: Progress = no_progress,
) -> tuple[AdditiveModel, Scores]:
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
    count = min(_FOLDS if len(rows) <= _MANY_RECORDS else _FOLDS_OF_MANY, max(len(rows) - 1, 1))
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


def with_scores(features: Features, scores: Scores) -> Features:
    """Return the features with the score of each row as their last number, as a bottom half with a wide part reads."""
    numbers = RowStack(np.float32, features.numeric.shape[1] + 1)
    for part in parts(len(features), _COPIED_AT_ONCE):
        numbers.add(np.concatenate([features.numeric[part], scores[part, None]], axis=1))
        features.release_pages()
    return Features(
        features.categorical,
        numbers.finish(),
        features.embedding_rows,
        features.categorical_fields,
        (*features.numeric_fields, SCORE_FIELD),
    )
