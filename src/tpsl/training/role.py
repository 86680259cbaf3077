"""What the stages of a party share: the job, the run's folder, channels, the built half, and how far the run is.

Neither role holds a true label. Their stages are in `tpsl.training.stages`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from tpsl.data.encoder import EncoderState
from tpsl.data.order import Rows
from tpsl.data.sides import FeatureSide, LabelRecords
from tpsl.files import make_private_folder
from tpsl.party.feature_party import FeatureParty
from tpsl.party.label_party import LabelParty
from tpsl.training.build import LabelPartyBuilder, build_label_party
from tpsl.training.checkpoint import BEST, Halves, forget_after, load_checkpoint, save_checkpoint, write_weights
from tpsl.training.receiving import Kind, receive
from tpsl.training.result import FeatureResult, TrainResult
from tpsl.training.schedule import Schedule
from tpsl.training.setup import RunSetup
from tpsl.training.transcript import TrajectoryWriter, TranscriptWriter
from tpsl.training.worker_labels import given_by_first
from tpsl.transport.channel import Channel, PeerRestarted
from tpsl.transport.checks import checked_tensor
from tpsl.transport.messages import Message, Rewind, TensorMessage
from tpsl.transport.peer_workers import sender_of, to_part
from tpsl.transport.peers import LABEL_PARTY
from tpsl.vault import NoisyLabels, Spent
from tpsl.workers import PartyInterrupted


@dataclass
class Speed:
    """How many records were trained on in this process, and how long that took."""

    records: int = 0
    seconds: float = 0.0

    @property
    def per_second(self) -> float:
        """Records in a second; 0 if there were none."""
        return self.records / self.seconds if self.seconds else 0.0


class TakesSteps(Protocol):
    """What takes steps for several roles at once (`tpsl.training.joint_steps`)."""

    async def stretch(self, role: Role, stretch: range) -> float:
        """Have steps taken; return the seconds that this role waited."""


class Role(ABC):
    """One party of a run, from the first step to the last, over any transport."""

    recorder: TranscriptWriter | TrajectoryWriter | None = None
    joint: TakesSteps | None = None
    """What takes this role's steps together with those of all others, if they are in one process."""

    def __init__(self, setup: RunSetup, name: str, train: Rows, test: Rows) -> None:
        self.setup, self.name, self.own = setup, name, setup.own_parts(name)
        self.job, self.run, self.observer = setup.job, setup.run, setup.watching.observer
        self.folder, self.workers = setup.run.party(name), setup.workers
        self.schedule = Schedule(setup.job, train, test)
        self.done = 0
        self.is_ready = False
        """Whether this worker has told the others of its party that it is ready for the steps."""
        self.begun, self.speed = time.perf_counter(), Speed()

    @property
    @abstractmethod
    def halves(self) -> Halves:
        """The parts with weights, by name: what a checkpoint holds."""

    @property
    @abstractmethod
    def encoder(self) -> EncoderState | None:
        """How the party's own table was encoded, if it has one."""

    def restore(self) -> None:
        """Put the built halves into their state after `done` steps; what was computed beyond is forgotten."""
        checkpoints = self.folder / "checkpoints"
        if self.done:
            load_checkpoint(checkpoints, self.done, self.job.digest(), self.halves, self.setup.workers)
            self.observer.event("resumed", step=self.done)
        elif self.setup.start is not None:
            self.setup.start.load_into(self.name, self.halves)
        if self.setup.workers.is_first:
            forget_after(checkpoints, self.done)
            forget_after(self.folder / BEST, self.done)

    def checkpoint(self) -> None:
        """Keep the state after `done` steps."""
        if self.recorder:
            self.recorder.sync()
        save_checkpoint(self.folder / "checkpoints", self.done, self.job.digest(), self.halves, self.setup.workers)
        self.observer.event("checkpoint", step=self.done)

    def keep_what_predicts(self, folder: Path) -> None:
        """Write the averaged weights into a folder."""
        make_private_folder(folder)
        for part, (half, optimizer) in self.halves.items():
            with optimizer.averaged():
                write_weights(folder / f"{part}.safetensors", half, self.setup.workers)

    def keep_encoder(self) -> None:
        """Write how records are encoded, for those that come later."""
        if self.encoder is not None:
            self.run.save_encoder(self.name, self.encoder)

    def share(self, parts: Sequence[Rows]) -> list[tuple[int, Rows]]:
        """Return those of some parts that are this worker's, with their numbers."""
        return self.schedule.share(parts, self.workers)

    def count(self, steps: range) -> None:
        """Note that some steps are done."""
        self.speed.records += self.schedule.records(steps.stop) - self.schedule.records(steps.start)
        self.observer.at_step(steps.stop, self.schedule.total_steps, self.speed.records)

    def wait_until_ready(self, channels: Iterable[Channel]) -> None:
        """Wait until all workers of the party are ready for the steps; a worker that is cannot go back any more."""
        self.is_ready = True

        def look() -> None:
            for channel in channels:
                if channel.failure is not None:
                    raise channel.failure

        self.workers.barrier(look)

    def require_one_worker(self, restarted: PeerRestarted | Rewound) -> None:
        """Raise if this is one of several workers of the party that do steps: they start again as a whole."""
        if self.is_ready and self.workers.are_several:
            raise PartyInterrupted(f"{restarted}: all workers of this party have to be started again") from restarted

    def close(self) -> None:
        """Close the files of the recording."""
        if self.recorder:
            self.recorder.close()
            self.recorder = None


