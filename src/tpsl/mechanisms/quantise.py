"""Integer vectors of bounded norm: what a statistic is summed from.

The bound is what the guarantee rests on, and the vectors come from the other party, which may be hostile. So it is
enforced here by integer arithmetic alone, for every input; how the input was computed plays no part.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Norm = Literal["l1", "l2"]

DEFAULT_BOUND = 1 << 15
"""Fine enough that rounding is lost in the noise; sums of up to 2^48 such vectors fit 64 bits."""
MAX_BOUND, MAX_WIDTH = 1 << 20, 1 << 16
"""With these the squared norm of a row that is not scaled down yet fits 63 bits."""

_NUMBERS_AT_ONCE = 1 << 20


def to_integers(phi: npt.NDArray[np.floating], bound: int) -> npt.NDArray[np.int32]:
    """Return `round(bound·φ)` with every number within ±`bound`; NaN becomes 0, infinity the bound.

    The norm of a row can still be above the bound: `clip_rows` sees to that.
    """
    check_bound(bound)
    integers = np.empty(phi.shape, np.int32)
    for rows in _blocks(phi):
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = phi[rows].astype(np.float64) * bound
        integers[rows] = np.rint(np.nan_to_num(np.clip(scaled, -bound, bound), nan=0.0))
    return integers


def clip_rows(rows: npt.NDArray[np.integer], bound: int, norm: Norm) -> npt.NDArray[np.int32]:
    """Return the rows with every number cut to ±`bound` and every row scaled down until its norm is at most `bound`.

    Guarantee: `Σ_j |q_j| ≤ bound` ("l1") or `Σ_j q_j² ≤ bound²` ("l2") for each row, in integers, for any input.
    """
    check_bound(bound)
    if rows.dtype.kind not in "iu" or rows.ndim != 2 or rows.shape[1] > MAX_WIDTH:
        raise ValueError(
            f"a statistic is summed from rows of at most {MAX_WIDTH:,} integers, got {rows.dtype} of shape {rows.shape}"
        )
    holds = np.iinfo(rows.dtype)
    least, largest = max(-bound, holds.min), min(bound, holds.max)
    clipped = np.empty(rows.shape, np.int32)
    for part in _blocks(rows):
        clipped[part] = np.clip(rows[part], least, largest)
        _scale_down(clipped[part], bound, norm)
    return clipped


def _scale_down(rows: npt.NDArray[np.int32], bound: int, norm: Norm) -> None:
    """Replace each row q that is too long by `bound·q/divisor`, rounded towards 0, with a divisor large enough."""
    size, limit = _sizes(rows, norm), bound if norm == "l1" else bound**2
    long = np.flatnonzero(size > limit)
    given = rows[long].astype(np.int64)
    # Where to begin; that it suffices is checked in integers below.
    divisor = size[long] if norm == "l1" else np.sqrt(size[long]).astype(np.int64)
    while len(long):
        rows[long] = np.sign(given) * (np.abs(given) * bound // divisor[:, None])
        still = _sizes(rows[long], norm) > limit
        long, given, divisor = long[still], given[still], divisor[still] + 1


def _sizes(rows: npt.NDArray[np.int32], norm: Norm) -> npt.NDArray[np.int64]:
    """Return `Σ_j |q_j|` or `Σ_j q_j²` of each row, in 64 bits."""
    other = np.sign(rows) if norm == "l1" else rows
    sizes: npt.NDArray[np.int64] = np.einsum("ij,ij->i", rows, other, dtype=np.int64)
    return sizes


def _blocks(rows: npt.NDArray[Any]) -> list[slice]:
    """Slices of rows with about a million numbers each, so that what is computed on the way stays small."""
    at_once = max(1, _NUMBERS_AT_ONCE // max(1, rows.shape[1]))
    return [slice(start, start + at_once) for start in range(0, len(rows), at_once)]


def check_bound(bound: int) -> int:
    """Return the bound, or raise a ValueError that says what is wrong with it."""
    if isinstance(bound, bool) or not isinstance(bound, int) or not 1 <= bound <= MAX_BOUND:
        raise ValueError(f"the bound of a statistic must be an integer from 1 to {MAX_BOUND:,}, got {bound!r}")
    return bound
