"""An evaluation that may be handed to the feature parties: metrics from noisy labels of records not trained on.

The metrics of `tpsl.training.evaluation` depend on true labels and stay at the label party. Those here are computed
from what the vault releases of the labels of test or new records, and from predictions that were learned from noisy
training labels: by post-processing, the whole file has the ε of that release for each label, whoever chose the
embeddings that the predictions were made of. The predictions of a local head never come in: they tell of true training
labels.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from tpsl.data.sides import LabelSide
from tpsl.files import for_json
from tpsl.mechanisms import Mechanism
from tpsl.progress import Notice, no_notice
from tpsl.training.noisy_metrics import NoisyMetrics, noisy_metrics
from tpsl.training.releases import noisy_labels_of, noisy_test_labels
from tpsl.training.result import TrainResult
from tpsl.training.run_folder import RunError, RunFolder, read_note
from tpsl.vault import NoisyLabels, ReleasePolicy, Spent, Vault

SHARED_METRICS = "shared_metrics.json"
"""The file's name: in the run folder at the label party, in its own folder of the run at a feature party."""
_LARGEST_FILE = 1 << 20


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
    of: Literal["test records", "new records"]
    """Which records the metrics are of: the run's test records, or others that it has scored since."""
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
    versions = run.versions()  # what can fail comes before what costs
    noisy, total = noisy_test_labels(terms.mechanism, side, terms.vault, terms.notice, terms.policy)
    return _shared(run, versions, "test records", noisy, predicted), total


def evaluate_new_records(
    run: RunFolder, side: LabelSide, ids: Any, scores: npt.NDArray[np.float32], terms: EvaluationTerms
) -> tuple[SharedEvaluation, Spent]:
    """Release the labels of records that a run has scored since, from the vault that has them, and judge the scores.

    Also returns what these records have spent in all, for the label party alone. Records that the run was trained on
    are refused: the scores were fitted to their noisy labels.
    """
    _finished(run, terms.vault)
    trained = pc.sum(pc.is_in(ids, value_set=side.records.training_ids)).as_py()
    if trained:
        raise RunError(f"{run.path}: was trained on {trained:,} of the {len(ids):,} records; evaluate it on others")
    versions = run.versions()
    noisy, total = noisy_labels_of(ids, terms.mechanism, terms.vault, terms.notice, terms.policy)
    return _shared(run, versions, "new records", noisy, scores), total


def _finished(run: RunFolder, vault: Path) -> TrainResult:
    """Return the result of a run whose predictions come from noisy labels alone, of which metrics may leave."""
    result = run.result()
    if result is None:
        raise RunError(f"{run.path}: the run is not finished, so there is nothing to evaluate")
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


def _shared(
    run: RunFolder,
    versions: Mapping[str, str],
    of: Literal["test records", "new records"],
    noisy: NoisyLabels,
    predicted: npt.NDArray[np.float32],
) -> SharedEvaluation:
    mechanism = noisy.mechanism
    return SharedEvaluation(
        job=run.job().digest(),
        versions=versions,
        of=of,
        records=len(predicted),
        classes=mechanism.classes,
        mechanism=str(mechanism),
        epsilon=mechanism.epsilon,
        delta=mechanism.delta,
        metrics=noisy_metrics(mechanism, noisy.draws, predicted),
    )
