"""The feature map φ of a statistic: what the label party has of a record → a vector of norm 1.

    x = embeddings and ranks, standardised, and cells: 1 where a code or a rank has one of its frequent values
    b = x, relu(c·A + a), (c·B)∘(c·C)      with A, B, C, a drawn at random
    z = (κ, (b - mean)·components)
    φ = z/|z|

where c are the ranks and the cells of codes, or the embeddings where there are none. A function that is linear in b is
nearly additive in the fields; the rectified features add smooth functions of all fields together, the products add what
pairs of fields do together.

The map is learned from what parties sent of the statistic's records, without labels: what it is reveals nothing of
them. The noise on `T = Σ_i y_i φ_i` is the same for every coordinate and |φ| is bounded, so coordinates share a budget.
Before any label is seen the log-odds are taken for a random function `w·b` with independent normal weights, such that
each kind of b has its share of the function's variance. Then the principal components of b are the independent parts of
that function, of variances λ_j. A part whose coordinate has the mean square g_j is known from n records up to the
variance `s_j = 1/(n·v) + σ²/(g_j·(n·v)²)`, v being the variance of a label. The g_j that leave least of the function
unknown, `Σ_j λ_j s_j/(λ_j + s_j)`, subject to `Σ_j g_j = 1`, are found by water-filling: parts that the noise would
drown get nothing and the others nearly equal shares. So the width follows from n and from the noise. So does κ: the
noise leaves the error σ/(n·κ) in the share of class 1, and with few records and little ε that would be most of what
makes predictions wrong.

Vectors are scaled *up* to norm 1, too: what T gets from a record costs the same however short its vector is. The head
is linear in z, not in φ: the length of z says how rare a record's values are, and its log-odds must not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import get_annotations
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tpsl.data.features import Features
from tpsl.data.order import Rows
from tpsl.mechanisms import Norm, to_integers
from tpsl.models.halves import seed_of
from tpsl.split.batches import Batches

Inputs = npt.NDArray[np.float32]
Columns = npt.NDArray[np.int64]
AnyNumber = TypeVar("AnyNumber", bound=np.number)

ROWS_AT_ONCE = 16_384
LARGEST_CODE = (1 << 24) - 1
"""Every whole number up to here is a float32."""
_BINS, _ROWS_OF_BINS = 16, 1 << 18
_FAR = 4.0  # standard deviations; a number farther out counts as this far
_MOST_CELLS = 1536
_RECORDS_OF_A_CELL, _SHARE_OF_A_CELL = 20, 0.001  # a value needs as many of the records that cells are learned from
_SHIFT = 0.5
_MOST_COMPONENTS = 2048
_SAMPLE = 65_536  # records that the map is learned from
_RECORDS_OF_A_FEATURE = 16  # at least, for each random feature of a kind
_SHARES = (0.1, 0.45, 0.25, 0.2)
"""Of the variance that the log-odds are expected to have, by kind of b."""
_SHARES_LEFT = (0.05, 0.25, 0.15, 0.15)
"""Of the variance that is expected to be left of the log-odds after a first statistic."""
_KAPPA = 0.06, 0.3
"""κ, at least and at most: how much of the budget the base rate gets, as a length."""
_BASE_ERROR = 1 / 60
"""Standard deviation of the noise on the share of class 1 that κ is made longer for, as far as it may be."""
_JUST_INSIDE = 0.999  # so that rounding to integers does not lengthen a vector beyond the bound
_POWERS = 4  # of the covariance, by which its principal components are found
_LEAST_GAIN = 1e-4  # against the largest: parts below it are left out
_OWN = 0.5
"""How much a value of a field is told apart from those that act like it, in a second map."""
_RIDGE = 1e-3


class StateModule(nn.Module):
    """A module that is the tensors its class declares: made of them, and rebuilt from its `state_dict`."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name in get_annotations(type(self)):
            self.register_buffer(name, state[name])


