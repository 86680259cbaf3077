"""A committee of candidates, weighted by what noisy labels of held-out records say of their mixture.

Stacking of predictive distributions (Yao, Vehtari, Simpson and Gelman 2018), on noisy labels. The weights w maximise

    Σ_i ln Σ_c w_c·P(t_i | candidate c)  +  Σ_c ln w_c

the likelihood of the noisy labels t_i under the mixture, with one made-up observation for every candidate. Where noisy
labels cannot tell candidates apart, as at ε = 0.1, the second sum decides and the committee is nearly the plain mean;
where they can, the first one does, and keeps those that complement each other. There is no constant to choose, and
nothing but the release is used: it costs no budget.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_STEPS = 100
_ENOUGH = 1e-9
"""Newton's method ends when a step promises less than this, in nats."""


def committee_weights(log_likelihoods: Sequence[npt.NDArray[np.floating]]) -> Floats:
    """Return weights that add up to 1, from `ln P(t_i | candidate)` of each held-out record, one array a candidate.

    A candidate with a number that is not finite counts nothing. The problem is concave with one solution, inside the
    simplex; Newton's method finds it in a few steps however little the labels say.
    """
    rows = np.asarray(log_likelihoods, dtype=np.float64)
    finite = np.isfinite(rows).all(axis=1)
    if not finite.any():
        raise ValueError("no candidate has a finite likelihood: all of them diverged")
    given = rows[finite]
    # Of each record only ratios between candidates count.
    likelihood = np.exp(given - given.max(axis=0)).T
    count = likelihood.shape[1]
    w: Floats = np.full(count, 1 / count)
    for _ in range(_STEPS):
        scaled = likelihood / (likelihood @ w)[:, None]
        gradient = scaled.sum(axis=0) + 1 / w
        curvature = scaled.T @ scaled + np.diag(1 / w**2)
        # The step keeps the sum: curvature·step + λ = gradient, Σ step = 0.
        solved = np.linalg.solve(curvature, np.stack([gradient, np.ones(count)], axis=1))
        step = solved[:, 0] - solved[:, 1] * (solved[:, 0].sum() / solved[:, 1].sum())
        promised = float(gradient @ step)
        if promised < _ENOUGH:
            break
        w = _climb(likelihood, w, step, promised)
    weights: Floats = np.zeros(len(rows))
    weights[finite] = w / w.sum()
    return weights


def _climb(likelihood: Floats, w: Floats, step: Floats, promised: float) -> Floats:
    """Go along a Newton step, as far as it stays inside the simplex and climbs as it should."""
    falling = step < 0
    length = min(1.0, float(0.95 * (w[falling] / -step[falling]).min())) if falling.any() else 1.0
    here = _objective(likelihood, w)
    while length > 1e-12 and _objective(likelihood, w + length * step) < here + 1e-4 * length * promised:
        length /= 2
    return w + length * step


def _objective(likelihood: Floats, w: Floats) -> float:
    return float(np.log(likelihood @ w).sum() + np.log(w).sum())
