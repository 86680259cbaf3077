"""The private head that one noisy statistic gives: logistic regression on a feature map.

The map gives a record i the vector z_i, and T sums `φ_i = c_i z_i` with `c_i = 1/|z_i|`. Logistic regression with the
weights c_i, `p_i = σ(w·z_i)`, solves `T = Σ_i p_i φ_i`: labels enter through `T = Σ_i y_i φ_i` alone, and so do they
for k classes with one such sum a class. T comes with noise of variance σ². Linearised at w (Newton's method) it says

    r = T - Σ_i p_i φ_i + M·w  ~  N(M·w, V),    M = Σ_i p_i(1-p_i) φ_i z_iᵀ,    V = Σ_i p_i(1-p_i) φ_i φ_iᵀ + σ²·I

With the prior `w ~ N(0, Σ_t τ_t²·K_t)`, one K_t for each kind of features in the map, the posterior mean is the head.
The τ_t² are those of maximum evidence (empirical Bayes), found by the algorithm of Zhou, Hu, Zhou and Lange (2019) for
variance components. So features that tell nothing under this noise count nothing; where all of them together do not
make what was released more likely than the base rate alone does, the head is the base rate. All of it is
post-processing of the release.

A second statistic of the same records starts from the first head: its logits are added to those of w.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tpsl.data.out_of_core import RowStack
from tpsl.heads.feature_map import ROWS_AT_ONCE, Columns, FeatureMap, Inputs, Purpose, below, blocks
from tpsl.mechanisms import DEFAULT_BOUND
from tpsl.vault import NoisyStatistic

Integers = npt.NDArray[np.int32]
Release = Callable[[int, Iterator[Integers]], NoisyStatistic]

_ROUNDS = 6
_FARTHEST = 2.0  # that a round moves the log-odds of a class, in the root mean square
_ROUND_OF_EVIDENCE, _STEPS = 1, 12  # the first round starts from nothing, so it waits for the second
_STILL = 0.01  # that much a round moves the log-odds when there is nothing left to do
_CURVED, _CURVED_FOR_A_COORDINATE = 32_768, 64  # records, at least, that the curvature is computed from
_BASE_VARIANCE = 4.0  # of the base rate's log-odds, before the statistic is seen
_LONGEST = 60.0  # a record whose z is longer counts as one of that length
_RELIABLE = math.log(20)


class StatisticHead(nn.Module):
    """A feature map and weights of its coordinates, one column for two classes, k for k, on top of a `first` head."""

    weights: Tensor

    def __init__(self, feature_map: FeatureMap, weights: Tensor, first: StatisticHead | None = None) -> None:
        super().__init__()
        self.map, self.first = feature_map, first
        self.register_buffer("weights", weights)

    @classmethod
    def of(cls, state: Mapping[str, Tensor]) -> Self:
        """Return the head whose `state_dict` this is."""
        first = below("first.", state)
        return cls(FeatureMap(below("map.", state)), state["weights"], cls.of(first) if first else None)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits of records: `[n]` for two classes, `[n, k]` for k."""
        logits: Tensor = self.map(inputs) @ self.weights
        logits = logits.squeeze(1) if self.weights.shape[1] == 1 else logits
        return logits if self.first is None else logits + self.first(inputs)

    def chain(self) -> list[StatisticHead]:
        """Return the head of each statistic, the first one first."""
        return [*([] if self.first is None else self.first.chain()), self]

    def probabilities(self, inputs: Tensor) -> Tensor:
        """Return the probability of class 1, `[n]`, or of each of k classes, `[n, k]`."""
        return _probabilities(self(inputs))

    @torch.no_grad()
    def logits(self, inputs: Inputs) -> Inputs:
        """Return the logits of many records, block after block: `[n, 1]` for two classes, `[n, k]` for k."""
        found = RowStack(np.float32, self.weights.shape[1])
        for block in blocks(inputs):
            found.add(self(torch.from_numpy(block).to(self.weights.device)).cpu().numpy())
        return found.finish()

    def predict(self, inputs: Inputs) -> Inputs:
        """Return the probabilities of many records, as `probabilities` does."""
        return _probabilities(torch.from_numpy(self.logits(inputs)).squeeze(1)).numpy()


def _probabilities(logits: Tensor) -> Tensor:
    """Return the probability of class 1 where there is one logit a record, else of each class."""
    return torch.softmax(logits, dim=1) if logits.ndim == 2 and logits.shape[1] > 1 else torch.sigmoid(logits)


@dataclass(frozen=True)
class FitReport:
    """What a statistic was good for."""

    records: int
    effective_labels: float
    """The number of clean labels that would say as much: n times the share of `tr(V⁻¹ V₀)` that the noise leaves, with
    V₀ as V without σ²; the mean over classes."""
    evidence: float
    """How much more likely than with the base rate (and a first head) alone the released numbers are, in nats; the mean
    over classes."""
    second: bool = False

    @property
    def reliable(self) -> bool:
        """Whether anything could be learned, besides the base rate and what a first head says."""
        return self.evidence > _RELIABLE

    def __str__(self) -> str:
        which, otherwise = ("second ", "first head") if self.second else ("", "base rate")
        useless = "" if self.reliable else f": nothing reliable can be learned, the head is the {otherwise}"
        clean = f"{self.effective_labels:,.0f} clean ones"
        return f"the {which}statistic of {self.records:,} labels is worth about {clean}{useless}"


