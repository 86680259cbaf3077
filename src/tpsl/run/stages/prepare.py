"""Before the first step: the wide part is fitted, the own half is built and put into its state after the agreed step.

The wide part of a network (`tpsl.heads.wide_part`) is fitted once on what noisy labels say. The label party sends an
unbiased estimate of each trained record's label, computed from its noisy label alone; each feature party fits an
additive model of its own fields on them, and the label party one of its own. A party's model and the scores of its
records are in its folder of the run. A run that starts from an earlier one has its wide part, and nothing is sent: the
records are new to it, so that none is scored by its own label.
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
from tpsl.progress import Progress, no_progress, said_once
from tpsl.run.build import build_feature_party, load_pretrained, pretrained_weights
from tpsl.run.checkpoint import read_weights
from tpsl.run.job import Job
from tpsl.run.role import FeatureRole, FeatureRun, LabelRole, Role
from tpsl.run.schedule import Schedule
from tpsl.run.stages.evaluate import epochs_of_network, tell_of_few_held_out
from tpsl.run.transcript import RECORDED_STEPS, TrajectoryWriter, TranscriptWriter
from tpsl.vault import NoisyLabels

ESTIMATES = "Estimates"
"""Feature party → label party, after each start (so `step` is 0). Answer: an estimate of each label of one part."""
WIDE, PRETRAINED = "wide.safetensors", "pretrained.safetensors"
_SCORES = "scores"


def label(role: LabelRole) -> Script:
    """Answer with estimates for the wide part, and build the label party from noisy labels."""
    if role.job.model.wide:
        yield from _fit_wide_parts(role)
    if role.result is None and role.job.trains:
        _build_label_party(role)


def feature(run: FeatureRun) -> None:
    """Ask for the estimates of the wide part and build every feature party."""
    if run.job.model.wide:
        _ask_for_wide_parts(run)
    for role in run.roles:
        _build_feature_party(role)


# ---- the wide part


def _fit_wide_parts(role: LabelRole) -> Script:
    """Answer with what noisy labels say of the trained records; with two draws, the draw whose gradients are sent."""
    start, features, progress = role.setup.start, role.records.features, role.setup.watching.progress
    if start is None:
        noisy = role.noisy()
        progress(0, 0, "preparing the wide part")
        estimates = label_estimates(noisy)
        for part, positions in enumerate(role.schedule.trained_parts()):
            question = yield Due(ESTIMATES, 0, part)
            question.answer_all(Message(tensor=estimates[role.schedule.among_labelled(positions), None]))
        if role.workers.is_first:
            fit_own_wide_part(role.job, role.records, noisy, role.folder, progress)
    elif features is not None and role.workers.is_first:
        _score(features, start.place(role.name), role.folder)
    role.workers.barrier()


def _ask_for_wide_parts(run: FeatureRun) -> None:
    """Ask for the estimates and fit the wide part of every party, unless it is fitted already."""
    roles, start = run.roles if run.workers.is_first else (), run.roles[0].setup.start
    received: dict[str, list[Tensor]] = {role.name: [] for role in roles}
    for part, positions in enumerate(run.schedule.trained_parts() if start is None else ()):
        answers = run.ask(ESTIMATES, part, step=0)
        for name, tensors in received.items():
            tensors.append(checked_tensor(answers[name], "the estimates from the label party", len(positions), 1))
    for role in roles:
        if start is not None:
            _score(role.side.features, start.place(role.name), role.folder)
            continue
        estimates = torch.cat(received[role.name])[:, 0].cpu().numpy()
        if role.setup.record_steps:
            make_private_folder(role.folder / "transcript")
            write_atomically(role.folder / "transcript" / "estimates.f32", estimates.tobytes())
        if not (role.folder / WIDE).exists():
            count = min(len(estimates), MOST_RECORDS)
            role.setup.watching.notice(f"{role.name}: fitting a linear model on {count:,} noisy labels")
        rows, seed = taken(role.schedule.train, role.schedule.trained), role.job.training.seed
        fit_wide_part(role.side.features, rows, estimates, seed, role.folder, role.setup.watching.progress)
    run.workers.barrier()


def label_estimates(noisy: NoisyLabels, draw: int = 0) -> Tensor:
    """Return an unbiased estimate of each record's label, from its noisy label alone: shape `[n]`."""
    if noisy.mechanism.classes != 2:
        raise ValueError(f"a wide part is for two classes, not for {noisy.mechanism.classes}: set model.wide to false")
    return LogitGradient(noisy.mechanism, "unbiased").evidence(noisy.draws[draw])


