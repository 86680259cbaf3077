"""The numbers of one run that a report shows."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class RunSummary:
    """One run in numbers. Contradictions (an interval beside its value, a promise without noise) are refused."""

    name: str
    mechanism: str
    estimator: str
    epsilon: float
    """The claimed ε; infinite without noise."""
    delta: float
    private: bool
    """False for no noise and for seeded noise, which anybody with the seed can subtract."""
    test_auc: float
    test_auc_low: float
    test_auc_high: float
    """Ends of the confidence interval; NaN where there is none, here and below."""
    attack_auc: float
    """The shortest-distance attack, measured; NaN if the run was not attacked."""
    attack_auc_low: float
    attack_auc_high: float
    attack_closed_form: float
    """The AUC of the same attack that follows from the mechanism alone; NaN where no formula is known."""
    ceiling: float
    """The AUC that ε allows any attack that works from the transcript alone."""
    epochs: int
    samples_per_second: float
    auc_by_epoch: tuple[float, ...]
    """Test AUC after each epoch."""

    def __post_init__(self) -> None:
        for field in ("name", "mechanism", "estimator"):
            text = getattr(self, field)
            if not text or not text.isprintable():
                raise ValueError(f"the {field} of a run must be printable text, got {text!r}")
        if not self.epsilon > 0:
            raise self._refusal("epsilon", "must be positive")
        if not 0 <= self.delta < 1:
            raise self._refusal("delta", "must be in [0, 1)")
        if self.private and math.isinf(self.epsilon):
            raise self._refusal("epsilon", "is infinite, so the run cannot be private")
        self._check_areas()
        if self.epochs < 0:
            raise self._refusal("epochs", "must not be negative")
        if not 0 <= self.samples_per_second < math.inf:
            raise self._refusal("samples_per_second", "must be a finite number, not negative")

    def _check_areas(self) -> None:
        for field in ("test_auc", "ceiling"):
            if math.isnan(getattr(self, field)):
                raise self._refusal(field, "must be a number")
        for measured in ("test_auc", "attack_auc"):
            value, low, high = (getattr(self, measured + end) for end in ("", "_low", "_high"))
            if low > value:
                raise self._refusal(f"{measured}_low", f"lies above the AUC {value}")
            if high < value:
                raise self._refusal(f"{measured}_high", f"lies below the AUC {value}")
            for field in (measured, f"{measured}_low", f"{measured}_high"):
                self._check_area(field, getattr(self, field))
        self._check_area("attack_closed_form", self.attack_closed_form)
        self._check_area("ceiling", self.ceiling)
        for epoch, area in enumerate(self.auc_by_epoch, start=1):
            if not 0 <= area <= 1:
                raise ValueError(f"run {self.name!r}: the AUC of epoch {epoch} is {area}, must be in [0, 1]")

    def _check_area(self, field: str, area: float) -> None:
        if not (math.isnan(area) or 0 <= area <= 1):
            raise self._refusal(field, "must be in [0, 1]")

    def _refusal(self, field: str, reason: str) -> ValueError:
        return ValueError(f"run {self.name!r}: {field} {getattr(self, field)} {reason}")
