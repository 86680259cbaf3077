"""Split training in one process: Algorithm 1 (no noise), Algorithm 3 (two draws), section 4.2 (one draw)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.torch import save

from tpsl.data.dataset import Dataset, load
from tpsl.data.plan import BatchPlan
from tpsl.files import write_atomically
from tpsl.party import FeatureParty, LabelParty
from tpsl.training.build import LabelPartyBuilder, build_feature_party, build_label_party, noisy_labels_for
from tpsl.training.checkpoint import Halves, load_checkpoint, newest_common_step, save_checkpoint
from tpsl.training.evaluation import evaluate, predict
from tpsl.training.job import Job
from tpsl.training.result import TrainResult
from tpsl.training.run_folder import RunFolder
from tpsl.training.transcript import TrajectoryWriter, TranscriptWriter
from tpsl.transport import checked_tensor

Progress = Callable[[int, int, str], None]
Notice = Callable[[str], None]

ALL_STEPS = 1 << 62
"""For `record_steps`: record the whole run."""


def training_step(
    step: int,
    batch: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    features: Mapping[str, FeatureParty],
    label: LabelParty,
    recorders: Mapping[str, TranscriptWriter],
) -> None:
    """One step of the paper's algorithms: embeddings forward, perturbed gradients back, both halves updated."""
    n = len(batch)
    # Forward phase: each feature party computes e_i = f(x_i) and sends it.
    received = []
    for name, party in features.items():
        shape = (n, party.bottom.width)
        received.append(checked_tensor(party.forward(rows), shape, sender=name, what="embeddings", step=step))
    # Backward phase: the label party perturbs at the logit, sends g̃_i and updates its own half.
    gradients = label.step(batch, rows, received)
    # Model updates at the feature parties.
    for (name, party), embeddings, gradient in zip(features.items(), received, gradients, strict=True):
        checked_tensor(gradient, (n, party.bottom.width), sender="the label party", what="gradients", step=step)
        if name in recorders:
            recorders[name].record(rows, embeddings, gradient)
        party.backward(gradient)


