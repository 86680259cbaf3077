"""All roles of a job in one process: as they take turns, and as a feature party trains both halves by itself.

A feature party does so on noisy labels that it was handed over. It is split training with both roles in its process.
So the weights and predictions are, bit for bit, those of split training with the same noisy labels and seeds, and all
that reads a run reads this one: the folder has the top half in `RUN/label` beside the party's own. There are no true
labels: noisy labels of held-out records choose the epoch, and the predictions of test records are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial

from tpsl.data.dataset import Dataset
from tpsl.data.sides import FeatureSide
from tpsl.net.asking import Answers, AtHome, Script
from tpsl.net.messages import LABEL_PARTY, WireType
from tpsl.run.job import Job, JobError
from tpsl.run.joint_steps import JointSteps
from tpsl.run.observer import Observer
from tpsl.run.own_parts import OwnParts
from tpsl.run.result import TrainResult
from tpsl.run.role import FeatureRole, FeatureRun, LabelRole
from tpsl.run.run_folder import RunFolder
from tpsl.run.setup import RunSetup
from tpsl.run.stages import attend_as_features, begin
from tpsl.run.stages.hand_over import handed_over
from tpsl.run.vaults import HAND_OVER, ReleasedLabels
from tpsl.run.warm_start import StartingPoint
from tpsl.workers import ALONE

AskLabel = Callable[[Callable[[Answers], tuple[Answers, Script]], WireType], AtHome]
"""Makes what brings questions to the label party in this process: `AtHome`, unless it is replaced."""


@contextmanager
def all_parties(
    label: LabelRole, features: Sequence[FeatureRole], ask_label: AskLabel = AtHome
) -> Iterator[FeatureRun]:
    """Give the feature parties of a job, which ask the label party in this process."""
    asked = ask_label(partial(begin, label), label.job.wire_type)
    try:
        with closing(JointSteps(label, features, asked)) as together:
            yield FeatureRun(features, asked, together)
    finally:
        label.close()


def receive_labels(
    setup: RunSetup, side: FeatureSide, parties: Collection[str], exchange: Callable[[FeatureRole], None]
) -> ReleasedLabels:
    """Have the noisy labels cross in an exchange of its own, and return what the feature party has received.

    `parties` are those in this process. Of several workers the first receives the labels for all.
    """
    run = RunFolder(setup.run.path / HAND_OVER)
    received = run.party(side.party)
    if setup.workers.is_first:
        with run.started(setup.job, parties, moved=True):
            if LABEL_PARTY not in run.confirmed_to(side.party):
                exchange(FeatureRole(replace(setup, run=run, workers=ALONE), side))
    setup.workers.barrier()
    return ReleasedLabels.of(handed_over(setup.job, received), received)


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
        records = Dataset.of_one(side, setup.job.data.class_names).label_side.records
        with all_parties(LabelRole(setup.watched_by(at_top), records, labels), [FeatureRole(setup, side)]) as parties:
            attend_as_features(parties)
    return setup.run.finished_result()
