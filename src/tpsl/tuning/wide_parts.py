"""Wide parts that several runs share: they depend on features, the release, the seed and the hold-out."""

from __future__ import annotations

from pathlib import Path

from tpsl.data.dataset import Dataset
from tpsl.files import write_atomically
from tpsl.training.job import Job
from tpsl.training.run_folder import RunFolder
from tpsl.training.schedule import Schedule
from tpsl.training.stages.wide import FILE, fit, fit_own, label_estimates
from tpsl.transport import as_received, as_sent
from tpsl.vault import NoisyLabels


def prepare_wide_parts(job: Job, data: Dataset, noisy: NoisyLabels, folder: Path) -> None:
    """Make sure that `folder` holds the wide parts of a job, those that a run of it would fit by itself."""
    schedule = Schedule(job, data.train, data.test)
    sent = as_received(as_sent(label_estimates(noisy)[schedule.trained, None], job.training.wire))
    rows = data.train[schedule.trained]
    for name, features in data.feature_parties.items():
        fit(features, rows, sent[:, 0].numpy(), job.training.seed, folder / job.training.wire / name)
    fit_own(job, data.label_side.records, noisy, folder / job.training.wire / "label")


def hand_over_wide_parts(job: Job, data: Dataset, folder: Path, run: RunFolder) -> None:
    """Put the wide parts of a job, if it has any, into the folder of a run that has none yet."""
    if not job.model.wide:
        return
    parties = [*data.feature_parties, "label"]
    with run.started(job, parties):
        for name in parties:
            source, target = folder / job.training.wire / name / FILE, run.party(name) / FILE
            if source.exists() and not target.exists():  # a label party without features has none
                write_atomically(target, source.read_bytes())
