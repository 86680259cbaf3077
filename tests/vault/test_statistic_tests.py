import numpy as np
import pytest

from tpsl.mechanisms import DiscreteGaussian, DiscreteLaplace, NoNoise, StatisticNoise, seeded_words
from tpsl.vault.statistic_tests import noise_problems

NOISES = [DiscreteGaussian(1, 1e-6), DiscreteGaussian(10**12, 1e-6), DiscreteLaplace(1), DiscreteLaplace(10**6)]


@pytest.mark.parametrize("noise", NOISES, ids=str)
@pytest.mark.parametrize("count", [1, 40, 5000])
def test_sound_noise_is_not_accused(noise: StatisticNoise, count: int) -> None:
    for seed in range(20):
        assert noise_problems(noise, noise.sample(count, seeded_words(seed)), "release 3") == []


@pytest.mark.parametrize("noise", [NOISES[1], NOISES[3]], ids=str)
def test_noise_of_another_size_or_place_is_accused(noise: StatisticNoise) -> None:
    sound = noise.sample(500, seeded_words(1))
    for wrong in (sound // 2, sound * 2, np.zeros(500, np.int64), np.zeros(1, np.int64)):
        if wrong.size > 1 or noise.deviation > 2e6:  # a single number is 0 once in a million times
            (problem,) = noise_problems(noise, wrong, "release 3")
            assert problem.startswith(f"release 3: the noise is not {noise}: its {wrong.size:,} numbers have a mean")
    shifted = noise_problems(noise, sound + int(noise.deviation), "release 3")
    assert any("release 3: the noise is not centred: its 500 numbers sum to" in problem for problem in shifted)


def test_where_no_noise_is_promised_none_may_be_there() -> None:
    assert noise_problems(NoNoise(), np.zeros((2, 3), np.int64), "release 3") == []
    assert noise_problems(NoNoise(), np.eye(2, 3, dtype=np.int64), "release 3") == [
        "release 3: 2 numbers are not those without noise"
    ]
