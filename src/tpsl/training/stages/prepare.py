"""Build the own half of the network and put it into its state after the agreed step. Nothing is exchanged."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load, save
from torch import Tensor

from tpsl.data.features import Features, Inputs
from tpsl.files import write_atomically
from tpsl.net.asking import Script
from tpsl.training.build import build_feature_party, load_pretrained, pretrained_weights
from tpsl.training.role import FeatureRole, FeatureRun, LabelRole, Role
from tpsl.training.stages import wide
from tpsl.training.stages.evaluate import epochs_of_network, tell_of_few_held_out
from tpsl.training.transcript import RECORDED_STEPS, TrajectoryWriter, TranscriptWriter

PRETRAINED = "pretrained.safetensors"


def label(role: LabelRole) -> Script:
    """Build the label party from noisy labels; metrics of steps that are done again are forgotten."""
    yield from ()
    if role.result is not None or not role.job.trains:
        return
    features: Features | Inputs | None = role.records.features
    if features is not None:
        features = wide.features_in_training(role.job, features, role.folder)
    role.party = role.make_party(
        role.job,
        list(role.present),
        role.records.classes,
        role.noisy(),
        features,
        role.own,
        role.setup.place,
    )
    role.restore()
    tell_of_few_held_out(role)
    if role.workers.is_first:
        role.run.write_metrics([entry for entry in epochs_of_network(role) if entry["step"] <= role.done])
    role.close()
    if recorded := recorded_steps(role, role.folder / "trajectory.f32"):
        role.recorder = TrajectoryWriter(role.folder, role.party.top, min(role.done, recorded))


def feature(run: FeatureRun) -> None:
    """Build every feature party; what is pre-trained is what it begins with."""
    for role in run.roles:
        _prepare(role)


def _prepare(role: FeatureRole) -> None:
    features = wide.features_in_training(role.job, role.side.features, role.folder)
    role.party = build_feature_party(role.job, role.name, features, role.own, role.setup.place)
    if not role.done and role.setup.start is None and role.job.training.pretrain is not None:
        load_pretrained(role.party.bottom, pretrained(role))
    role.restore()
    role.close()
    if recorded := recorded_steps(role, role.folder / "transcript" / "sizes.i64"):
        steps = min(role.done, recorded)
        role.recorder = TranscriptWriter(
            role.folder / "transcript",
            role.party.bottom.width,
            steps_before=steps,
            records_before=role.schedule.records(steps),
        )


def recorded_steps(role: Role, recording: Path) -> int:
    """Return how many steps to record: a run that goes on without a recording gets none, unless it is asked for."""
    steps, is_recorded = role.setup.record_steps, recording.exists() and recording.stat().st_size > 0
    return 0 if steps == RECORDED_STEPS and role.done and not is_recorded else steps


def pretrained(role: FeatureRole) -> dict[str, Tensor]:
    """Return weights learned from this party's features alone: made once, for a run and all that start from it.

    Of several workers the first makes them.
    """
    if role.workers.is_first:
        _make_pretrained(role)
    role.workers.barrier()
    return load((role.folder / PRETRAINED).read_bytes())


def _make_pretrained(role: FeatureRole) -> None:
    path, start = role.folder / PRETRAINED, role.setup.start
    if not path.exists() and start is not None:
        write_atomically(path, (start.place(role.name) / PRETRAINED).read_bytes())
    if not path.exists():
        last = ""

        def progress(done: int, total: int, note: str) -> None:
            nonlocal last
            if note != last:
                last = note
                role.observer.event("pretraining", text=note)

        write_atomically(path, save(pretrained_weights(role.job, role.side, role.setup.device, progress)))
