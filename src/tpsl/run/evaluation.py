"""What test metrics say of a run: those from true labels, at the label party, and those that may be handed over.

`TestMetrics` depend on true labels, so they may not cross the border. Neither may the time that they take:
`tpsl.run.after_training` says when they are computed.

`SharedEvaluation` is computed from what the vault releases of the labels of test records, and from predictions that
were learned from noisy training labels: by post-processing, the whole file has the ε of that release for each
label, whoever chose the embeddings that the predictions were made of. The predictions of a local head never come in:
they tell of true training labels.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tpsl import metrics
from tpsl.data.rawtable import NO_LABEL
from tpsl.data.sides import LabelSide
from tpsl.files import for_json
from tpsl.mechanisms import Mechanism
from tpsl.progress import Notice, no_notice
from tpsl.run.noisy_metrics import NoisyMetrics, noisy_metrics
from tpsl.run.releases import noisy_test_labels
from tpsl.run.result import TrainResult
from tpsl.run.run_folder import RunError, RunFolder, read_note
from tpsl.vault import ReleasePolicy, Spent, Vault

SHARED_METRICS = "shared_metrics.json"
"""The file's name: in the run folder at the label party, in its own folder of the run at a feature party."""
_LARGEST_FILE = 1 << 20


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


def evaluate(probabilities: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]) -> TestMetrics:
    """Return the metrics of the records whose label is known; what does not exist (one class only) is NaN."""
    unknown = sum(int(np.count_nonzero(labels[block] == NO_LABEL)) for block in metrics.blocks(len(labels)))
    if unknown == len(labels):
        return TestMetrics(**dict.fromkeys(TEST_METRICS, math.nan))
    if unknown:
        known = labels != NO_LABEL
        probabilities, labels = probabilities[known], labels[known]
    area = metrics.AUC(math.nan, math.nan, math.nan)
    if labels.min() < labels.max():
        area = (metrics.auc if probabilities.ndim == 1 else metrics.macro_auc)(probabilities, labels)
    return TestMetrics(
        test_auc=area.value,
        test_auc_low=area.low,
        test_auc_high=area.high,
        test_log_loss=metrics.log_loss(probabilities, labels),
        test_accuracy=metrics.accuracy(probabilities, labels),
        test_calibration_error=metrics.calibration_error(probabilities, labels),
    )


@dataclass(frozen=True, kw_only=True)
class SharedEvaluation:
    """What the label party may tell of a run. Given the noisy labels, nothing in it depends on true ones.

    What the records have spent in all is not in it: where people are counted by unit, that depends on whom the label
    party knows.
    """

    shared_metrics: Literal[1] = 1
    """The version of the file. A later one may have more keys; what a key means stays the same."""
    job: str
    """Digest of the job."""
    versions: Mapping[str, str]
    """The version of each feature party's half: which run of the job this is."""
    of: Literal["test records"] = "test records"
    """Which records the metrics are of."""
    records: int
    classes: int
    mechanism: str
    epsilon: float
    """The ε of the release of the labels that this is computed from."""
    delta: float
    metrics: NoisyMetrics

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able data: null for what is NaN."""
        content: dict[str, Any] = for_json(asdict(self))
        return content

    def to_json(self) -> bytes:
        """Return the file: equal bytes for equal noisy labels and predictions."""
        return (json.dumps(self.as_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read_shared(path: Path, job: str, versions: Mapping[str, str]) -> SharedEvaluation:
    """Return what a file says that the other side may have written, if it speaks of this job and of these versions."""
    found = read_note(path, SharedEvaluation, _LARGEST_FILE)
    if found is None:
        raise RunError(f"{path}: there is no such file")
    if found.job != job:
        raise RunError(f"{path}: speaks of a run of another job")
    if any(found.versions.get(party) != version for party, version in versions.items()):
        raise RunError(f"{path}: speaks of another run of this job")
    return found


@dataclass(frozen=True)
class EvaluationTerms:
    """How labels are released for an evaluation: by which mechanism, from which vault, and what is permitted."""

    mechanism: Mechanism
    vault: Path
    policy: ReleasePolicy
    notice: Notice = no_notice


def evaluate_test_records(run: RunFolder, side: LabelSide, terms: EvaluationTerms) -> tuple[SharedEvaluation, Spent]:
    """Release the labels of a run's test records, unless that was done before, and judge its predictions by them.

    Also returns what these records have spent in all, for the label party alone.
    """
    result = _finished(run, terms.vault)
    predicted = run.predictions(result.kept_epoch)["test"]
    if len(predicted) != len(side.records.test):
        raise RunError(
            f"{run.path}: predicted {len(predicted):,} test records, and the data have {len(side.records.test):,}: "
            "they have changed since"
        )
    versions, mechanism = run.versions(), terms.mechanism  # what can fail comes before what costs
    noisy, total = noisy_test_labels(mechanism, side, terms.vault, terms.notice, terms.policy)
    shared = SharedEvaluation(
        job=run.job().digest(),
        versions=versions,
        records=len(predicted),
        classes=mechanism.classes,
        mechanism=str(mechanism),
        epsilon=mechanism.epsilon,
        delta=mechanism.delta,
        metrics=noisy_metrics(mechanism, noisy.draws, predicted),
    )
    return shared, total


def _finished(run: RunFolder, vault: Path) -> TrainResult:
    """Return the result of a run whose predictions come from noisy labels alone, of which metrics may leave."""
    result = run.finished_result()
    if run.job().hands_over and not result.epochs:
        raise RunError(
            f"{run.path}: the labels were handed over, and the network is at the feature party: there is nothing to "
            "evaluate here"
        )
    if not run.job().releases:
        raise RunError(
            f"{run.path}: has a local head alone (gradients: none), and what it predicts tells of true labels: it "
            "cannot be evaluated for others"
        )
    run.refuse_scratch()
    with Vault.open(vault) as opened:
        opened.refuse_scratch()
    return result
