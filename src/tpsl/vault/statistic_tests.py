"""Does the noise of a released statistic look like what its plan says? Tested against the sum without noise."""

import math

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms import DiscreteGaussian, DiscreteLaplace, StatisticNoise
from tpsl.vault.outcome_tests import Tested, accusations
from tpsl.vault.stored_outcomes import LEVEL


def noise_problems(noise: StatisticNoise, added: npt.NDArray[np.int64], place: str) -> list[str]:
    """Return what sound noise does not show, a sentence each; `added` is the noise itself."""
    if not noise.deviation:
        wrong = int(np.count_nonzero(added))
        return [f"{place}: {wrong:,} numbers are not those without noise"] if wrong else []
    return accusations(noise_tests(noise, added, place), LEVEL)


def noise_tests(noise: StatisticNoise, added: npt.NDArray[np.int64], place: str) -> list[Tested]:
    """Test the size and the centre of noise.

    Its size is compared with the sum of squares of Gaussian noise (χ²) or of the absolute values of Laplace noise
    (gamma distribution), and its sum with 0. The half by which an integer may lie beside a real number is allowed for.
    """
    return [_size(noise, added, place), _centre(noise, added, place)]


def _size(noise: StatisticNoise, added: npt.NDArray[np.int64], place: str) -> Tested:
    from scipy.special import gammainc, gammaincc  # takes as long to import as all of the vault

    less, more = (np.maximum(np.abs(added).astype(np.float64) + half, 0.0) for half in (-0.5, 0.5))
    if isinstance(noise, DiscreteGaussian):
        shape, below, above = added.size / 2, *((part**2).sum() / (2 * noise.variance) for part in (more, less))
    elif isinstance(noise, DiscreteLaplace):
        shape, below, above = float(added.size), *(part.sum() / noise.scale for part in (more, less))
    else:
        raise TypeError(f"the noise {noise} cannot be tested")
    p_value = min(1.0, 2 * min(gammainc(shape, below), gammaincc(shape, above)))
    size = math.sqrt(float((added.astype(np.float64) ** 2).mean()))
    sentence = (
        f"{place}: the noise is not {noise}: its {added.size:,} numbers have a mean square of {size:.4g}², where "
        f"{noise.deviation:.4g}² is expected"
    )
    return Tested(sentence, float(p_value), 1)


def _centre(noise: StatisticNoise, added: npt.NDArray[np.int64], place: str) -> Tested:
    """The sum of the noise, by a bound that both kinds keep: Bernstein's."""
    total, spread = abs(float(added.astype(np.float64).sum())), noise.deviation * math.sqrt(added.size)
    # E e^{tY} ≤ e^{t²σ²/2 / (1 - t·σ)} for both, so P(|ΣY| ≥ x) ≤ 2 exp(-x² / (2(nσ² + σx))).
    p_value = min(1.0, 2 * math.exp(-(total**2) / (2 * (spread**2 + noise.deviation * total))))
    sentence = (
        f"{place}: the noise is not centred: its {added.size:,} numbers sum to {total:.4g} beside 0, where about "
        f"{spread:.4g} is expected"
    )
    return Tested(sentence, p_value, 1)
