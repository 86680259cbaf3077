"""What the stages of a party share: the job, the run's folder, the built half, and how far the run is.

Neither role holds a true label. Their stages are in `tpsl.training.stages`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from torch import Tensor

from tpsl.data.encoder import EncoderState
from tpsl.data.order import Rows
from tpsl.data.sides import FeatureSide, LabelRecords
from tpsl.files import make_private_folder
from tpsl.net.asking import Answers, AtHome, Label
from tpsl.net.messages import Message
from tpsl.net.peers import LABEL_PARTY
from tpsl.split.feature_party import FeatureParty
from tpsl.split.label_party import LabelParty
from tpsl.training.build import LabelPartyBuilder, build_label_party
from tpsl.training.checkpoint import BEST, Halves, forget_after, load_checkpoint, save_checkpoint, write_weights
from tpsl.training.observer import Speed
from tpsl.training.ranks import broadcast_noisy_labels
from tpsl.training.result import FeatureResult, TrainResult
from tpsl.training.schedule import Schedule
from tpsl.training.setup import RunSetup
from tpsl.training.transcript import TrajectoryWriter, TranscriptWriter
from tpsl.training.vaults import LabelSource
from tpsl.vault import NoisyLabels


class Role(ABC):
    """One party of a run, from the first step to the last."""

    recorder: TranscriptWriter | TrajectoryWriter | None = None

    def __init__(self, setup: RunSetup, name: str, train: Rows, test: Rows) -> None:
        self.setup, self.name, self.own = setup, name, setup.own_parts(name)
        self.job, self.run, self.observer = setup.job, setup.run, setup.watching.observer
        self.folder, self.workers = setup.run.party(name), setup.workers
        self.schedule = Schedule(setup.job, train, test)
        self.done = 0
        self.verdict: tuple[bool, bool] | None = None
        """After an epoch that was judged: whether its weights are the best so far, and whether training ends."""
        self.begun, self.speed = time.perf_counter(), Speed(self.observer, self.schedule.total_steps)

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
            load_checkpoint(checkpoints, self.done, self.job.digest(), self.halves)
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

    def mine(self, rows: Rows) -> Rows:
        """Return those of some records that are this worker's."""
        return rows[self.workers.own_rows(len(rows))] if self.workers.are_several else rows

    def is_recorded(self, step: int) -> bool:
        """Whether a step goes into the recording."""
        return self.recorder is not None and step < self.setup.record_steps

    def close(self) -> None:
        """Close the files of the recording."""
        if self.recorder:
            self.recorder.close()
            self.recorder = None


class FeatureRole(Role):
    """A feature party."""

    recorder: TranscriptWriter | None = None
    party: FeatureParty
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


class StepsTogether(Protocol):
    """What takes steps of all parties at once, without questions (`tpsl.training.joint_steps`)."""

    def take(self, stretch: range) -> float | None:
        """Take the steps, if that is possible, and return how long they took."""


class FeatureRun:
    """The feature parties of this process, all of a job or one over a network, and the label party that they ask."""

    def __init__(self, roles: Sequence[FeatureRole], label: Label, together: StepsTogether | None = None) -> None:
        self.roles, self.label, self.together = tuple(roles), label, together
        self.job, self.schedule, self.workers = roles[0].job, roles[0].schedule, roles[0].workers
        self.waits = not isinstance(label, AtHome)
        """Whether the label party is elsewhere, so that its answers are waited for."""

    @property
    def done(self) -> int:
        """The steps that are done."""
        return self.roles[0].done

    def ask(self, method: str, part: int = 0, *, step: int | None = None) -> Answers:
        """Ask in the name of every party, without a tensor; return the answers."""
        said = {role.name: Message() for role in self.roles}
        return self.label.ask(method, self.done if step is None else step, part, said)

    def send(self, method: str, part: int, tensors: Sequence[Tensor], step: int | None = None) -> Callable[[], Answers]:
        """Send a tensor of each party; return what waits for the answers."""
        said = {role.name: Message(tensor=tensor) for role, tensor in zip(self.roles, tensors, strict=True)}
        return self.label.ask_ahead(method, self.done if step is None else step, part, said)


class LabelRole(Role):
    """The label party.

    Guarantee: what it sends, and when, is a function of what it receives, its own features, the job and the noisy
    labels. Labels are released when all feature parties are there and hold the same job, not before. `after_epoch` is
    called when an epoch's predictions are kept; where peers are connected it must do nothing that depends on true
    labels.
    """

    recorder: TrajectoryWriter | None = None
    party: LabelParty
    result: TrainResult | None = None
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
        self.present: tuple[str, ...] = ()
        """The feature parties that take part, in the job's order: all, but for those that have finished for good."""

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
            self._noisy = broadcast_noisy_labels(self.workers, self.vault.noisy, self.job)
        return self._noisy

    def widths(self, width: Callable[[str], int]) -> dict[str, int]:
        """Return how wide the rows of each feature party are, as `width` says of a party."""
        return {name: width(name) for name in self.present}