@torch.no_grad()
def fit_statistic(
    inputs: Inputs,
    code_columns: Columns,
    purpose: Purpose,
    release: Release,
    tell: Callable[[FitReport], None],
    releases: int = 1,
    device: torch.device | None = None,
) -> StatisticHead:
    """Return the head that one statistic of these records gives, or several, each in view of the head before it.

    `inputs` and `code_columns` are as in `FeatureMap.learn`; inputs may be a memory-mapped file. `release` sums vectors
    of a width, given as integers within `DEFAULT_BOUND`, over the records of class 1, or of each class. `tell` is told
    what each statistic was good for, before the next is released. Deterministic but for the releases.
    """
    head, before = None, None
    for _ in range(releases):
        if head is None:
            feature_map = FeatureMap.learn(inputs, code_columns, purpose, device)
        else:
            before = head.logits(inputs)
            feature_map = head.map.second(before, inputs, purpose)
        vectors = RowStack(np.int32, feature_map.width)
        for block in feature_map.integers(inputs, DEFAULT_BOUND):
            vectors.add(block)
        phi = vectors.finish()
        fit = _Fit(release(feature_map.width, blocks(phi)), feature_map, phi, before)
        weights, report = fit.solved()
        head = StatisticHead(feature_map, weights, head)
        tell(report)
    assert head is not None
    return head


