"""The rounding fingerprint: why `g_y + u·(g_{1-y} - g_y)`, computed as it stands in floats, is not private at all.

The two formulas, for y = 0 and for y = 1, round differently. An attacker that knows g_0 and g_1 tries for each label
all float32 numbers u near the estimate; the one that reproduces every coordinate of the received gradient gives the
label away, whatever ε. The cure is to draw the noisy label t first and to compute every message from t by one formula:
then rounding is post-processing of t.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tpsl.mechanisms import auc_ceiling, laplace
from tpsl.perturb import grad_perturb

Float32s = npt.NDArray[np.float32]
Guesses = npt.NDArray[np.int64]

UNDECIDED = -1
_LARGEST_RADIUS = 1024
_FIRST_COORDINATES = 4
_CANDIDATES_AT_ONCE = 1 << 18


def textbook_gradient(y: npt.NDArray[np.integer[Any]], u: Float32s, g_0: Float32s, g_1: Float32s) -> Float32s:
    """Return Algorithm 2 as it is printed, `g_y + u·(g_{1-y} - g_y)`, in float32. Not private: for the attack only."""
    is_one = (y == 1)[:, None]
    own, other = np.where(is_one, g_1, g_0), np.where(is_one, g_0, g_1)
    result: Float32s = own + u[:, None] * (other - own)
    return result


def fingerprint_attack(received: Float32s, g_0: Float32s, g_1: Float32s) -> Guesses:
    """Return for each record the label whose formula reproduces all its bits, `UNDECIDED` if none or both do."""
    fits_0, fits_1 = _reproducible(received, g_0, g_1), _reproducible(received, g_1, g_0)
    return np.where(fits_0 == fits_1, UNDECIDED, fits_1.astype(np.int64))


def _reproducible(received: Float32s, own: Float32s, other: Float32s) -> npt.NDArray[np.bool_]:
    """Say for which records some float32 u gives `own + u·(other - own)` exactly as received."""
    difference = other - own
    wide = difference.astype(np.float64)
    squared = np.maximum(np.einsum("ij,ij->i", wide, wide), np.finfo(np.float64).tiny)
    estimate = np.einsum("ij,ij->i", received.astype(np.float64) - own, wide) / squared
    # Each of two roundings moves a coordinate by 2^-24 of it at most, so u is off by at most
    # 2^-24·(|u| + ‖received‖/‖difference‖); one step of float32 at u is between 2^-24·|u| and 2^-23·|u|.
    size = np.sqrt(np.einsum("ij,ij->i", received, received, dtype=np.float64) / squared)
    with np.errstate(divide="ignore"):
        radius = np.ceil(2.0 + size / np.abs(estimate))
    # Next to 0 the float32 numbers lie too densely to try them all; there only the nearest and u = 0 are tried.
    radius = 2.0 ** np.ceil(np.log2(np.where(radius <= _LARGEST_RADIUS, radius, 2.0)))
    fits: npt.NDArray[np.bool_] = np.all(received == own, axis=1)
    for steps in np.unique(radius).astype(np.int64).tolist():
        of_radius = np.flatnonzero((radius == steps) & ~fits)
        at_once = max(1, _CANDIDATES_AT_ONCE // (2 * steps + 1))
        for start in range(0, len(of_radius), at_once):
            part = of_radius[start : start + at_once]
            candidates = _neighbours(estimate[part].astype(np.float32), steps)
            fits[part] = _any_fits(candidates, received[part], own[part], difference[part])
    return fits


def _neighbours(values: Float32s, steps: int) -> Float32s:
    """Return the float32 numbers up to `steps` below and above each value, one row for each."""
    # As integers, float32 numbers are ordered by magnitude: mirrored below 0, their order is that of the numbers.
    bits = values.view(np.int32).astype(np.int64)
    ordered = np.where(bits >= 0, bits, -(bits & 0x7FFFFFFF))[:, None] + np.arange(-steps, steps + 1)
    magnitude = np.abs(ordered).astype(np.int32).view(np.float32)
    neighbours: Float32s = np.copysign(magnitude, ordered).astype(np.float32)
    return neighbours


def _any_fits(candidates: Float32s, received: Float32s, own: Float32s, difference: Float32s) -> npt.NDArray[np.bool_]:
    """Say for which records one of its candidates reproduces every coordinate."""
    alive = np.ones(candidates.shape, dtype=bool)
    # Few candidates survive the first coordinates; only those are worth trying on all.
    for i in range(min(_FIRST_COORDINATES, received.shape[1])):
        alive &= own[:, i, None] + candidates * difference[:, i, None] == received[:, i, None]
    record, candidate = np.nonzero(alive)
    result = own[record] + candidates[record, candidate][:, None] * difference[record]
    fits = np.zeros(len(received), dtype=bool)
    fits[record[(result == received[record]).all(axis=1)]] = True
    return fits


@dataclass(frozen=True)
class FingerprintResult:
    """What the fingerprint attack recovers from the textbook formula and from ours, on the same gradients."""

    records: int
    width: int
    epsilon: float
    ceiling: float
    """What ε allows: how often a guess of a fair-coin label may be right, `e^ε/(1+e^ε)`."""
    textbook_accuracy: float
    textbook_decided: float
    """The share of records for which exactly one label reproduces the bits; else the nearer one is guessed."""
    our_accuracy: float
    our_decided: float

    @property
    def sampling_error(self) -> float:
        """One standard deviation of an accuracy at the ceiling."""
        return math.sqrt(self.ceiling * (1 - self.ceiling) / self.records)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able data."""
        return {**asdict(self), "sampling_error": self.sampling_error}