class Training:
    """One run of a job: the parties, where they stand, and what is written down on the way."""

    def __init__(
        self,
        job: Job,
        run: RunFolder,
        data: Dataset,
        vault: Path,
        *,
        record_steps: int,
        notice: Notice,
        make_label_party: LabelPartyBuilder,
    ) -> None:
        self.job, self.run, self.data = job, run, data
        self.noisy, self.ledger_epsilon = noisy_labels_for(job, data, vault, notice)
        self.features = {name: build_feature_party(job, name, held) for name, held in data.feature_parties.items()}
        self.label = make_label_party(job, len(self.features), data.classes, self.noisy, data.label_features)
        settings = job.training
        self.plan = BatchPlan(len(data.train), settings.batch_size, settings.seed, settings.order)
        self.total_steps = self.plan.steps(settings.epochs)
        self.start = self._resume(notice)
        self.metrics = [entry for entry in run.metrics() if entry["step"] <= self.start]
        run.write_metrics(self.metrics)
        self.recorders: dict[str, TranscriptWriter] = {}
        self.trajectory: TrajectoryWriter | None = None
        self.record_steps = record_steps
        if record_steps:
            steps = min(self.start, record_steps)
            epochs, batches = divmod(steps, self.plan.batches_per_epoch)
            records = epochs * self.plan.rows + batches * self.plan.batch_size
            for name, party in self.features.items():
                folder = run.party(name) / "transcript"
                self.recorders[name] = TranscriptWriter(
                    folder, party.bottom.width, steps_before=steps, records_before=records
                )
            self.trajectory = TrajectoryWriter(run.label, self.label.top, steps)

    def parties(self) -> dict[str, Halves]:
        """The weights and optimisers of each party, by the name of its folder."""
        of_features: dict[str, Halves] = {
            name: {"bottom": (party.bottom, party.optimizer)} for name, party in self.features.items()
        }
        return {**of_features, "label": self.label.halves}

    def _resume(self, notice: Notice) -> int:
        digest = self.job.digest()
        folders = {name: self.run.party(name) / "checkpoints" for name in self.parties()}
        step = newest_common_step(folders.values())
        if step:
            notice(f"resuming after step {step:,} of {self.total_steps:,}")
            for name, halves in self.parties().items():
                load_checkpoint(folders[name], step, digest, halves)
        return step

    def _checkpoint(self, done: int) -> None:
        for recording in self._recordings():
            recording.sync()
        for name, halves in self.parties().items():
            save_checkpoint(self.run.party(name) / "checkpoints", done, self.job.digest(), halves)

    def steps(self, progress: Progress) -> float:
        """Run the remaining steps; return the seconds spent in them (evaluation and checkpoints apart)."""
        spent = 0.0
        for step in range(self.start, self.total_steps):
            before = time.perf_counter()
            batch = self.plan.batch(step)
            recording = step < self.record_steps
            if recording and self.trajectory:
                self.trajectory.record()
            recorders = self.recorders if recording else {}
            training_step(step, batch, self.data.train[batch], self.features, self.label, recorders)
            spent += time.perf_counter() - before
            done = step + 1
            epoch_ends = done % self.plan.batches_per_epoch == 0
            if epoch_ends:
                self._evaluate(done)
            if epoch_ends or done % self.job.training.checkpoint_every == 0:
                self._checkpoint(done)
            progress(done, self.total_steps, f"epoch {step // self.plan.batches_per_epoch + 1}")
        return spent

    def _evaluate(self, done: int) -> None:
        found = evaluate(predict(self.label, self.features, self.data.test), self.data.labels[self.data.test])
        self.metrics.append({"epoch": done // self.plan.batches_per_epoch, "step": done, **asdict(found)})
        self.run.write_metrics(self.metrics)

    def save_weights(self) -> None:
        """Write each party's final weights into its own folder."""
        for name, halves in self.parties().items():
            for part, (half, _) in halves.items():
                write_atomically(self.run.party(name) / f"{part}.safetensors", save(half.state_dict()))

    def close(self) -> None:
        """Finish the recordings."""
        for recording in self._recordings():
            recording.close()

    def _recordings(self) -> list[TranscriptWriter | TrajectoryWriter]:
        return [*self.recorders.values(), *([self.trajectory] if self.trajectory else [])]


def train(
    job: Job,
    run_path: Path,
    *,
    vault: Path | None = None,
    record_steps: int = 0,
    progress: Progress = lambda done, total, note: None,
    notice: Notice = lambda text: None,
    data: Dataset | None = None,
    make_label_party: LabelPartyBuilder = build_label_party,
) -> TrainResult:
    """Run a job in one process; a run that was interrupted goes on where it stopped, a finished one is only read.

    Guarantee: what the feature parties receive, and all weights, are post-processing of one release of the vault:
    (ε, δ)-transcript DP with the ε of the result. Resuming draws nothing anew and gives the weights of an unbroken run.
    `record_steps` is how many steps, from the first, are recorded in the transcript. `make_label_party` replaces the
    label party, for experiments with other defences and for audits; the guarantee speaks of the default alone.
    """
    run = RunFolder(run_path)
    with run.started(job):
        finished = run.result()
        if finished is not None:
            notice(f"{run_path} is a finished run; nothing to do")
            return finished
        begun = time.perf_counter()
        training = Training(
            job,
            run,
            data if data is not None else load(job.data, lambda what, done, total: progress(done, total, what)),
            vault if vault is not None else run.label / "vault",
            record_steps=record_steps,
            notice=notice,
            make_label_party=make_label_party,
        )
        try:
            spent = training.steps(progress)
        finally:
            training.close()
        training.save_weights()
        result = _result(training, spent, time.perf_counter() - begun)
        run.finish(result)
        return result


def _result(training: Training, spent: float, seconds: float) -> TrainResult:
    job, data, noisy = training.job, training.data, training.noisy
    last: dict[str, Any] = {key: value for key, value in training.metrics[-1].items() if key.startswith("test_")}
    epochs, steps = job.training.epochs, training.total_steps - training.start
    records = epochs * len(data.train) * (steps / training.total_steps)
    return TrainResult(
        run=str(training.run.path),
        data=data.name,
        mechanism=noisy.mechanism.name,
        estimator=job.privacy.estimator,
        draws=job.privacy.draws,
        epsilon=noisy.epsilon,
        delta=noisy.delta,
        private=noisy.private,
        ledger_epsilon=training.ledger_epsilon,
        classes=data.classes,
        train_records=len(data.train),
        test_records=len(data.test),
        epochs=epochs,
        steps=training.total_steps,
        samples_per_second=records / spent if spent else 0.0,
        seconds=seconds,
        **last,
    )
