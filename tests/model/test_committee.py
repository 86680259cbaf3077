from __future__ import annotations

import numpy as np
import pytest

from tpsl.model.predictors import mixture


def test_a_mixture_is_by_weight() -> None:
    members = ((0.75, 0.8), (0.25, 0.2))
    two = mixture((weight, np.array([p, 1.0], dtype=np.float32)) for weight, p in members)
    many = mixture((weight, np.array([[p, 1 - p, 0.0]])) for weight, p in members)
    assert two == pytest.approx([0.65, 1.0])
    assert many == pytest.approx(np.array([[0.65, 0.35, 0.0]]))
    with pytest.raises(ValueError, match="without members"):
        mixture([])
