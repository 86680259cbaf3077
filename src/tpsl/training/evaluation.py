"""Test metrics, at the label party. They depend on true labels, so nothing computed here may cross the border."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tpsl import metrics

_TIMES_MADE_UP = 3


@dataclass(frozen=True)
class TestMetrics:
    """How good the network is on records it was not trained on."""

    __test__ = False

    test_auc: float
    """Two classes: AUC; k classes: the mean AUC of one class against the rest."""
    test_auc_low: float
    test_auc_high: float
    test_log_loss: float
    test_accuracy: float
    test_calibration_error: float


def evaluate_in_fixed_time(
    probabilities: npt.NDArray[np.float32], labels: npt.NDArray[np.int64], classes: int
) -> TestMetrics:
    """Return the metrics after a time that does not depend on the labels: three times what made-up labels take.

    The feature parties wait meanwhile. Sorting and counting take a few milliseconds more or less for other labels, and
    a feature party can measure when the next message comes.
    """
    begun = time.perf_counter()
    evaluate(probabilities, np.arange(len(labels), dtype=np.int64) % classes)
    end = begun + _TIMES_MADE_UP * (time.perf_counter() - begun)
    found = evaluate(probabilities, labels)
    time.sleep(max(0.0, end - time.perf_counter()))
    return found


def evaluate(probabilities: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]) -> TestMetrics:
    """Return the metrics of probabilities against true labels; what does not exist (one class only) is NaN."""
    area = metrics.AUC(math.nan, math.nan, math.nan)
    if len(np.unique(labels)) > 1:
        if probabilities.ndim == 1:
            area = metrics.auc(probabilities, labels == 1)
        else:
            area = metrics.macro_auc(probabilities, labels)
    return TestMetrics(
        test_auc=area.value,
        test_auc_low=area.low,
        test_auc_high=area.high,
        test_log_loss=metrics.log_loss(probabilities, labels),
        test_accuracy=metrics.accuracy(probabilities, labels),
        test_calibration_error=metrics.calibration_error(probabilities, labels),
    )