def below(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the part of a state whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


class CodeBook(StateModule):
    """Categories and numbers as the encoder gives them → codes, float32 `[n, fields]`.

    The code of a category is a whole number that tells it apart and says nothing of its meaning: its row in the party's
    embedding table. That of a number is its rank: which quantile of the training records it falls into, in (0, 1).
    """

    categories: Tensor
    edges: Tensor

    @property
    def width(self) -> int:
        """The number of fields."""
        return int(self.categories) + len(self.edges)

    @classmethod
    def learn(cls, features: Features, train: Rows) -> Self:
        """Learn the bins of numbers from training records, at most a quarter of a million of them, evenly spaced."""
        if features.embedding_rows > LARGEST_CODE:
            raise ValueError(f"codes are for at most {LARGEST_CODE:,} categories, not for {features.embedding_rows:,}")
        numbers = features.batch(train[:: -(-len(train) // _ROWS_OF_BINS)])[1]
        edges = np.full((numbers.shape[1], _BINS - 1), np.inf, np.float32)
        for column, values in enumerate(numbers.T):
            found = np.unique(np.quantile(values, np.arange(1, _BINS) / _BINS).astype(np.float32))
            edges[column, : len(found)] = found
        return cls({"categories": torch.tensor(len(features.categorical_fields)), "edges": torch.from_numpy(edges)})

    def forward(self, categorical: Tensor, numeric: Tensor) -> Tensor:
        """Return the category of each categorical field and the rank of each number: the middle of its bin."""
        bins = (numeric[:, :, None] >= self.edges).sum(dim=2)
        return torch.cat([categorical.float(), (bins + 0.5) / _BINS], dim=1)

    @torch.no_grad()
    def embed(self, features: Features, rows: Rows) -> Tensor:
        """Return the codes of these rows."""
        codes: Tensor = self(*Batches(features).batch(rows))
        return codes


@dataclass(frozen=True)
class Purpose:
    """What a map is for: all that its width and its gains depend on, besides the records."""

    noise: float
    """The standard deviation of the noise on a coordinate of T, for vectors of norm at most 1."""
    norm: Norm = "l2"
    classes: int = 2
    random_features: int = 1024
    """At most, of each of the two kinds."""
    seed: int = 0

    def information(self, records: int) -> float:
        """Return n·v: v is the variance of the indicator of one class, if all are equally frequent."""
        return records * (1 - 1 / self.classes) / self.classes

    def kappa(self, records: int) -> float:
        """Return κ: 0.06, and more where the noise would leave too large an error in the base rate."""
        least, most = _KAPPA
        return min(max(self.noise / (records * _BASE_ERROR), least), most)

    def blur(self, records: int) -> float:
        """Return `σ²/(n·v)²`: how little the noise lets be known of a part that has the whole budget."""
        return max((self.noise / self.information(records)) ** 2, 1e-12)


class Expansion(StateModule):
    """Maps what the label party has of records to b. Its kinds of features: embeddings, fields, rectified, products.

    Those of x are embeddings, then of fields cells of ranks, ranks, and cells of codes.
    """

    columns: Tensor
    """Of the inputs, which each feature of x reads."""
    values: Tensor
    """That a cell is 1 for; NaN where the feature of x is a number."""
    mean: Tensor
    scale: Tensor
    embeddings: Tensor
    """How many there are."""
    random: Tensor
    """Weights of the last features of x: of fields without cells of ranks, or of embeddings if there are none."""
    shift: Tensor

    @property
    def kinds(self) -> tuple[int, int, int, int]:
        """How many features of each kind there are."""
        embeddings, drawn = int(self.embeddings), len(self.shift)
        return embeddings, len(self.columns) - embeddings, drawn, drawn

    def forward(self, inputs: Tensor) -> Tensor:
        """Return b of records, float32 `[n, features]`; finite for every input."""
        x = self.plain(inputs)
        rectified, one, other = (x[:, -len(self.random) :] @ self.random).chunk(3, dim=1)
        return torch.cat([x, torch.relu(rectified + self.shift), (one * other).clamp(-_FAR, _FAR)], dim=1)

    def plain(self, inputs: Tensor) -> Tensor:
        """Return x of records."""
        read = inputs.index_select(1, self.columns)
        numbers = ((torch.nan_to_num(read) - self.mean) / self.scale).clamp(-_FAR, _FAR)
        return torch.where(self.values.isnan(), numbers, (read == self.values).float())

    @classmethod
    def learn(cls, sample: Tensor, code_columns: Columns, random_features: int, generator: torch.Generator) -> Self:
        """Learn scales and frequent values from these records, and draw random features of each of the two kinds."""
        codes = sample[:, code_columns].numpy()
        ranks = code_columns[((codes > 0) & (codes < 1)).all(axis=0)].tolist()
        others = np.setdiff1d(np.arange(sample.shape[1]), code_columns).tolist()
        cells, number = _frequent(codes, code_columns), math.nan
        of_ranks, of_codes = [[cell for cell in cells if (cell[0] in ranks) == is_rank] for is_rank in (True, False)]
        plain = [*((other, number) for other in others), *of_ranks, *((rank, number) for rank in ranks), *of_codes]
        columns = torch.tensor([column for column, _ in plain], dtype=torch.int64)
        mean, scale = torch.zeros(sample.shape[1]), torch.ones(sample.shape[1])
        numbers = torch.nan_to_num(sample[:, [*others, *ranks]].double())
        deviation = _deviation(numbers)
        mean[[*others, *ranks]] = numbers.mean(dim=0).float()
        scale[[*others, *ranks]] = torch.where(deviation > 1e-6, deviation, 1.0).float()
        known = cls(
            {
                "columns": columns,
                "values": torch.tensor([value for _, value in plain], dtype=torch.float32),
                "mean": mean[columns],
                "scale": scale[columns],
                "embeddings": torch.tensor(len(others)),
                "random": torch.empty(0),
                "shift": _SHIFT * torch.randn(random_features, generator=generator),
            }
        )
        read = known.plain(sample)[:, -(len(ranks) + len(of_codes) or len(plain)) :]
        return known.with_random(torch.randn(read.shape[1], 3 * random_features, generator=generator), read)

    def with_random(self, drawn: Tensor, read: Tensor) -> Self:
        """Return the expansion with these random features, scaled so that what is rectified has the variance 1.

        They read the last features of x, as many as `drawn` has rows, which are `read` of some records.
        """
        kept = {name: tensor.clone() for name, tensor in self.state_dict().items()}
        return type(self)({**kept, "random": drawn / _deviation(read @ drawn).clamp(min=1e-6)})


def _deviation(columns: Tensor) -> Tensor:
    return (columns - columns.mean(dim=0)).square().mean(dim=0).sqrt()


def _frequent(codes: Inputs, columns: Columns) -> list[tuple[int, float]]:
    """Return the most frequent values of these columns as (column, value), ascending; none that all records have."""
    least = max(_RECORDS_OF_A_CELL, _SHARE_OF_A_CELL * len(codes))
    cells = list[tuple[int, int, float]]()
    for column, of_column in zip(columns.tolist(), codes.T, strict=True):
        values, counts = np.unique(of_column[np.isfinite(of_column)], return_counts=True)
        cells += [(-int(n), column, float(v)) for v, n in zip(values, counts, strict=True) if least <= n < len(codes)]
    return sorted((column, value) for _, column, value in sorted(cells)[:_MOST_CELLS])


class FeatureMap(StateModule):
    """Principal components of an expansion, scaled to norm 1."""

    centre: Tensor
    components: Tensor
    prior: Tensor
    kind_scales: Tensor
    order: Tensor
    constant: Tensor

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        super().__init__(state)
        self.expansion = Expansion(below("expansion.", state))
        self.kappa, self._order = float(self.constant), int(self.order)

    @property
    def width(self) -> int:
        """The number of coordinates of φ."""
        return 1 + self.components.shape[1]

    def forward(self, inputs: Tensor) -> Tensor:
        """Return z of records, float32 `[n, width]`."""
        parts = (self.expansion(inputs) - self.centre) @ self.components
        return torch.cat([torch.full_like(inputs[:, :1], self.kappa), parts], dim=1)

    @torch.no_grad()
    def integers(self, inputs: Inputs, bound: int) -> Iterator[npt.NDArray[np.int32]]:
        """Yield φ times the bound of these records as integers, block after block."""
        for block in blocks(inputs):
            z = self(torch.from_numpy(block).to(self.centre.device))
            phi = _JUST_INSIDE * z / torch.linalg.vector_norm(z, ord=self._order, dim=1, keepdim=True)
            yield to_integers(phi.cpu().numpy(), bound)

    def weight_covariances(self) -> list[Tensor]:
        """Return for each kind of b the prior covariance of the weights of z, if there were only this kind.

        With the weights `√(λ_j/g_j)·U_jᵀw` it is `√(λ/g)·U_tᵀU_t·√(λ/g)`, of the rows t of the directions U.
        """
        found = []
        kinds = torch.split(self.components.double(), list(self.expansion.kinds))
        for rows, scale in zip(kinds, self.kind_scales.tolist(), strict=True):
            root = self.prior[:, None] * rows.T / (scale or 1.0)
            found.append(nn.functional.pad(root @ root.T, (1, 0, 1, 0)))
        return found

    @classmethod
    @torch.no_grad()
    def learn(cls, inputs: Inputs, code_columns: Columns, purpose: Purpose, device: torch.device | None = None) -> Self:
        """Learn the map for a statistic of these records; deterministic, and no label has a part in it.

        `code_columns` are codes of fields: categories as whole numbers, which only tell records apart, and ranks, which
        lie between 0 and 1. All others are embeddings, scores and log-odds.
        """
        generator = torch.Generator().manual_seed(seed_of("tpsl feature map", purpose.seed))
        random_features = min(purpose.random_features, len(inputs) // _RECORDS_OF_A_FEATURE)
        expansion = Expansion.learn(sampled(inputs), code_columns, random_features, generator)
        return cls._of_components(expansion.to(device), inputs, purpose, _SHARES, generator)

    @torch.no_grad()
    def second(self, logits: Inputs, inputs: Inputs, purpose: Purpose) -> Self:
        """Return the map for a second statistic of these records, of which the first head has these logits.

        The first head was fitted on features drawn at random, most of which read fields that tell little of the label.
        What it has learned is public from then on, so the second map may follow it: the logits f of the first head, as
        nearly as a sum over fields gives them, `f ≈ Σ_j e_j(x_j)`, say how much each field matters and which of its
        values are alike. Features are drawn again, as functions of

            c·A  with  A_r = e_r·u_j + ½·s_j·v_r      for each of the numbers c_r that say which value the field j has

        with u and v standard normal and s_j the deviation of e_j, in place of plain normal A: values that act alike are
        near each other, fields that act little have little weight. No label has a part in it but through what was
        released. Deterministic.
        """
        generator = torch.Generator().manual_seed(seed_of("tpsl second map", purpose.seed))
        expansion = self.expansion
        device = expansion.shift.device
        own = slice(expansion.kinds[0] if expansion.kinds[1] else 0, None)  # fields, or embeddings where there are none
        fields, of_field = expansion.plain(sampled(inputs).to(device))[:, own].cpu(), expansion.columns[own].cpu()
        effects = _additive_effects(fields, sampled(logits))
        drawn = torch.empty(len(effects), 3 * len(expansion.shift))
        for field in sorted(set(of_field.tolist())):
            of_it = of_field == field
            effect = effects[of_it]
            alike = effect @ torch.randn(effect.shape[1], drawn.shape[1], generator=generator)
            deviation = (fields[:, of_it] @ effect).var(dim=0).sum().sqrt()
            apart = torch.randn(len(effect), drawn.shape[1], generator=generator)
            drawn[of_it] = alike + _OWN * deviation * apart
        again = expansion.with_random(drawn.to(device), fields.to(device))
        return self._of_components(again, inputs, purpose, _SHARES_LEFT, generator)

    @classmethod
    def _of_components(
        cls,
        expansion: Expansion,
        inputs: Inputs,
        purpose: Purpose,
        shares: tuple[float, ...],
        generator: torch.Generator,
    ) -> Self:
        """Learn principal components of an expansion and their gains; `shares` are those of the kinds of b."""
        device, records = expansion.shift.device, len(inputs)
        features = torch.cat([expansion(part.to(device)) for part in torch.split(sampled(inputs), ROWS_AT_ONCE)])
        centre = features.mean(dim=0)
        features -= centre
        kinds = zip(torch.split(features, list(expansion.kinds), 1), shares, strict=True)
        kind_scales = torch.tensor([_scale(*kind) for kind in kinds])
        scales = kind_scales.repeat_interleave(torch.tensor(expansion.kinds)).to(device)
        count = min(_MOST_COMPONENTS, math.ceil(1 / math.sqrt(purpose.blur(records))))
        variances, directions = _principal_components(features * scales, count, generator)
        gains = water_filled(variances, purpose, records)
        used = gains > _LEAST_GAIN * gains.amax() if len(gains) else gains > 0
        variances, gains, directions = variances[used], gains[used] / gains.sum(), directions[:, used]
        state = {
            "centre": centre,
            "components": (scales[:, None] * directions * (gains / variances).sqrt()).float(),
            "prior": variances / gains,
            "kind_scales": kind_scales,
            "order": torch.tensor(1 if purpose.norm == "l1" else 2),
            "constant": torch.tensor(purpose.kappa(records), dtype=torch.float64),
        }
        return cls(state | {f"expansion.{name}": tensor for name, tensor in expansion.state_dict().items()})


def water_filled(variances: Tensor, purpose: Purpose, records: int) -> Tensor:
    """Return the gains `g_j ≥ 0`, `Σ_j g_j = 1`, that leave the least of parts of these variances unknown.

    Where the derivative is the same, -μ, for all that get anything: `g_j = (λ_j·√(k/μ) - k)/(λ_j + 1/(n·v))`, with
    `k = σ²/(n·v)²`. For the 1-norm, in which m equal coordinates are √m times as long, σ counts √m times.
    """
    information = purpose.information(records)
    gains = torch.full_like(variances, 1 / max(1, len(variances)))
    for _ in range(1 if purpose.norm == "l2" else 20):
        counted = 1.0 if purpose.norm == "l2" else 1 / max(float(gains.square().sum()), 1e-12)
        k = counted * purpose.blur(records)
        low, high = -80.0, 80.0  # ln √(1/μ)
        for _ in range(100):
            middle = (low + high) / 2
            gains = ((variances * math.sqrt(k) * math.exp(middle) - k) / (variances + 1 / information)).clamp(min=0)
            low, high = (middle, high) if gains.sum() < 1 else (low, middle)
    return gains


def blocks(rows: npt.NDArray[AnyNumber]) -> Iterator[npt.NDArray[AnyNumber]]:
    """Yield rows in blocks of bounded size, the same ones each time."""
    for start in range(0, len(rows), ROWS_AT_ONCE):
        yield np.array(rows[start : start + ROWS_AT_ONCE])


def sampled(rows: Inputs) -> Tensor:
    """Return the rows of the records that a map is learned from: evenly spaced ones, the same each time."""
    return torch.from_numpy(np.array(rows[:: -(-len(rows) // _SAMPLE)]))


def _scale(features: Tensor, share: float) -> float:
    """Return the factor that gives centred features their share of the log-odds' expected variance, which is 1."""
    total = float(features.double().square().sum()) / len(features)
    return math.sqrt(share / total) if total > 1e-12 else 0.0


def _principal_components(features: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return variances, descending and above 0, and directions of the largest principal components.

    By subspace iteration: all eigenvectors of a covariance of some thousand features would take a minute.
    """
    covariance = features.T @ features / len(features)
    size = len(covariance)
    basis = torch.randn(size, min(size, count + count // 8 + 8), generator=generator).to(features.device)
    for _ in range(_POWERS):
        basis = torch.linalg.qr(covariance @ basis).Q
    variances, inner = torch.linalg.eigh((basis.T @ covariance @ basis).double())
    basis = basis.double()
    variances, directions = variances.flip(0)[:count], (basis @ inner.flip(1))[:, :count]
    known = variances > 1e-9 * variances.sum()
    return variances[known], directions[:, known]


def _additive_effects(fields: Tensor, logits: Tensor) -> Tensor:
    """Return the weights of features of fields whose sum is nearest to the logits, `[features, 1 or k]`."""
    centred = (fields - fields.mean(dim=0)).double()
    gram = centred.T @ centred
    gram.diagonal().add_(_RIDGE * len(fields))
    effects: Tensor = torch.linalg.solve(gram, centred.T @ (logits - logits.mean(dim=0)).double())
    return effects.float()
