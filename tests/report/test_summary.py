from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from tpsl.report import RunSummary


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"name": "a\x1b[31m"}, "the name of a run must be printable text, got 'a\\x1b[31m'"),
        ({"estimator": ""}, "the estimator of a run must be printable text"),
        ({"epsilon": 0.0}, "epsilon 0.0 must be positive"),
        ({"epsilon": nan}, "epsilon nan must be positive"),
        ({"epsilon": inf}, "epsilon inf is infinite, so the run cannot be private"),
        ({"delta": 1.0}, "delta 1.0 must be in [0, 1)"),
        ({"test_auc": nan}, "test_auc nan must be a number"),
        ({"test_auc": 1.2, "test_auc_high": 1.3}, "test_auc 1.2 must be in [0, 1]"),
        ({"test_auc_low": 0.8}, "test_auc_low 0.8 lies above the AUC 0.7291007"),
        ({"attack_auc_high": 0.6}, "attack_auc_high 0.6 lies below the AUC 0.6959"),
        ({"attack_closed_form": -0.1}, "attack_closed_form -0.1 must be in [0, 1]"),
        ({"ceiling": nan}, "ceiling nan must be a number"),
        ({"epochs": -1}, "epochs -1 must not be negative"),
        ({"samples_per_second": inf}, "samples_per_second inf must be a finite number"),
        ({"auc_by_epoch": (0.5, nan)}, "the AUC of epoch 2 is nan"),
    ],
)
def test_a_contradiction_is_refused_by_name(rows: list[RunSummary], wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError) as refusal:
        replace(rows[1], **wrong)
    assert complaint in str(refusal.value)
