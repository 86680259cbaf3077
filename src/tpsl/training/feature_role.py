"""The feature party's role in a job: Algorithms 1 and 3 as it sees them, from the first step to the last."""

from __future__ import annotations

import time
from collections import deque

import torch
from safetensors.torch import load, save
from torch import Tensor

from tpsl.data.features import Features
from tpsl.data.sides import FeatureSide
from tpsl.data.source import Inputs
from tpsl.files import make_private_folder, write_atomically
from tpsl.party import FeatureParty
from tpsl.training.build import build_feature_party, load_pretrained, pretrained_weights
from tpsl.training.checkpoint import (
    Halves,
    forget_after,
    forget_best_after,
    has_best,
    load_best,
    load_checkpoint,
    save_best,
    save_checkpoint,
    saved_steps,
)
from tpsl.training.job import Job
from tpsl.training.observer import Observer, Silent
from tpsl.training.receiving import Kind, receive
from tpsl.training.result import FeatureResult
from tpsl.training.run_folder import RunFolder
from tpsl.training.schedule import Schedule
from tpsl.training.transcript import TranscriptWriter
from tpsl.training.wide import FILE as WIDE_FILE
from tpsl.training.wide import fit_wide, scored_features
from tpsl.transport import (
    MESSAGE_OVERHEAD,
    WINDOW,
    BadMessage,
    Bye,
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
    as_received,
    as_sent,
    checked_tensor,
)


class _Rewound(Exception):
    """The label party wants to agree on a step again: another party was restarted."""

    def __init__(self, order: Rewind) -> None:
        self.order = order


