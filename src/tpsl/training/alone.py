"""A feature party trains both halves by itself, on noisy labels that it was handed over.

It is split training with both roles in one process of the feature party. So the weights and predictions are, bit for
bit, those of split training with the same noisy labels and seeds, and all that reads a run reads this one: the folder
has the top half in `RUN/label` beside the party's own. There are no true labels: noisy labels of held-out records
judge, and the predictions of test records are kept.
"""

from __future__ import annotations

from dataclasses import replace

from tpsl.data.dataset import Dataset, class_names
from tpsl.data.sides import FeatureSide
from tpsl.net.peers import LABEL_PARTY
from tpsl.training.job import Job, JobError
from tpsl.training.label_source import ReleasedLabels
from tpsl.training.observer import FilteredObserver, Observer
from tpsl.training.one_process import attend_together
from tpsl.training.own_parts import OwnParts
from tpsl.training.result import TrainResult
from tpsl.training.role import FeatureRole, LabelRole
from tpsl.training.setup import RunSetup
from tpsl.training.warm_start import StartingPoint


def require_alone(job: Job, start: StartingPoint | None) -> None:
    """Raise a `JobError` unless one feature party can train the job by itself."""
    reason = job.needs_split_training()
    if reason is not None:
        raise JobError(f"a feature party cannot train this job alone: {reason}")
    if start is not None:
        raise JobError("a run that starts from an earlier one adds up ε in the label party's vault: train it split")


def parts_of_both(party: str, parts: OwnParts) -> dict[str, OwnParts]:
    """Return what each of the two roles brings, by its name, of what the feature party brings: the top half, too."""
    return {party: parts.model_copy(update={"top": None}), LABEL_PARTY: OwnParts(top=parts.top)}


def train_alone(setup: RunSetup, side: FeatureSide, labels: ReleasedLabels, at_top: Observer) -> TrainResult:
    """Train the network of a job at its feature party; an interrupted run goes on, a finished one is only read.

    The job is one that `require_alone` lets through, and the process holds the run's folder, with a folder for both
    roles in it. Guarantee: what the run holds is post-processing of the noisy labels, whoever made them. `at_top`
    watches the role of the label party, and `setup.watching.observer` that of the feature party.
    """
    if setup.run.common_result([side.party]) is None:
        setup = replace(setup, job=setup.job.with_gradients())
        records = Dataset.of_one(side, class_names(setup.job.data)).label_side.records
        role = FeatureRole(setup.watched_by(FilteredObserver(setup.watching.observer, peers=False)), side)
        attend_together(LabelRole(setup.watched_by(at_top), records, labels), [role])
    result = setup.run.result()
    assert result is not None  # the farewell has written it
    return result
