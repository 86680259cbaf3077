"""The feature map φ of a statistic: what the label party has of a record → a vector of norm 1.

    z = (κ, (b - mean)·components)      with b the record's `Expansion`
    φ = z/|z|

It is learned from what parties sent of the statistic's records, without labels: what it is reveals nothing of them.

The noise on `T = Σ_i y_i φ_i` is the same for every coordinate and |φ| is bounded, so coordinates share a budget.
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
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tpsl.heads.expansion import Expansion, InputColumns
from tpsl.mechanisms import Norm, to_integers
from tpsl.models.members import seed_of

Inputs = npt.NDArray[np.float32]
AnyNumber = TypeVar("AnyNumber", bound=np.number)

ROWS_AT_ONCE = 16_384
MOST_COMPONENTS = 2048
_SAMPLE = 65_536  # records that the map is learned from
_RECORDS_OF_A_FEATURE = 16  # at least, for each random feature of a kind
_SHARES = (0.1, 0.45, 0.25, 0.2)
"""Of the variance that the log-odds are expected to have, by kind of b."""
_VARIANCE = 1.0
"""That variance."""
_KAPPA = 0.06, 0.3
"""κ, at least and at most: how much of the budget the base rate gets, as a length."""
_BASE_ERROR = 1 / 60
"""Standard deviation of the noise on the share of class 1 that κ is made longer for, as far as it may be."""
_JUST_INSIDE = 0.999  # so that rounding to integers does not lengthen a vector beyond the bound
_EXPANSION = "expansion."
_POWERS = 4  # of the covariance, by which its principal components are found
_LEAST_GAIN = 1e-4  # against the largest: parts below it are left out


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


class FeatureMap(nn.Module):
    """Principal components of an expansion, scaled to norm 1."""

    centre: Tensor
    components: Tensor
    prior: Tensor
    kind_scales: Tensor

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        of_expansion = {name for name in state if name.startswith(_EXPANSION)}
        self.expansion = Expansion({name.removeprefix(_EXPANSION): state[name] for name in of_expansion})
        for name in state.keys() - of_expansion:
            self.register_buffer(name, state[name])
        self._order = int(state["order"])
        self.kappa = float(state.get("constant", _KAPPA[0]))  # heads of earlier versions do not say it

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
        found, begin = [], 0
        for count, scale in zip(self.expansion.kinds, self.kind_scales.tolist(), strict=True):
            rows = self.components[begin : begin + count].double()
            root = self.prior[:, None] * rows.T / (scale or 1.0)
            found.append(nn.functional.pad(root @ root.T, (1, 0, 1, 0)))
            begin += count
        return found

    @classmethod
    @torch.no_grad()
    def learn(cls, inputs: Inputs, columns: InputColumns, purpose: Purpose, device: torch.device | None = None) -> Self:
        """Learn the map for a statistic of these records; deterministic, and no label has a part in it."""
        generator = torch.Generator().manual_seed(seed_of("tpsl feature map", purpose.seed))
        random_features = min(purpose.random_features, len(inputs) // _RECORDS_OF_A_FEATURE)
        expansion = Expansion.learn(sampled(inputs), columns, random_features, generator)
        return cls.over(expansion.to(device), inputs, purpose, _SHARES, generator)

    @classmethod
    @torch.no_grad()
    def over(
        cls,
        expansion: Expansion,
        inputs: Inputs,
        purpose: Purpose,
        shares: tuple[float, ...],
        generator: torch.Generator,
    ) -> Self:
        """Learn principal components of an expansion and their gains; `shares` are those of the kinds of b."""
        device = expansion.shift.device
        features = torch.cat([expansion(part.to(device)) for part in torch.split(sampled(inputs), ROWS_AT_ONCE)])
        centre = features.mean(dim=0)
        features -= centre
        kind_scales = torch.stack(
            [_scale(*kind) for kind in zip(torch.split(features, list(expansion.kinds), 1), shares, strict=True)]
        )
        scales = kind_scales.repeat_interleave(torch.tensor(expansion.kinds)).to(device)
        count = min(MOST_COMPONENTS, math.ceil(_VARIANCE / math.sqrt(purpose.blur(len(inputs)))))
        variances, directions = _principal_components(features * scales, count, generator)
        gains = water_filled(variances, purpose, len(inputs))
        used = gains > _LEAST_GAIN * gains.amax() if len(gains) else gains > 0
        variances, gains, directions = variances[used], gains[used] / gains.sum(), directions[:, used]
        state = {
            "centre": centre,
            "components": (scales[:, None] * directions * (gains / variances).sqrt()).float(),
            "prior": variances / gains,
            "kind_scales": kind_scales,
            "order": torch.tensor(1 if purpose.norm == "l1" else 2),
            "constant": torch.tensor(purpose.kappa(len(inputs)), dtype=torch.float64),
        }
        return cls(state | {_EXPANSION + name: tensor for name, tensor in expansion.state_dict().items()})


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


def _scale(features: Tensor, share: float) -> Tensor:
    """Return the factor that gives centred features their share of the expected variance."""
    total = float(features.double().square().sum()) / len(features)
    return torch.tensor(math.sqrt(share * _VARIANCE / total) if total > 1e-12 else 0.0)


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
