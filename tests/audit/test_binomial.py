import pytest
from scipy.stats import beta, binom

from tpsl.audit import clopper_pearson_lower
from tpsl.audit.binomial import tail_probability

CASES = [(0, 1), (1, 1), (1, 10), (9, 10), (10, 10), (731, 1000), (14_621, 20_000), (20_000, 20_000), (1, 20_000)]


@pytest.mark.parametrize(("right", "trials"), CASES)
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999999])
def test_the_bound_is_that_of_scipy(right: int, trials: int, confidence: float) -> None:
    expected = beta.ppf(1 - confidence, right, trials - right + 1) if right else 0.0
    assert clopper_pearson_lower(right, trials, confidence) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(("right", "trials"), CASES)
@pytest.mark.parametrize("probability", [0.0, 0.01, 0.731, 0.9999, 1.0])
def test_the_tail_is_that_of_scipy(right: int, trials: int, probability: float) -> None:
    expected = binom.sf(right - 1, trials, probability)
    assert tail_probability(right, trials, probability) == pytest.approx(expected, rel=1e-6, abs=1e-290)


@pytest.mark.parametrize(("right", "trials", "confidence"), [(2, 1, 0.95), (-1, 1, 0.95), (0, 0, 0.95), (1, 2, 1.0)])
def test_what_cannot_be(right: int, trials: int, confidence: float) -> None:
    with pytest.raises(ValueError, match=r"cannot be right|confidence"):
        clopper_pearson_lower(right, trials, confidence)
