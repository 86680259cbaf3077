"""What a finished run says of itself."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, get_type_hints

from tpsl.files import for_json

NOTHING_RELEASED = "nothing released"
"""The mechanism of a run whose feature parties get nothing back (`gradients: none`, ε = 0)."""


@dataclass(frozen=True)
class TrainResult:
    """The outcome of a run, at the label party: test metrics depend on true labels and stay there."""

    run: str
    data: str
    mechanism: str
    estimator: str
    draws: int
    total_epsilon: float
    """The largest ε that any training record has spent over all releases of the vault: what is promised about it."""
    total_delta: float
    """The δ that goes with it."""
    epsilon: float
    """The ε of this run's own release, from the integers that were sampled; infinite without noise."""
    delta: float
    private: bool
    """False if any release of the training records had seeded noise or none."""
    classes: int
    train_records: int
    statistic_records: int
    """Training records whose labels left in noisy statistics, all others as noisy labels; 0 if there was none."""
    test_records: int
    epochs: int
    """Epochs that were trained."""
    kept_epoch: int
    """The epoch whose weights were kept: the last one, or with `patience` the best by the noisy hold-out."""
    steps: int
    validation_loss: float
    """Unbiased estimate of the log loss from noisy labels of held-out records; NaN without a hold-out."""
    validation_auc: float
    """Estimate of the AUC from noisy labels of held-out records; NaN where they are too few to estimate it."""
    validation_auc_low: float
    """Its 95 % interval."""
    validation_auc_high: float
    test_auc: float
    """Of the private head, like all metrics here; NaN if there is none (`gradients: none`)."""
    test_auc_low: float
    test_auc_high: float
    test_log_loss: float
    test_accuracy: float
    test_calibration_error: float
    samples_per_second: float
    seconds: float
    """Without those in which the other parties had not come yet."""

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able data; an infinite ε becomes null, because JSON has no infinity."""
        content: dict[str, Any] = for_json(asdict(self))
        return content

    @classmethod
    def from_dict(cls, content: Any) -> TrainResult:
        """Rebuild what `as_dict` wrote; a field that is missing or of another type is a `ValueError` that names it."""
        if not isinstance(content, dict):
            raise ValueError("it is no mapping")
        values: dict[str, Any] = {}
        for name, kind in _fields().items():
            if name not in content:
                raise ValueError(f"it has no {name}: another version of tpsl wrote it")
            value = content[name]
            if kind is float and value is None:
                value = math.inf if name in _INFINITE else math.nan
            if type(value) is not kind:
                raise ValueError(f"{name} is {value!r}")
            values[name] = value
        return cls(**values)


@dataclass(frozen=True)
class FeatureResult:
    """The outcome of a run at a feature party: nothing here depends on labels."""

    run: str
    party: str
    job: str
    """Digest of the job."""
    train_records: int
    epochs: int
    steps: int
    samples_per_second: float


@cache
def _fields() -> dict[str, Any]:
    return get_type_hints(TrainResult)


_INFINITE = ("epsilon", "total_epsilon")
"""What null stands for here; where a metric does not exist (one class only) it is NaN."""