class Rewound(Exception):
    """The label party wants to agree on a step again: another party was restarted."""

    def __init__(self, order: Rewind) -> None:
        super().__init__("another party was restarted")
        self.order = order


class FeatureRole(Role):
    """A feature party."""

    recorder: TranscriptWriter | None = None
    channel: Channel
    party: FeatureParty
    order: Rewind | None = None
    """The rewind that the label party has ordered and that was not answered yet."""
    result: FeatureResult | None = None

    def __init__(self, setup: RunSetup, side: FeatureSide) -> None:
        super().__init__(setup, side.party, side.train, side.test)
        self.side = side

    @property
    def halves(self) -> Halves:
        """The bottom half."""
        return {"bottom": (self.party.bottom, self.party.optimizer)}

    @property
    def encoder(self) -> EncoderState | None:
        """How the party's table was encoded, if it has one."""
        return self.side.encoder

    async def receive(self, kind: type[Kind], topic: str = "", channel: Channel | None = None) -> Kind:
        """Return the next message if it is of this kind, a tensor of this topic; a rewind may always be ordered.

        It is the label party's, or comes through one channel to one of its workers.
        """
        topics, channel = (topic,) if topic else (), self.channel if channel is None else channel
        message: Kind | Rewind = await receive(channel, self.observer, kind, Rewind, topics=topics)
        if isinstance(message, Rewind):
            raise Rewound(message)
        return message

    async def tensor(self, topic: str, step: int, part: int, shape: tuple[int, int]) -> Tensor:
        """Return one part of what the label party sends, checked."""
        worker = to_part(self.channel, part)
        message = await self.receive(TensorMessage, topic, worker)
        return checked_tensor(message, sender_of(worker), step, part, shape)

    async def send_part(self, topic: str, step: int, part: int, tensor: Tensor) -> None:
        """Send one part to the worker of the label party that has it."""
        await to_part(self.channel, part).send(TensorMessage(topic, step, part, tensor))


class LabelSource(Protocol):
    """Where a run's noisy labels come from: the vault of the run, or what a feature party was handed over."""

    def noisy(self) -> NoisyLabels:
        """Return the noisy labels that training begins with, of the training records in their order."""

    def admit(self, party: LabelParty, batch: Rows, step: int) -> None:
        """Have the noisy labels of a step's records in the label party."""

    def total(self) -> Spent:
        """Return what the training records have spent in all."""


class LabelRole(Role):
    """The label party.

    Guarantee: what it sends, and when, is a function of what it receives, its own features, the job and the noisy
    labels. Labels are released when all feature parties are there and hold the same job, not before. `after_epoch` is
    called when an epoch's predictions are kept; where peers are connected it must do nothing that depends on true
    labels.
    """

    recorder: TrajectoryWriter | None = None
    channels: dict[str, Channel]
    party: LabelParty
    result: TrainResult | None = None
    rounds = 0
    _noisy: NoisyLabels | None = None

    def __init__(
        self,
        setup: RunSetup,
        records: LabelRecords,
        vault: LabelSource,
        make_party: LabelPartyBuilder = build_label_party,
        after_epoch: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(setup, LABEL_PARTY, records.train, records.test)
        self.records, self.vault = records, vault
        self.make_party, self.after_epoch = make_party, after_epoch

    @property
    def halves(self) -> Halves:
        """The top half, and the bottom half of the own features if there are any."""
        return self.party.halves

    @property
    def encoder(self) -> EncoderState | None:
        """How the label party's own features were encoded, if it has a table of them."""
        return self.records.encoder

    def noisy(self) -> NoisyLabels:
        """Return the noisy labels of the training records that have one.

        The first time all workers ask together: the first one has the vault, and gives them to the others.
        """
        if self._noisy is None or not self.workers.are_several:
            self._noisy = given_by_first(self.workers, self.vault.noisy, self.job)
        return self._noisy

    async def send(self, message: Message) -> None:
        """Send the same message to every feature party."""
        for channel in self.channels.values():
            await channel.send(message)

    async def tensors(self, topic: str, step: int, part: int, rows: int, width: Callable[[str], int]) -> list[Tensor]:
        """Return one part of what every feature party sends, in the job's order, checked; `width` is of each party."""
        received = []
        for name, channel in self.channels.items():
            worker = to_part(channel, part)
            message = await receive(worker, self.observer, TensorMessage, topics=(topic,))
            received.append(checked_tensor(message, sender_of(worker), step, part, (rows, width(name))))
        return received
