from __future__ import annotations

import numpy as np
import pytest

from tpsl.prediction.committee import Mixture


def test_a_mixture_is_by_weight() -> None:
    two, many = Mixture(), Mixture()
    for weight, p in ((0.75, 0.8), (0.25, 0.2)):
        two.add(weight, np.array([p, 1.0], dtype=np.float32))
        many.add(weight, np.array([[p, 1 - p, 0.0]]))
    assert two.predict() == pytest.approx([0.65, 1.0])
    assert many.predict() == pytest.approx(np.array([[0.65, 0.35, 0.0]]))
    with pytest.raises(ValueError, match="without members"):
        Mixture().predict()
