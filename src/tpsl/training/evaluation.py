"""Test metrics, at the label party. They depend on true labels, so nothing computed here may cross the border.

Neither may the time that it takes: `tpsl.training.after_training` says when it is computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from tpsl import metrics
from tpsl.data.rawtable import NO_LABEL


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


TEST_METRICS = tuple(field.name for field in fields(TestMetrics))


def evaluate_known(probabilities: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]) -> TestMetrics:
    """Return the metrics of the records whose label is known; all are NaN if none is."""
    unknown = sum(int(np.count_nonzero(labels[block] == NO_LABEL)) for block in metrics.blocks(len(labels)))
    if unknown == len(labels):
        return TestMetrics(**dict.fromkeys(TEST_METRICS, math.nan))
    if unknown:
        known = labels != NO_LABEL
        probabilities, labels = probabilities[known], labels[known]
    return evaluate(probabilities, labels)


def evaluate(probabilities: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]) -> TestMetrics:
    """Return the metrics of probabilities against true labels; what does not exist (one class only) is NaN."""
    area = metrics.AUC(math.nan, math.nan, math.nan)
    if labels.min() < labels.max():
        if probabilities.ndim == 1:
            area = metrics.auc(probabilities, labels)
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
