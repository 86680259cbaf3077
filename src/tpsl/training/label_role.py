"""The label party's role in a job: Algorithm 1 (no noise), Algorithm 3 (two draws), section 4.2 (one draw)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from tpsl.data.sides import LabelRecords
from tpsl.files import naming_what_does_not_fit, open_private, write_atomically
from tpsl.party import FeatureParty, LabelParty
from tpsl.training.arrivals import Arrivals
from tpsl.training.build import build_feature_party
from tpsl.training.checkpoint import (
    forget_after,
    forget_best_after,
    load_best,
    load_checkpoint,
    save_best,
    save_checkpoint,
    saved_steps,
)
from tpsl.training.evaluation import TEST_METRICS
from tpsl.training.job import Job
from tpsl.training.observer import Observer, Silent
from tpsl.training.receiving import receive
from tpsl.training.result import NOTHING_RELEASED, TrainResult
from tpsl.training.run_folder import RunFolder
from tpsl.training.schedule import Rows, Schedule
from tpsl.training.transcript import TrajectoryWriter
from tpsl.training.validation import noisy_validation
from tpsl.training.wide import label_estimates
from tpsl.transport import (
    BadMessage,
    Bye,
    Channel,
    Embeddings,
    Estimates,
    Finished,
    Gradients,
    HeadEmbeddings,
    Meeting,
    PeerRestarted,
    Position,
    Rewind,
    Start,
    TestEmbeddings,
    Verdict,
    checked_tensor,
)
from tpsl.transport.peers import LABEL_PARTY
from tpsl.vault import LedgerTotal, NoisyLabels

_BEFORE_A_POSITION = (Embeddings, TestEmbeddings, HeadEmbeddings, Finished, Bye, Position)
"""What may be under way from a feature party when it is told to rewind."""
Release = Callable[[], tuple[NoisyLabels, LedgerTotal]]
"""Gives the noisy labels of the training records, and what these have spent over all releases of the vault."""
MakeLabelParty = Callable[[NoisyLabels], LabelParty]


class LabelRole:
    """The label party from the first step to the last, over any transport.

    Guarantee: what it sends, and when, is a function of what it receives, its own features, the job and the noisy
    labels. It is given no true labels: it keeps what the network predicts, and `AfterTraining` compares that with them.
    Labels are released when all feature parties are there and hold the same job, not before; with `arrivals` they are
    released as they come, and a step waits for those of its records. `after_epoch` is called when an epoch's
    predictions are kept; where peers are connected it must do nothing that depends on true labels.
    """

    def __init__(
        self,
        job: Job,
        side: LabelRecords,
        run: RunFolder,
        release: Release,
        make_party: MakeLabelParty,
        *,
        record_steps: int = 0,
        observer: Observer | None = None,
        device: torch.device | None = None,
        arrivals: Arrivals | None = None,
        after_epoch: Callable[[], None] = lambda: None,
        spent: Callable[[], LedgerTotal] | None = None,
    ) -> None:
        self.job, self.side, self.run = job, side, run
        self.schedule = Schedule(job, side.train, side.test)
        self.record_steps = record_steps
        self.observer = observer or Silent()
        self.device = device
        self.arrivals = arrivals
        self._after_epoch = after_epoch
        self._release, self._make_party, self._spent = release, make_party, spent
        self._released: tuple[NoisyLabels, LedgerTotal] | None = None
        self.party: LabelParty
        self._untrained: FeatureParty | None = None
        self.trajectory: TrajectoryWriter | None = None
        self._round = 0
        self._records = 0
        self._seconds = self._waited = 0.0
        self._begun = time.perf_counter()

    async def attend(self, meeting: Meeting) -> TrainResult:
        """Train until all steps are done at every party, through restarts of feature parties.

        The result has no test metrics yet: they depend on true labels, and the feature parties are still connected.
        """
        try:
            while True:
                done_with = self.run.confirmed_to(LABEL_PARTY) if self.run.result() else ()
                self.channels = await meeting.gather(without=done_with)
                self.observer.gathered(self.channels)
                try:
                    start = await self._agree_on_a_step()
                    await self._send_estimates()
                    result = self.run.result()
                    if result is None:
                        self._load(start)
                        done = await self._steps(start)
                        if self.schedule.patience and done:
                            load_best(self.run.label, self.job.digest(), self.party.halves)
                    else:
                        done = start
                        await self._verdict(done)
                    if self.schedule.sends_head_embeddings:
                        await self._collect(done, keep=result is None)
                    return await self._farewell(done, result)
                except PeerRestarted as restarted:
                    self.observer.event("restarted", peer=restarted.peer)
        finally:
            if self.trajectory:
                self.trajectory.close()

    async def _agree_on_a_step(self) -> int:
        """Return the newest step that every party has a checkpoint of, and tell all to start there."""
        self._round += 1
        for channel in self.channels.values():
            await channel.send(Rewind(self._round))
        common = {0, *saved_steps(self.run.label / "checkpoints")}
        for channel in self.channels.values():
            common &= {0, *(await self._position(channel)).checkpoints}
        for channel in self.channels.values():
            await channel.send(Start(self._round, max(common)))
        return max(common)

    async def _send_estimates(self) -> None:
        """Tell the feature parties what the noisy labels say of the records, for the wide part; with two draws, the
        draw whose gradients they receive. It is post-processing of the release."""
        if self.schedule.sends_estimates:
            estimates = label_estimates(self._noisy()[0])
            for part, positions in enumerate(self.schedule.estimate_parts()):
                for channel in self.channels.values():
                    await channel.send(Estimates(0, part, estimates[positions, None]))

    async def _position(self, channel: Channel) -> Position:
        """Return the answer to this round's rewind; what the party sent before it came is of no use any more."""
        settings = self.job.training
        under_way = (
            (1 + settings.staleness) * settings.micro_batches + len(self.schedule.test_parts()) + self._round + 2
        )
        under_way += len(self.schedule.head_parts()) if self.schedule.sends_head_embeddings else 0
        for _ in range(under_way):
            message = await receive(
                channel, self.observer, Embeddings, TestEmbeddings, HeadEmbeddings, Finished, Bye, Position
            )
            if isinstance(message, Position) and message.round == self._round:
                return message
        raise BadMessage(f"{channel.peer} goes on sending and does not say where it stands")

    async def _steps(self, start: int) -> int:
        """Return the number of steps done in all: fewer than planned if the noisy hold-out says so."""
        if await self._stops(start):
            return start
        for stretch in self.schedule.stretches(start):
            begun, self._waited = time.perf_counter(), 0.0
            for step in stretch:
                await self._step(step)
                self._records += self.schedule.records(step + 1) - self.schedule.records(step)
                self.observer.at_step(step + 1, self.schedule.total_steps, self._records)
            self._seconds += time.perf_counter() - begun - self._waited
            if self.schedule.epoch_ends(stretch.stop):
                await self._evaluate(stretch.stop)
            self._checkpoint(stretch.stop)
            if await self._stops(stretch.stop):
                return stretch.stop
        return self.schedule.total_steps

    async def _stops(self, done: int) -> bool:
        """Judge the epoch that ends here, keep its weights if they are the best so far, and say whether to stop."""
        verdict = await self._verdict(done)
        if verdict is None:
            return False
        if verdict.best:
            save_best(self.run.label, done, self.job.digest(), self.party.halves)
        if verdict.stop:
            self.observer.event("stopped early", step=done)
        return verdict.stop

    async def _verdict(self, done: int) -> Verdict | None:
        """Tell the feature parties what the noisy hold-out says; a function of noisy labels, so it may cross."""
        if not self.schedule.has_verdict(done):
            return None
        judged = [entry for entry in self.run.metrics() if entry["step"] <= done]
        best = _best(judged)
        without_gain = judged[-1]["epoch"] - best["epoch"]
        verdict = Verdict(done, best=best is judged[-1], stop=without_gain >= self.schedule.patience)
        for channel in self.channels.values():
            await channel.send(verdict)
        return verdict

    async def _step(self, step: int) -> None:
        """Receive embeddings, send perturbed gradients, update the own half: one step of the paper's algorithms."""
        self._await_labels(step)
        if self.trajectory and step < self.record_steps:
            self.trajectory.record()
        parts = self.schedule.parts(step)
        records = sum(len(part) for part in parts)
        for part, positions in enumerate(parts):
            received = [
                await self._tensor(channel, Embeddings, step, part, len(positions))
                for channel in self.channels.values()
            ]
            gradients = self.party.backward(positions, self.schedule.train[positions], received, records)
            for channel, gradient in zip(self.channels.values(), gradients, strict=True):
                await channel.send(Gradients(step, part, gradient))
        self.party.update()

    def _await_labels(self, step: int) -> None:
        """Have the noisy labels of a step's records at hand, as soon as they are there.

        Nobody else could go on meanwhile, so the thread waits; over a network others keep the connections alive.
        """
        batch = self.schedule.batch(step)
        if self.arrivals is None or self.party.holds(batch):
            return
        begun, first = time.perf_counter(), int(batch[0])
        self.party.admit(self.arrivals.from_record(first, len(batch), step), first)
        self._waited += time.perf_counter() - begun

    async def _evaluate(self, done: int) -> None:
        """Keep what the network predicts of held-out and test records; noisy labels judge the held-out ones."""
        parts = []
        for part, rows in enumerate(self.schedule.test_parts()):
            received = [
                await self._tensor(channel, TestEmbeddings, done, part, len(rows)) for channel in self.channels.values()
            ]
            parts.append(self.party.predict(rows, received).cpu().numpy())
        predicted = np.concatenate(parts)
        if not np.isfinite(predicted).all():
            raise ValueError(f"after step {done:,} the network predicts numbers that are not finite")
        judging = self.schedule.held_out
        validation, test = predicted[: len(judging)], predicted[len(judging) :]
        epoch = self.schedule.epoch_of(done - 1)
        self.run.write_predictions(epoch, validation, test)
        found = {}
        if len(judging):
            noisy = self._noisy()[0]
            found = asdict(noisy_validation(noisy.mechanism, [draw[judging] for draw in noisy.draws], validation))
        self.run.write_metrics([*self.run.metrics(), {"epoch": epoch, "step": done, **found}])
        self.observer.event("epoch", epoch=epoch, **found)
        self._after_epoch()

    async def _collect(self, done: int, *, keep: bool) -> None:
        """Receive the embeddings of all records for the local head; they go into the folder that is not private."""
        folder = self.run.not_private()
        with naming_what_does_not_fit(folder / "inputs.f32"), open_private(folder / ".inputs.new", "wb") as file:
            for part, rows in enumerate(self.schedule.head_parts()):
                received = [
                    await self._tensor(channel, HeadEmbeddings, done, part, len(rows))
                    for channel in self.channels.values()
                ]
                if keep:
                    file.write(torch.cat([*received, *self._own_head_inputs(rows, received)], dim=1).numpy().tobytes())
        if keep:
            (folder / ".inputs.new").replace(folder / "inputs.f32")
        else:
            (folder / ".inputs.new").unlink()

    def _own_head_inputs(self, rows: Rows, received: list[Tensor]) -> list[Tensor]:
        """Return what this party adds for the local head: its logits, and its own features as its half embeds them."""
        if self.job.trains:
            widths = map(self.job.model.cut_width, self.channels)
            cuts = [embeddings[:, -width:] for embeddings, width in zip(received, widths, strict=True)]
            return [self.party.head_inputs(rows, cuts).cpu()]
        if self.side.features is None:
            return []
        if self._untrained is None:
            self._untrained = build_feature_party(self.job, LABEL_PARTY, self.side.features, device=self.device)
        return [self._untrained.embed(rows).cpu()]

    async def _tensor(
        self,
        channel: Channel,
        kind: type[Embeddings | TestEmbeddings | HeadEmbeddings],
        step: int,
        part: int,
        rows: int,
    ) -> Tensor:
        message = await receive(channel, self.observer, kind)
        if (message.step, message.part) != (step, part):
            raise BadMessage(
                f"{channel.peer} sent {kind.__name__} of step {message.step}, part {message.part}; "
                f"expected was step {step}, part {part}"
            )
        width_of = self.job.head_width if kind is HeadEmbeddings else self.job.model.cut_width
        shape = (rows, width_of(channel.peer))
        return checked_tensor(message.tensor, shape, sender=channel.peer, what="embeddings", step=step)

    async def _farewell(self, done: int, result: TrainResult | None) -> TrainResult:
        """End the job: every party has its last checkpoint on disk before anybody is told that all is done.

        A party that has heard it stays until this side has noted that it did: it would be waited for in vain.
        """
        for channel in self.channels.values():
            finished = await receive(channel, self.observer, Finished)
            if finished.step != done:
                raise BadMessage(f"{channel.peer} finished at step {finished.step} of {done}")
        if result is None:
            if self.trajectory:
                self.trajectory.sync()
            if self.job.trains:
                for part, (half, optimizer) in self.party.halves.items():
                    with optimizer.averaged():
                        write_atomically(self.run.label / f"{part}.safetensors", save(half.state_dict()))
            result = self._result(done)
            self.run.finish(result)
        for channel in self.channels.values():
            await channel.send(Bye())
        for name, channel in self.channels.items():
            await receive(channel, self.observer, Bye)
            self.run.confirm(LABEL_PARTY, name)
            await channel.send(Bye())
        return result

    def _load(self, step: int) -> None:
        """Put the party into its state after `step` steps; what was computed beyond is forgotten."""
        if not self.job.trains:
            return
        self.party = self._make_party(self._noisy()[0])
        checkpoints = self.run.label / "checkpoints"
        if step:
            load_checkpoint(checkpoints, step, self.job.digest(), self.party.halves)
            self.observer.event("resumed", step=step)
        forget_after(checkpoints, step)
        forget_best_after(self.run.label, step)
        self.run.write_metrics([entry for entry in self.run.metrics() if entry["step"] <= step])
        if self.record_steps:
            if self.trajectory:
                self.trajectory.close()
            self.trajectory = TrajectoryWriter(self.run.label, self.party.top, min(step, self.record_steps))

    def _checkpoint(self, done: int) -> None:
        if self.trajectory:
            self.trajectory.sync()
        save_checkpoint(self.run.label / "checkpoints", done, self.job.digest(), self.party.halves)
        self.observer.event("checkpoint", step=done)

    def _noisy(self) -> tuple[NoisyLabels, LedgerTotal]:
        """Return the noisy labels of the training records: released when they are needed for the first time.

        Those of labels that arrive later are not among them.
        """
        if self._released is None:
            self._released = self._release() if self.arrivals is None else (self.arrivals.none_yet(), LedgerTotal())
        return self._released

    def _kept(self) -> dict[str, Any]:
        """Return what noisy labels say of the weights that were kept."""
        entries = self.run.metrics()
        if not entries:
            return {}
        return _best(entries) if self.schedule.patience else entries[-1]

    def _result(self, done: int) -> TrainResult:
        kept = self._kept()
        if self.job.trains:
            noisy, total = self._noisy()
            if self._spent is not None:  # others may have released from the vault since
                total = self._spent()
            mechanism, epsilon, delta = noisy.mechanism.name, noisy.epsilon, noisy.delta
        else:
            mechanism, epsilon, delta, total = NOTHING_RELEASED, 0.0, 0.0, LedgerTotal()
        return TrainResult(
            run=str(self.run.path),
            data=self.job.data.source,
            mechanism=mechanism,
            estimator=self.job.privacy.estimator,
            draws=self.job.privacy.draws,
            total_epsilon=total.epsilon,
            total_delta=total.delta,
            epsilon=epsilon,
            delta=delta,
            private=total.private,
            classes=self.side.classes,
            train_records=len(self.side.train),
            test_records=len(self.side.test),
            epochs=self.schedule.epoch_of(done - 1) if done else 0,
            kept_epoch=kept.get("epoch", 0),
            steps=done,
            samples_per_second=self._records / self._seconds if self._seconds else 0.0,
            seconds=time.perf_counter() - self._begun,
            **{name: kept.get(name, math.nan) for name in ("validation_loss", "validation_auc")},
            **dict.fromkeys(TEST_METRICS, math.nan),  # `AfterTraining` adds them
        )


def _best(judged: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the first of the epochs that explain the noisy hold-out best."""
    return max(judged, key=lambda entry: (entry["validation_log_likelihood"], -entry["epoch"]))
