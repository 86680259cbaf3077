"""An evaluation that may be handed to the feature parties: test metrics from noisy labels of the test records.

The metrics of `tpsl.training.evaluation` depend on true labels and stay at the label party. Those here are computed
from what the vault releases of the test labels, and from predictions that were learned from noisy training labels: by
post-processing, the whole file has the ε of that release for each test label, whoever chose the embeddings that the
predictions were made of. The predictions of a local head never come in: they tell of true training labels.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, TypeAdapter, ValidationError

from tpsl.data.sides import LabelSide
from tpsl.files import for_json, shortened
from tpsl.mechanisms import Mechanism
from tpsl.progress import Notice
from tpsl.training.noisy_metrics import NoisyMetrics, noisy_metrics
from tpsl.training.releases import noisy_test_labels
from tpsl.training.run_folder import RunError, RunFolder
from tpsl.vault import ReleasePolicy

SHARED_METRICS = "shared_metrics.json"
"""The file's name: in the run folder at the label party, in its own folder of the run at a feature party."""
_LARGEST_FILE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class SharedEvaluation:
    """What the label party may tell of a run. Given the noisy labels, nothing in it depends on true ones."""

    shared_metrics: Literal[1] = 1
    """The version of the file. A later one may have more keys; what a key means stays the same."""
    job: str
    """Digest of the job."""
    versions: Mapping[str, str]
    """The version of each feature party's half: which run of the job this is."""
    test_records: int
    classes: int
    mechanism: str
    epsilon: float
    """The ε of the release of the test labels that this is computed from."""
    delta: float
    total_epsilon: Annotated[float, BeforeValidator(lambda value: math.inf if value is None else value)]
    """The largest ε that any test record has spent over all releases of the vault."""
    total_delta: float
    private: bool
    """False if any release of the test records had seeded noise or none."""
    metrics: NoisyMetrics

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able data: null for what is NaN, and for an infinite ε."""
        content: dict[str, Any] = for_json(asdict(self))
        return content

    def to_json(self) -> bytes:
        """Return the file: equal bytes for equal noisy labels, predictions and totals."""
        return (json.dumps(self.as_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


_PARSER = TypeAdapter(SharedEvaluation)


def read_shared(path: Path, job: str, versions: Mapping[str, str]) -> SharedEvaluation:
    """Return what a file says that the other side may have written, if it speaks of this job and of these versions."""
    with path.open("rb") as file:
        content = file.read(_LARGEST_FILE + 1)
    if len(content) > _LARGEST_FILE:
        raise RunError(f"{path}: holds no shared metrics: it has more than {_LARGEST_FILE:,} bytes")
    try:
        found = _PARSER.validate_json(content, strict=True)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        reason = ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))
        raise RunError(f"{path}: holds no shared metrics ({shortened(reason)})") from None
    if found.job != job:
        raise RunError(f"{path}: speaks of a run of another job")
    if any(found.versions.get(party) != version for party, version in versions.items()):
        raise RunError(f"{path}: speaks of another run of this job")
    return found


def evaluate_for_sharing(
    run: RunFolder, side: LabelSide, mechanism: Mechanism, vault: Path, policy: ReleasePolicy, notice: Notice
) -> SharedEvaluation:
    """Release the labels of the test records, unless that was done before, and judge the run's predictions by them."""
    job, result = run.job(), run.result()
    if result is None:
        raise RunError(f"{run.path}: the run is not finished, so there is nothing to evaluate")
    if not job.trains:
        raise RunError(
            f"{run.path}: has a local head alone (gradients: none), and what it predicts tells of true labels: it "
            "cannot be evaluated for others"
        )
    predicted = run.predictions(result.kept_epoch)["test"]
    if len(predicted) != len(side.records.test):
        raise RunError(
            f"{run.path}: predicted {len(predicted):,} test records, and the data have {len(side.records.test):,}: "
            "they have changed since"
        )
    noisy, total = noisy_test_labels(mechanism, side, vault, notice, policy)
    return SharedEvaluation(
        job=job.digest(),
        versions=run.versions(),
        test_records=len(predicted),
        classes=side.records.classes,
        mechanism=str(mechanism),
        epsilon=mechanism.epsilon,
        delta=mechanism.delta,
        total_epsilon=total.epsilon,
        total_delta=total.delta,
        private=total.private,
        metrics=noisy_metrics(mechanism, noisy.draws, predicted),
    )
