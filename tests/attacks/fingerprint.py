"""The rounding fingerprint: why `g_y + u·(g_{1-y} - g_y)`, computed as it stands in floats, is not private at all.

The two formulas, for y = 0 and for y = 1, round differently. An attacker that knows g_0 and g_1 tries for each label
all float32 numbers u near the estimate; the one that reproduces every coordinate of the received gradient gives the
label away, whatever ε. The cure is to draw the noisy label t first and to compute every message from t by one formula:
then rounding is post-processing of t.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32s = npt.NDArray[np.float32]
Guesses = npt.NDArray[np.int64]

UNDECIDED = -1
_LARGEST_RADIUS = 1024
_FIRST_COORDINATES = 4
_CANDIDATES_AT_ONCE = 1 << 18


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
            candidates = neighbours(estimate[part].astype(np.float32), steps)
            fits[part] = _any_fits(candidates, received[part], own[part], difference[part])
    return fits


def neighbours(values: Float32s, steps: int) -> Float32s:
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