class _Fit:
    """Newton's method for all classes, one row of weights a class."""

    def __init__(
        self, statistic: NoisyStatistic, feature_map: FeatureMap, phi: Integers, before: Inputs | None
    ) -> None:
        self._phi, self._before, self._bound = phi, before, statistic.plan.bound
        self._constant, self._device = feature_map.kappa, feature_map.centre.device
        self._covariances = feature_map.weight_covariances()
        # With few records for each coordinate the curvature would look far from what it is, up in some directions and
        # down in others.
        self._stride = max(1, len(phi) // max(_CURVED, _CURVED_FOR_A_COORDINATE * phi.shape[1]))
        self._some = self._at(slice(None, None, -(-len(phi) // ROWS_AT_ONCE)))[0]
        sums = torch.from_numpy(statistic.values.astype(np.float64) / self._bound).to(self._device)
        variance, self._classes = (statistic.plan.noise.deviation / self._bound) ** 2, statistic.classes
        if self._classes > 2:
            # What the noise adds to all classes together is known, since their sums add up to Σ_i φ_i without it.
            every = sum((part.double().sum(dim=0) for part, _ in self._parts()), torch.zeros_like(sums[0]))
            sums = sums + (every - sums.sum(dim=0)) / len(sums)
            variance *= 1 - 1 / len(sums)
        self._sums, self._noise = sums, variance
        self._weights = torch.zeros_like(sums)
        self._variances = [sums.new_ones(len(self._covariances)) for _ in sums]
        """The τ_t² of each class."""
        self._worth, self._evidence = [0.0] * len(sums), [0.0] * len(sums)

    def solved(self) -> tuple[Tensor, FitReport]:
        """Return the weights, one column for two classes and k for k, and what the statistic was good for."""
        for number in range(_ROUNDS):
            moved = self._round(find_evidence=number == _ROUND_OF_EVIDENCE)
            if number > _ROUND_OF_EVIDENCE and moved < _STILL:
                break
        records, classes = len(self._phi), len(self._weights)
        worth, evidence = records * sum(self._worth) / classes, sum(self._evidence) / classes
        report = FitReport(records, worth, evidence, second=self._before is not None)
        if not report.reliable:
            for variances in self._variances:
                variances.zero_()  # so that the base rate is left
            for _ in range(_ROUNDS):
                self._round(find_evidence=False)
        return self._weights.T.float().contiguous(), report

    def _round(self, *, find_evidence: bool) -> float:
        """Take a step of Newton's method for every class; one of them finds the variances of the prior, too.

        Return how far it moved the log-odds of a class at most, in the root mean square.
        """
        expected = torch.zeros_like(self._sums)  # Σ_i p_i φ_i of each class under the weights as they are
        for phi, before in self._parts():
            expected += (self._predicted(phi, before).T.float() @ phi).double()
        probabilities = [self._predicted(*part).float() for part in self._parts(self._stride)]
        moved = 0.0
        for number, residual in enumerate(self._sums - expected):
            slope, spread = self._curvature([part[:, number] for part in probabilities])
            moved = max(moved, self._step(number, slope, spread, residual, find_evidence))
        return moved

    def _curvature(self, probabilities: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return M of a class, and V without the noise, from its probabilities of some records."""
        slope, read = self._sums.new_zeros(2 * [self._sums.shape[1]]), 0
        spread = slope.clone()
        for p, (phi, _) in zip(probabilities, self._parts(self._stride), strict=True):
            weighted = (phi * (p * (1 - p))[:, None]).T
            slope += (weighted @ self._unscaled(phi)).double()
            spread += (weighted @ phi).double()
            read += len(phi)
        # Weights of k classes move together: with equal probabilities k/(k-1) makes the step exact.
        scale = len(self._phi) / read * (1.0 if self._classes == 2 else self._classes / (self._classes - 1))
        return scale * slope, scale * spread

    def _step(self, number: int, slope: Tensor, spread: Tensor, residual: Tensor, find_evidence: bool) -> float:
        """Set the weights of a class to their posterior mean; `slope` is M, `spread` V without the noise.

        Return how far that moves the log-odds; a step that is too long is cut.
        """
        identity = torch.eye(len(spread), dtype=torch.float64, device=self._device)
        tiny = 1e-9 * float(spread.diagonal().mean()) + 1e-12
        root = torch.linalg.cholesky(spread + (self._noise + tiny) * identity)
        response = torch.linalg.solve_triangular(root, slope, upper=False)
        seen = residual + slope @ self._weights[number]
        observed = torch.linalg.solve_triangular(root, seen[:, None], upper=False)[:, 0]
        base = torch.zeros_like(spread)
        base[0, 0] = _BASE_VARIANCE / self._constant**2
        if find_evidence:
            parts = [response @ covariance @ response.T for covariance in self._covariances]
            ignorance = identity + response @ base @ response.T
            self._variances[number], evidence = variance_components(observed, ignorance, parts)
            self._evidence[number] = evidence - _log_density(observed, ignorance)
            self._worth[number] = float(torch.cholesky_solve(spread, root).diagonal().mean())
        prior = _total(base, self._variances[number], self._covariances)
        solved = torch.cholesky_solve(
            observed[:, None], torch.linalg.cholesky(identity + response @ prior @ response.T)
        )
        change = (prior @ (response.T @ solved))[:, 0] - self._weights[number]
        moved = float((self._unscaled(self._some) @ change.float()).square().mean().sqrt())
        self._weights[number] += change * min(1.0, _FARTHEST / max(moved, 1e-12))
        return moved

    def _parts(self, stride: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all records, or one of `stride` each, in parts of bounded size."""
        for start in range(0, len(self._phi), stride * ROWS_AT_ONCE):
            yield self._at(slice(start, start + stride * ROWS_AT_ONCE, stride))

    def _at(self, which: slice) -> tuple[Tensor, Tensor]:
        """Return φ of some records, and their logits by the first head, or zero."""
        phi = torch.from_numpy(self._phi[which].astype(np.float32)).to(self._device) / self._bound
        before = torch.zeros(1) if self._before is None else torch.from_numpy(np.array(self._before[which]))
        return phi, before.to(self._device)

    def _unscaled(self, phi: Tensor) -> Tensor:
        """Return z of records from φ: the first coordinate of z is a constant, so that of φ tells the length of z."""
        return phi * (self._constant / phi[:, :1].clamp(min=self._constant / _LONGEST))

    def _predicted(self, phi: Tensor, before: Tensor) -> Tensor:
        return _probabilities((self._unscaled(phi) @ self._weights.T.float() + before).double())


def variance_components(observed: Tensor, known: Tensor, parts: Sequence[Tensor]) -> tuple[Tensor, float]:
    """Return the v_t that make `observed ~ N(0, known + Σ_t v_t·parts_t)` most likely, about, and the log-density.

    Each step multiplies v_t by `√(aᵀ P_t a / tr(S⁻¹ P_t))`, with S the covariance and `a = S⁻¹·observed`: it never
    makes them less likely (Zhou, Hu, Zhou and Lange 2019, "MM algorithms for variance components models").
    """
    v = observed.new_ones(len(parts))
    for _ in range(_STEPS):
        inverse = torch.linalg.inv(_total(known, v, parts))
        solved = inverse @ observed
        explained = torch.stack([solved @ part @ solved for part in parts])
        expected = torch.stack([(inverse * part).sum() for part in parts])
        v = v * (explained / expected.clamp(min=1e-12)).clamp(min=0).sqrt()
    return v, _log_density(observed, _total(known, v, parts))


def _total(known: Tensor, v: Tensor, parts: Sequence[Tensor]) -> Tensor:
    return sum((share * part for share, part in zip(v, parts, strict=True)), known)


def _log_density(observed: Tensor, covariance: Tensor) -> float:
    """Return `ln N(observed; 0, covariance)`, up to a constant."""
    root = torch.linalg.cholesky(covariance)
    scaled = torch.linalg.solve_triangular(root, observed[:, None], upper=False)
    return float(-root.diagonal().log().sum() - 0.5 * scaled.square().sum())