def fit_wide_part(
    features: Features | Inputs,
    rows: Rows,
    estimates: npt.NDArray[np.float32],
    seed: int,
    folder: Path,
    progress: Progress = no_progress,
) -> None:
    """Fit a party's wide part on these rows and keep it, unless it is there already."""
    if not (folder / WIDE).exists():
        _keep(folder, *cross_fit(table_features(features, "model.wide"), rows, estimates, seed, progress))


def fit_own_wide_part(
    job: Job, records: LabelRecords, noisy: NoisyLabels, folder: Path, progress: Progress = no_progress
) -> None:
    """Fit the label party's own wide part, if it has features, on the draw that it learns from (Algorithm 3)."""
    if records.features is not None:
        schedule = Schedule(job, records.train, records.test)
        estimates = label_estimates(noisy, draw=-1).numpy()[schedule.among_labelled(schedule.trained)]
        rows = taken(records.train, schedule.trained)
        fit_wide_part(records.features, rows, estimates, job.training.seed, folder, progress)


def _score(features: Features | Inputs, start: Path, folder: Path) -> None:
    """Score a party's records by the wide part that it starts with and keep both, unless they are there already."""
    if not (folder / WIDE).exists():
        model = load_wide(start)
        _keep(folder, model, model.scores(table_features(features, "model.wide")))


def _keep(folder: Path, model: AdditiveModel, scores: npt.NDArray[np.float32]) -> None:
    make_private_folder(folder)
    write_atomically(folder / WIDE, save({**model.tensors(), _SCORES: from_numpy(scores)}))


def features_in_training(job: Job, features: Features | Inputs, folder: Path) -> Features | Inputs:
    """Return a party's features as its half reads them in a run: with a wide part, beside the scores of its records."""
    if not job.model.wide:
        return features
    return with_scores(table_features(features, "model.wide"), load((folder / WIDE).read_bytes())[_SCORES].numpy())


def load_wide(folder: Path) -> AdditiveModel:
    """Return the wide part of a party in a run, to score any records with."""
    tensors = read_weights(folder / WIDE, ValueError)
    try:
        return AdditiveModel.from_tensors(tensors)
    except (KeyError, ValueError) as error:
        raise ValueError(f"{folder / WIDE}: is damaged ({error})") from error


# ---- the own half


def _build_label_party(role: LabelRole) -> None:
    """Build the label party from noisy labels; metrics of steps that are done again are forgotten."""
    features: Features | Inputs | None = role.records.features
    if features is not None:
        features = features_in_training(role.job, features, role.folder)
    shares, classes = list(role.present), role.records.classes
    role.party = role.make_party(role.job, shares, classes, role.noisy(), features, role.own, role.setup.place)
    role.restore()
    tell_of_few_held_out(role)
    if role.workers.is_first:
        role.run.write_metrics([entry for entry in epochs_of_network(role) if entry["step"] <= role.done])
    if recorded := _recorded_steps(role, role.folder / "trajectory.f32"):
        role.recorder = TrajectoryWriter(role.folder, role.party.top, min(role.done, recorded))


def _build_feature_party(role: FeatureRole) -> None:
    """Build a feature party; what is pre-trained is what it begins with."""
    features = features_in_training(role.job, role.side.features, role.folder)
    role.party = build_feature_party(role.job, role.name, features, role.own, role.setup.place)
    if not role.done and role.setup.start is None and role.job.training.pretrain is not None:
        load_pretrained(role.party.bottom, pretrained(role))
    role.restore()
    folder = role.folder / "transcript"
    if recorded := _recorded_steps(role, folder / "sizes.i64"):
        steps = min(role.done, recorded)
        role.recorder = TranscriptWriter(folder, role.party.bottom.width, steps, role.schedule.records(steps))


def _recorded_steps(role: Role, recording: Path) -> int:
    """Return how many steps to record: a run that goes on without a recording gets none, unless it is asked for."""
    steps, is_recorded = role.setup.record_steps, recording.exists() and recording.stat().st_size > 0
    return 0 if steps == RECORDED_STEPS and role.done and not is_recorded else steps


def pretrained(role: FeatureRole) -> dict[str, Tensor]:
    """Return weights learned from this party's features alone: made once, for a run and all that start from it.

    Of several workers the first makes them.
    """
    path, start = role.folder / PRETRAINED, role.setup.start
    tell = said_once(lambda note: role.setup.watching.notice(f"{role.name}: {note}"))
    if role.workers.is_first and not path.exists():
        if start is not None:
            content = (start.place(role.name) / PRETRAINED).read_bytes()
        else:
            weights = pretrained_weights(role.job, role.side, role.setup.device, lambda done, total, note: tell(note))
            content = save(weights)
        write_atomically(path, content)
    role.workers.barrier()
    return load(path.read_bytes())
