"""Exact noise for a statistic, drawn at length: `python benchmarks/statistic_noise.py [--draws N] [--json]`.

For each noise: how many numbers a second one core draws, and whether the draws agree with the formula outcome by
outcome: a chi-square test over all integers that are expected at least ten times (the tails put together), its
p-value, and the largest deviation of any single outcome in standard deviations. Noise as wide as it is used in
practice has no outcome that is drawn ten times; there the Kolmogorov-Smirnov distance to the continuous distribution
is tested, which differs from it by less than one part in a million.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from tpsl.mechanisms import DEFAULT_BOUND, DiscreteGaussian, DiscreteLaplace, StatisticNoise, fit_noise, secure_words

DELTA = 1e-6
SMALL: list[StatisticNoise] = [
    *(DiscreteGaussian(variance, DELTA) for variance in (1, 90, 10_000)),
    *(DiscreteLaplace(scale) for scale in (1, 7, 100)),
]
IN_USE = [fit_noise(kind, epsilon, DELTA, DEFAULT_BOUND, 2) for kind in ("gaussian", "laplace") for epsilon in (0.1, 1)]


@dataclass(frozen=True)
class Row:
    """One noise."""

    noise: str
    draws: int
    millions_per_second: float
    outcomes: int | None
    """The outcomes compared one by one; None for noise so wide that its distribution is compared as a whole."""
    p_value: float
    largest_deviation: float | None


def probabilities(noise: StatisticNoise, reach: int) -> npt.NDArray[np.float64]:
    """The probabilities of the integers within ±reach; what lies beyond is less than 1e-15."""
    y = np.arange(-reach, reach + 1, dtype=np.float64)
    exponent = -(y**2) / (2 * noise.variance) if isinstance(noise, DiscreteGaussian) else -np.abs(y) / _scale(noise)
    weights = np.exp(exponent)
    return np.asarray(weights / weights.sum())


def _scale(noise: StatisticNoise) -> int:
    assert isinstance(noise, DiscreteLaplace)
    return noise.scale


def outcome_by_outcome(noise: StatisticNoise, drawn: npt.NDArray[np.int64]) -> tuple[int, float, float]:
    """The number of outcomes, the p-value of all together, and the largest deviation of one."""
    reach = int(40 * noise.deviation) + 40
    counts = np.bincount(np.clip(drawn, -reach, reach) + reach, minlength=2 * reach + 1)
    expected = probabilities(noise, reach) * len(drawn)
    often = expected >= 10
    observed = np.append(counts[often], counts[~often].sum())
    wanted = np.append(expected[often], expected[~often].sum())
    deviations = (observed - wanted) / np.sqrt(wanted)
    p_value = stats.chi2.sf((deviations**2).sum(), len(wanted) - 1)
    return int(often.sum()), float(p_value), float(np.abs(deviations).max())


def measured(noise: StatisticNoise, draws: int) -> Row:
    """Draw and compare."""
    start = time.perf_counter()
    drawn = noise.sample(draws, secure_words())
    speed = draws / (time.perf_counter() - start) / 1e6
    if noise not in IN_USE:
        outcomes, p_value, largest = outcome_by_outcome(noise, drawn)
        return Row(str(noise), draws, speed, outcomes, p_value, largest)
    continuous = (
        stats.norm(scale=noise.deviation)
        if isinstance(noise, DiscreteGaussian)
        else stats.laplace(scale=float(_scale(noise)))
    )
    return Row(str(noise), draws, speed, None, float(stats.kstest(drawn, continuous.cdf).pvalue), None)


def main() -> None:
    """Measure every noise and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=10_000_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [measured(noise, arguments.draws) for noise in (*SMALL, *IN_USE)]
    if arguments.json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}))
        return
    print(f"{'noise':<42}{'draws':>12}{'M/s':>8}{'outcomes':>10}{'p-value':>10}{'largest':>9}")
    for row in rows:
        largest = "" if row.largest_deviation is None else f"{row.largest_deviation:.2f} σ"
        outcomes = "" if row.outcomes is None else f"{row.outcomes:,}"
        print(
            f"{row.noise:<42}{row.draws:>12,}{row.millions_per_second:>8.2f}{outcomes:>10}{row.p_value:>10.3g}{largest:>9}"
        )


if __name__ == "__main__":
    main()
