"""The wide part of a network (`tpsl.heads.wide_part`): fitted once on what noisy labels say, before the first step.

The label party sends an unbiased estimate of each trained record's label, computed from its noisy label alone; each
feature party fits an additive model of its own fields on them, and the label party one of its own. A party's model and
the scores of its records are in its folder of the run. A run that starts from an earlier one has its wide part, and
nothing is sent: the records are new to it, so that none is scored by its own label.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load, save
from torch import Tensor, from_numpy

from tpsl.data.features import Features, Inputs, table_features
from tpsl.data.order import Rows
from tpsl.data.out_of_core import taken
from tpsl.data.sides import LabelRecords
from tpsl.files import make_private_folder, write_atomically
from tpsl.heads.wide_part import MOST_RECORDS, AdditiveModel, cross_fit, with_scores
from tpsl.net.asking import Due, Script
from tpsl.net.messages import Message
from tpsl.net.rounding import checked_tensor
from tpsl.perturb import LogitGradient
from tpsl.progress import Progress, no_progress
from tpsl.training.checkpoint import read_weights
from tpsl.training.job import Job
from tpsl.training.role import FeatureRole, FeatureRun, LabelRole
from tpsl.training.schedule import Schedule
from tpsl.vault import NoisyLabels

ESTIMATES = "Estimates"
"""Feature party → label party, after each start (so `step` is 0). Answer: an estimate of each label of one part."""
FILE = "wide.safetensors"
_SCORES = "scores"


def label(role: LabelRole) -> Script:
    """Answer with what noisy labels say of the trained records; with two draws, the draw whose gradients are sent."""
    if not role.job.model.wide:
        return
    start, features = role.setup.start, role.records.features
    if start is None:
        noisy = role.noisy()
        role.setup.watching.progress(0, 0, "preparing the wide part")
        estimates = label_estimates(noisy)
        for part, positions in enumerate(role.schedule.trained_parts()):
            question = yield Due(ESTIMATES, 0, part)
            question.answer_all(Message(tensor=estimates[role.schedule.among_labelled(positions), None]))
        if role.workers.is_first:
            fit_own(role.job, role.records, noisy, role.folder, role.setup.watching.progress)
    elif features is not None and role.workers.is_first:
        score(features, start.place(role.name), role.folder)
    role.workers.barrier()


def feature(run: FeatureRun) -> None:
    """Ask for the estimates and fit the wide part of every party, unless it is fitted already."""
    if not run.job.model.wide:
        return
    roles, start = run.roles if run.workers.is_first else (), run.roles[0].setup.start
    received: dict[str, list[Tensor]] = {role.name: [] for role in roles}
    for part, positions in enumerate(run.schedule.trained_parts() if start is None else ()):
        answers = run.ask(ESTIMATES, part, step=0)
        for name, tensors in received.items():
            what = "the estimates from the label party"
            tensors.append(checked_tensor(answers[name], what, len(positions), 1))
    for role in roles:
        if start is not None:
            score(role.side.features, start.place(role.name), role.folder)
        else:
            _fit_on_estimates(role, torch.cat(received[role.name])[:, 0].cpu().numpy())
    run.workers.barrier()


def _fit_on_estimates(role: FeatureRole, estimates: npt.NDArray[np.float32]) -> None:
    if role.setup.record_steps:
        make_private_folder(role.folder / "transcript")
        write_atomically(role.folder / "transcript" / "estimates.f32", estimates.tobytes())
    if not (role.folder / FILE).exists():
        count = min(len(estimates), MOST_RECORDS)
        role.observer.event("wide part", text=f"fitting a linear model on {count:,} noisy labels")
        rows = taken(role.schedule.train, role.schedule.trained)
        fit(role.side.features, rows, estimates, role.job.training.seed, role.folder, role.setup.watching.progress)


def label_estimates(noisy: NoisyLabels, draw: int = 0) -> Tensor:
    """Return an unbiased estimate of each record's label, from its noisy label alone: shape `[n]`."""
    if noisy.mechanism.classes != 2:
        raise ValueError(f"a wide part is for two classes, not for {noisy.mechanism.classes}: set model.wide to false")
    return LogitGradient(noisy.mechanism, "unbiased").evidence(noisy.draws[draw])


def fit(
    features: Features | Inputs,
    rows: Rows,
    estimates: npt.NDArray[np.float32],
    seed: int,
    folder: Path,
    progress: Progress = no_progress,
) -> None:
    """Fit a party's wide part on these rows and keep it, unless it is there already."""
    if not (folder / FILE).exists():
        _keep(folder, *cross_fit(table_features(features, "model.wide"), rows, estimates, seed, progress))


def score(features: Features | Inputs, start: Path, folder: Path) -> None:
    """Score a party's records by the wide part that it starts with and keep both, unless they are there already."""
    if not (folder / FILE).exists():
        model = load_wide(start)
        _keep(folder, model, model.scores(table_features(features, "model.wide")))


def _keep(folder: Path, model: AdditiveModel, scores: npt.NDArray[np.float32]) -> None:
    make_private_folder(folder)
    write_atomically(folder / FILE, save({**model.tensors(), _SCORES: from_numpy(scores)}))


def fit_own(
    job: Job, records: LabelRecords, noisy: NoisyLabels, folder: Path, progress: Progress = no_progress
) -> None:
    """Fit the label party's own wide part, if it has features, on the draw that it learns from (Algorithm 3)."""
    if records.features is not None:
        schedule = Schedule(job, records.train, records.test)
        estimates = label_estimates(noisy, draw=-1).numpy()[schedule.among_labelled(schedule.trained)]
        rows = taken(records.train, schedule.trained)
        fit(records.features, rows, estimates, job.training.seed, folder, progress)


def features_in_training(job: Job, features: Features | Inputs, folder: Path) -> Features | Inputs:
    """Return a party's features as its half reads them in a run: with a wide part, beside the scores of its records."""
    if not job.model.wide:
        return features
    return with_scores(table_features(features, "model.wide"), load((folder / FILE).read_bytes())[_SCORES].numpy())


def load_wide(folder: Path) -> AdditiveModel:
    """Return the wide part of a party in a run, to score any records with."""
    tensors = read_weights(folder / FILE, ValueError)
    try:
        return AdditiveModel.from_tensors(tensors)
    except (KeyError, ValueError) as error:
        raise ValueError(f"{folder / FILE}: is damaged ({error})") from error