class FeatureRole:
    """One feature party from the first step to the last, over any transport."""

    def __init__(
        self,
        job: Job,
        side: FeatureSide,
        run: RunFolder,
        *,
        record_steps: int = 0,
        observer: Observer | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.job, self.side, self.run = job, side, run
        self.schedule = Schedule(job, side.train, side.test)
        self.folder = run.party(side.party)
        self.record_steps = record_steps
        self.observer = observer or Silent()
        self.device = device
        self.party: FeatureParty
        self.recorder: TranscriptWriter | None = None
        self._kept: deque[list[Tensor]] = deque()
        self._early: deque[Gradients] = deque()
        self._unanswered = 0
        width, itemsize = job.model.cut_width(side.party), 4 if job.training.wire == "float32" else 2
        # Neither side ever waits to send: otherwise both could, each for the other to receive.
        part_bytes = self.schedule.part_rows * width * itemsize + 2 * MESSAGE_OVERHEAD
        self._most_unanswered = max(2, WINDOW // part_bytes)
        self._records = 0
        self._seconds = 0.0

    async def attend(self, meeting: Meeting) -> FeatureResult:
        """Train until the label party says that all is done, through restarts of the other parties."""
        try:
            while True:
                channels = await meeting.gather()
                self.observer.gathered(channels)
                (self.channel,) = channels.values()
                try:
                    order = await receive(self.channel, self.observer, Rewind)
                    while True:
                        try:
                            return await self._round(order)
                        except _Rewound as again:
                            order = again.order
                except PeerRestarted:
                    self.observer.event("restarted", peer=self.channel.peer)
        finally:
            if self.recorder:
                self.recorder.close()

    async def _round(self, order: Rewind) -> FeatureResult:
        """Agree on a step to go on from, and go on to the end."""
        offered = sorted(saved_steps(self.folder / "checkpoints"))
        await self.channel.send(Position(order.round, tuple(offered)))
        start = await self._expect(Start)
        if start.round != order.round or start.step not in (0, *offered):
            raise BadMessage(f"{self.channel.peer} wants to start at step {start.step}, which was not offered")
        if self.schedule.sends_estimates:
            await self._learn_wide_part()
        self._load(start.step)
        done = await self._steps(start.step)
        if self.schedule.patience and done:
            load_best(self.folder, self.job.digest(), self._halves())
        if self.schedule.sends_head_embeddings:
            await self._send_head_embeddings(done)
        return await self._farewell(done)

    async def _learn_wide_part(self) -> None:
        """Receive what the noisy labels say of the records and fit the wide part, unless it is there already."""
        received = []
        for part, positions in enumerate(self.schedule.estimate_parts()):
            message = await self._expect(Estimates)
            if (message.step, message.part) != (0, part):
                raise BadMessage(f"{self.channel.peer} sent part {message.part} of the estimates; expected was {part}")
            shape, sender = (len(positions), 1), self.channel.peer
            received.append(checked_tensor(message.tensor, shape, sender=sender, what="estimates", step=0))
        estimates = torch.cat(received)[:, 0].numpy()
        if self.record_steps:
            make_private_folder(self.folder / "transcript")
            write_atomically(self.folder / "transcript" / "estimates.f32", estimates.tobytes())
        if not (self.folder / WIDE_FILE).exists():
            self.observer.event("wide part", text=f"fitting the wide part on {len(estimates):,} noisy labels")
        rows = self.schedule.train[self.schedule.trained]
        fit_wide(self.side.features, rows, estimates, self.job.training.seed, self.folder)

    def _features(self) -> Features | Inputs:
        """Return this party's features, with the score of its wide part if it has one."""
        return scored_features(self.side.features, self.folder) if self.job.model.wide else self.side.features

    async def _steps(self, start: int) -> int:
        """Return the number of steps done in all: fewer than planned if the label party stops early."""
        if await self._stops(start):
            return start
        for stretch in self.schedule.stretches(start):
            begun = time.perf_counter()
            ahead = stretch.start
            for step in stretch:
                while ahead < min(step + 1 + self.job.training.staleness, stretch.stop):
                    await self._forward(ahead)
                    ahead += 1
                await self._backward(step)
                self._records += self.schedule.records(step + 1) - self.schedule.records(step)
                self.observer.at_step(step + 1, self.schedule.total_steps, self._records)
            self._seconds += time.perf_counter() - begun
            if self.schedule.epoch_ends(stretch.stop):
                await self._send_test_embeddings(stretch.stop)
                self.observer.event("epoch", epoch=self.schedule.epoch_of(stretch.stop - 1))
            self._checkpoint(stretch.stop)
            if await self._stops(stretch.stop):
                return stretch.stop
        return self.schedule.total_steps

    async def _stops(self, done: int) -> bool:
        """Hear after an epoch whether its weights are the best so far, which are kept, and whether training ends."""
        if not self.schedule.has_verdict(done):
            return False
        verdict = await self._expect(Verdict)
        if verdict.step != done:
            raise BadMessage(f"{self.channel.peer} judges step {verdict.step}; expected was step {done}")
        if not (verdict.best or has_best(self.folder)):
            raise BadMessage(f"{self.channel.peer} judges step {done} and names no epoch that is better")
        if verdict.best:
            save_best(self.folder, done, self.job.digest(), self._halves())
        if verdict.stop:
            self.observer.event("stopped early", step=done)
        return verdict.stop

    async def _forward(self, step: int) -> None:
        """Compute `e_i = f(x_i)` and send it, part by part."""
        sent = []
        for part, positions in enumerate(self.schedule.parts(step)):
            embeddings = self.party.forward(self.schedule.train[positions])
            if self._unanswered == self._most_unanswered:
                self._early.append(await self._expect(Gradients))
                self._unanswered -= 1
            await self.channel.send(Embeddings(step, part, embeddings))
            self._unanswered += 1
            if step < self.record_steps:
                sent.append(as_received(as_sent(embeddings, self.job.training.wire)))
        self._kept.append(sent)

    async def _backward(self, step: int) -> None:
        """Receive `g̃_i`, part by part in the same order, and update the bottom half."""
        batch = self.schedule.batch(step)
        received = []
        for part, positions in enumerate(self.schedule.parts(step)):
            gradients = await self._tensor(step, part, len(positions))
            self.party.backward(gradients, len(batch))
            if step < self.record_steps:
                received.append(gradients)
        self.party.update()
        sent = self._kept.popleft()
        if self.recorder and step < self.record_steps:
            self.recorder.record(self.schedule.train[batch], torch.cat(sent), torch.cat(received))

    async def _tensor(self, step: int, part: int, rows: int) -> Tensor:
        if self._early:
            message = self._early.popleft()
        else:
            message = await self._expect(Gradients)
            self._unanswered -= 1
        if (message.step, message.part) != (step, part):
            raise BadMessage(
                f"{self.channel.peer} sent gradients of step {message.step}, part {message.part}; "
                f"expected was step {step}, part {part}"
            )
        shape = (rows, self.party.bottom.width)
        return checked_tensor(message.tensor, shape, sender=self.channel.peer, what="gradients", step=step)

    async def _send_test_embeddings(self, done: int) -> None:
        for part, rows in enumerate(self.schedule.test_parts()):
            await self.channel.send(TestEmbeddings(done, part, self.party.embed(rows)))

    async def _send_head_embeddings(self, done: int) -> None:
        """Send embeddings of all records for the local head, after the frozen pre-trained ones if there are any."""
        frozen = None
        if self.job.sends_frozen:
            plain = self.job.without_wide_part()
            frozen = build_feature_party(plain, self.side.party, self.side.features, device=self.device)
            load_pretrained(frozen.bottom, self._pretrained())
        for part, rows in enumerate(self.schedule.head_parts()):
            embeddings = self.party.embed(rows)
            if frozen is not None:
                embeddings = torch.cat([frozen.embed(rows), embeddings], dim=1)
            await self.channel.send(HeadEmbeddings(done, part, embeddings))

    async def _farewell(self, done: int) -> FeatureResult:
        if self.recorder:
            self.recorder.sync()
        with self.party.optimizer.averaged():
            write_atomically(self.folder / "bottom.safetensors", save(self.party.bottom.state_dict()))
        await self.channel.send(Finished(done))
        await self._expect(Bye)
        result = self.run.party_result(self.side.party) or FeatureResult(
            run=str(self.run.path),
            party=self.side.party,
            job=self.job.digest(),
            train_records=len(self.side.train),
            epochs=self.schedule.epoch_of(done - 1) if done else 0,
            steps=done,
            samples_per_second=self._records / self._seconds if self._seconds else 0.0,
        )
        self.run.finish_party(result)
        await self.channel.send(Bye())
        await self._expect(Bye)  # the label party has noted that this party has finished
        self.run.confirm(self.side.party, self.channel.peer)
        self.observer.event("finished")
        return result

    def _load(self, step: int) -> None:
        """Put the party into its state after `step` steps; what was computed beyond is forgotten."""
        self.party = build_feature_party(self.job, self.side.party, self._features(), device=self.device)
        if not step and self.job.training.pretrain is not None:
            load_pretrained(self.party.bottom, self._pretrained())
        self._kept.clear()
        self._early.clear()
        self._unanswered = 0
        checkpoints = self.folder / "checkpoints"
        if step:
            load_checkpoint(checkpoints, step, self.job.digest(), self._halves())
            self.observer.event("resumed", step=step)
        forget_after(checkpoints, step)
        forget_best_after(self.folder, step)
        if self.record_steps:
            if self.recorder:
                self.recorder.close()
            steps = min(step, self.record_steps)
            self.recorder = TranscriptWriter(
                self.folder / "transcript",
                self.party.bottom.width,
                steps_before=steps,
                records_before=self.schedule.records(steps),
            )

    def _pretrained(self) -> dict[str, Tensor]:
        """Return weights learned from this party's features alone: made once for a run, and kept."""
        path = self.folder / "pretrained.safetensors"
        if not path.exists():
            told = ""

            def progress(done: int, total: int, note: str) -> None:
                nonlocal told
                if note != told:
                    told = note
                    self.observer.event("pretraining", text=note)

            write_atomically(path, save(pretrained_weights(self.job, self.side, self.device, progress)))
        return load(path.read_bytes())

    def _checkpoint(self, done: int) -> None:
        if self.recorder:
            self.recorder.sync()
        save_checkpoint(self.folder / "checkpoints", done, self.job.digest(), self._halves())
        self.observer.event("checkpoint", step=done)

    def _halves(self) -> Halves:
        return {"bottom": (self.party.bottom, self.party.optimizer)}

    async def _expect(self, kind: type[Kind]) -> Kind:
        """Return the next message if it is of this kind; the label party may always order a rewind."""
        message: Kind | Rewind = await receive(self.channel, self.observer, kind, Rewind)
        if isinstance(message, Rewind):
            raise _Rewound(message)
        return message