def generated_gradients(records: int, width: int = 128, seed: int = 0) -> tuple[Float32s, Float32s]:
    """Return `g_0 = σ(z)·s` and `g_1 = (σ(z)-1)·s` for random z and s, in float32."""
    generator = np.random.default_rng(seed)
    slope = torch.from_numpy(generator.normal(size=(records, width)).astype(np.float32))
    probability = torch.sigmoid(torch.from_numpy(generator.normal(size=records).astype(np.float32)))[:, None]
    return (probability * slope).numpy(), ((probability - 1) * slope).numpy()


def fingerprint_experiment(g_0: Float32s, g_1: Float32s, epsilon: float = 0.1, seed: int = 0) -> FingerprintResult:
    """Give each pair of gradients (generated or recorded) a fair-coin label, perturb it both ways, attack both.

    Both ways draw Laplace noise for ε. The textbook way computes `g_y + u·(g_{1-y} - g_y)` in float32. Ours draws t
    from the exact table and computes `(1-t)·g_0 + t·g_1`, the same for both labels.
    """
    generator = np.random.default_rng(seed)
    records, width = len(g_0), g_0.shape[1]
    labels = generator.integers(0, 2, size=(records,))
    noise = generator.laplace(0.0, 1 / epsilon, size=(records,)).astype(np.float32)
    textbook = textbook_gradient(labels, noise, g_0, g_1)
    mechanism = laplace(epsilon)
    noisy = torch.from_numpy(mechanism.release(labels, seed).noisy.astype(np.float32))
    ours = grad_perturb(noisy, torch.from_numpy(np.stack([g_0, g_1]))).numpy()
    found = {}
    for name, received in (("textbook", textbook), ("ours", ours)):
        guesses = fingerprint_attack(received, g_0, g_1)
        decided = guesses != UNDECIDED
        guesses = np.where(decided, guesses, nearer_label(received, g_0, g_1))
        found[name] = float((guesses == labels).mean()), float(decided.mean())
    return FingerprintResult(
        records, width, epsilon, auc_ceiling(mechanism.epsilon), *found["textbook"], *found["ours"]
    )


def nearer_label(received: Float32s, g_0: Float32s, g_1: Float32s) -> Guesses:
    """Return the shortest-distance guess (section 3.1): 0 if `‖g̃ - g_0‖ ≤ ‖g̃ - g_1‖`, else 1."""
    distance_0, distance_1 = (np.linalg.norm(received.astype(np.float64) - g, axis=1) for g in (g_0, g_1))
    guesses: Guesses = np.asarray(distance_0 > distance_1, dtype=np.int64)
    return guesses
