from math import isclose, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpsl.report.scale import scale_for

areas = st.lists(st.floats(min_value=0, max_value=1), min_size=1)


@given(areas, st.integers(min_value=3, max_value=10))
def test_an_axis_holds_its_values_between_evenly_spaced_ticks(values: list[float], most: int) -> None:
    scale = scale_for(values, most)
    assert 2 <= len(scale.ticks) <= most
    assert scale.ticks[0] >= 0 and scale.ticks[-1] <= 1
    assert all(-1e-6 <= scale.share(value) <= 1 + 1e-6 for value in values)
    step = scale.ticks[1] - scale.ticks[0]
    assert all(isclose(b - a, step, rel_tol=1e-6) for a, b in zip(scale.ticks, scale.ticks[1:], strict=False))
    assert [float(scale.label(tick)) for tick in scale.ticks] == list(scale.ticks)


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.7261, 0.7731, nan], (0.72, 0.74, 0.76, 0.78)),
        ([0.5, 1.0], (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)),
        ([0.48, 1.0], (0.4, 0.6, 0.8, 1.0)),
        ([1.0], (0.999, 1.0)),
        ([0.7], (0.699, 0.7, 0.701)),
        ([0.0, 1.0], (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
    ],
)
def test_ticks_are_round(values: list[float], ticks: tuple[float, ...]) -> None:
    assert scale_for(values).ticks == ticks


def test_share_is_the_place_on_the_axis() -> None:
    scale = scale_for([0.5, 1.0])
    assert [scale.share(0.5), scale.share(0.75), scale.share(1.0)] == [0.0, 0.5, 1.0]
