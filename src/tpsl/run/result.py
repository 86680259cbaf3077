"""What the JSON files of a run folder hold: results, and the notes of a party (`RunFolder` reads and writes them).

JSON has neither infinity nor NaN: both are null in a file. Null is an infinite ε, or a metric that does not exist.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator

from tpsl.files import for_json

NOTHING_RELEASED = "nothing released"
"""The mechanism of a run whose feature parties get nothing back (`gradients: none`, ε = 0)."""

Measured = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A metric; NaN where it does not exist."""
Epsilon = Annotated[float, BeforeValidator(lambda value: math.inf if value is None else value)]


@dataclass(frozen=True)
class TrainResult:
    """The outcome of a run, at the label party: test metrics depend on true labels and stay there."""

    run: str
    data: str
    mechanism: str
    estimator: str
    draws: int
    total_epsilon: Epsilon
    """The largest ε that any training record has spent over all releases of the vault: what is promised about it."""
    total_delta: float
    """The δ that goes with it."""
    epsilon: Epsilon
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
    validation_loss: Measured
    """Unbiased estimate of the log loss from noisy labels of held-out records; NaN without a hold-out."""
    validation_auc: Measured
    """Estimate of the AUC from noisy labels of held-out records; NaN where they are too few to estimate it."""
    validation_auc_low: Measured
    """Its 95 % interval."""
    validation_auc_high: Measured
    test_auc: Measured
    """Of the private head, like all metrics here; NaN if there is none (`gradients: none`)."""
    test_auc_low: Measured
    test_auc_high: Measured
    test_log_loss: Measured
    test_accuracy: Measured
    test_calibration_error: Measured
    samples_per_second: Measured
    seconds: Measured
    """Without those in which the other parties had not come yet."""

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able data."""
        content: dict[str, Any] = for_json(asdict(self))
        return content


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


@dataclass(frozen=True)
class LedgerNote:
    """Which vault a run releases from, and what its records have spent there; the note outlives the vault."""

    vault: Path
    """In the file, one in the run's own folder is relative to it, and moves with it."""
    release: str
    """The noisy labels, as the ledger describes them."""
    identity: str
    """Of the vault, wherever it lies."""
    head: str
    """The hash of the newest entry of its ledger."""
    epsilon: Epsilon
    delta: float
    private: bool
    records: int
    time: str
    statistics: tuple[str, ...] = ()
    """The noisy statistics, as the ledger describes them."""
    statistics_before: int | None = None
    """How many of them the vault had released before the run began; None if the run has released none."""
    scratch: bool = False
    """Whether the vault counts in no total, and nothing of the run may leave."""


@dataclass(frozen=True)
class RecordsNote:
    """Which records a party was trained on, and by which version of tpsl."""

    records: int
    digest: str
    """Equal at every party; another one than the handshake's."""
    program: str


@dataclass(frozen=True)
class ReleasedBefore:
    """What the label party knows of the labels that an earlier run has learned from."""

    vault: Path
    head: str
    """The newest entry of the vault's ledger then: a vault that has it is that one, wherever it lies now."""
    epsilon: Epsilon
    """The most that any of them had spent in all."""


@dataclass(frozen=True)
class Origin:
    """The run that a run has started from, as one party knows it."""

    run: str
    """Its folder."""
    versions: Mapping[str, str]
    """Of the feature parties' halves (`Role.version_of`), as far as this party knows them."""
    train_records: int
    released: ReleasedBefore | None = None
    """None at a feature party, and in an audit, which releases labels of its own."""


class EpochMetrics(BaseModel, extra="allow"):
    """A line of `metrics.jsonl`: these numbers, and what is known of the predictions then, by name."""

    epoch: int
    step: int
