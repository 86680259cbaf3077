"""The feature party's side: a network trained on handed-over labels, by this party alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from tpsl.data.config import TableData
from tpsl.data.sides import FeatureSide
from tpsl.handover.card import CardError
from tpsl.handover.labels_file import read_handed_over
from tpsl.training.alone import require_alone, train_alone
from tpsl.training.job import Job
from tpsl.training.local import Local
from tpsl.training.observer import Observer, ProgressBar
from tpsl.training.result import TrainResult
from tpsl.training.setup import RunSetup
from tpsl.training.vaults import ReleasedLabels


def learn(setup: RunSetup, party: str, local: Local, labels: Path, authority: Path | None = None) -> TrainResult:
    """Train a job's network at its only feature party on handed-over `labels`, a file or its folder.

    An interrupted run goes on where it stopped. Guarantee: the weights and predictions are, bit for bit, those of split
    training with the vault that the labels come from. The likelihood is that of the card's table, which must be the
    job's. With an `authority` the card must be signed by the label party whose certificate it has made.
    """
    require_alone(setup.job, setup.start)
    setup = replace(setup, job=setup.job.with_labels_handed_over())
    with setup.opened(
        list(setup.own),
        lambda: setup.run.common_result([party]) is not None,
        lambda setup: setup.load_features(party, local),
        moved=True,
    ) as opened:
        if opened is None:
            return setup.run.finished_result()
        setup, side = opened
        handed = labels_for(setup.job, side, labels, authority)
        setup.watching.notice(f"{len(handed.labels):,} noisy labels, released with {handed.labels.mechanism}")
        shown = ProgressBar(setup.watching, setup.job.training.epochs)
        return train_alone(setup.watched_by(Observer()), side, handed, at_top=shown)


def labels_for(job: Job, side: FeatureSide, labels: Path, authority: Path | None = None) -> ReleasedLabels:
    """Return the handed-over labels of a feature party's training records, in their order, and what they have spent."""
    handed = read_handed_over(labels, job.classes, authority)
    card, agreed = handed.card, job.mechanism
    if (card.mechanism.digest, card.draws) != (agreed.digest, job.privacy.draws):
        raise CardError(
            f"{handed.path}: was released with {card.mechanism}, {card.draws} draw(s), and privacy in the job says "
            f"{agreed}, {job.privacy.draws} draw(s)"
        )
    named = job.data.label.label if isinstance(job.data, TableData) else None
    if None not in (card.label, named) and card.label != named:
        raise CardError(f"{handed.path}: has labels of {card.label!r}, and data.label.label in the job is {named!r}")
    try:
        noisy = handed.of(side.ids.take(pa.array(side.train)))
    except CardError as error:
        if not isinstance(job.data, TableData) or job.data.alignment is None:
            raise
        raise CardError(
            f"{error}; of aligned records the file has the label party's own ids: let the parties train the job "
            "together with training.exchange: labels, then noisy labels cross in the common order"
        ) from error
    return ReleasedLabels(noisy, card.spent, handed.path)
