"""What the stages of a party share: the job, the run's folder, the built half, and how far the run is.

Neither role holds a true label. Their stages are in `tpsl.run.stages`.
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from tpsl.data.order import Rows
from tpsl.data.sides import FeatureSide, LabelRecords
from tpsl.files import make_private_folder
from tpsl.net.asking import Answers, AtHome, Label
from tpsl.net.messages import LABEL_PARTY, Message
from tpsl.net.rounding import rounded
from tpsl.run.build import LabelPartyBuilder, build_label_party
from tpsl.run.checkpoint import BEST, Halves, forget_after, load_checkpoint, save_checkpoint, write_weights
from tpsl.run.observer import Speed
from tpsl.run.ranks import broadcast_noisy_labels
from tpsl.run.result import FeatureResult, TrainResult
from tpsl.run.schedule import Schedule
from tpsl.run.setup import RunSetup
from tpsl.run.transcript import TrajectoryWriter, TranscriptWriter
from tpsl.run.vaults import LabelSource
from tpsl.split.feature_party import FeatureParty
from tpsl.split.label_party import LabelParty
from tpsl.vault import NoisyLabels

if TYPE_CHECKING:
    from tpsl.run.joint_steps import JointSteps


Embed = Callable[[Rows], Tensor]
"""Gives what is sent of some records."""


class Role(ABC):
    """One party of a run, from the first step to the last."""

    recorder: TranscriptWriter | TrajectoryWriter | None = None

    def __init__(self, setup: RunSetup, name: str, side: FeatureSide | LabelRecords) -> None:
        self.setup, self.name, self.own = setup, name, setup.own_parts(name)
        self.job, self.run, self.observer = setup.job, setup.run, setup.watching.observer
        self.folder, self.workers = setup.run.party(name), setup.workers
        self.checkpoints = self.folder / "checkpoints"
        self.ids, self.encoder = side.ids, side.encoder
        self.schedule = Schedule(setup.job, side.train, side.test)
        self.done = 0
        self.verdict: tuple[bool, bool] | None = None
        """After an epoch with a verdict: whether its weights are the best so far, and whether training ends."""
        self.begun, self.speed = time.perf_counter(), Speed(self.observer, self.schedule.total_steps)

    @property
    @abstractmethod
    def halves(self) -> Halves:
        """The parts with weights, by name: what a checkpoint holds."""

    @property
    def epochs(self) -> int:
        """How many epochs the steps belong to that are done."""
        return self.schedule.epoch_of(self.done - 1) if self.done else 0

    def restore(self) -> None:
        """Put the built halves into their state after `done` steps; what was computed beyond is forgotten."""
        self.close()
        if self.done:
            load_checkpoint(self.checkpoints, self.done, self.job.digest(), self.halves)
            self.observer.event("resumed", step=self.done)
        elif self.setup.start is not None:
            self.setup.start.load_into(self.name, self.halves)
        if self.workers.is_first:
            forget_after(self.checkpoints, self.done)
            forget_after(self.folder / BEST, self.done)

    def checkpoint(self) -> None:
        """Keep the state after `done` steps."""
        if self.recorder:
            self.recorder.sync()
        save_checkpoint(self.checkpoints, self.done, self.job.digest(), self.halves, self.workers)
        self.observer.event("checkpoint", step=self.done)

    def keep_what_predicts(self, folder: Path) -> None:
        """Write the averaged weights into a folder."""
        make_private_folder(folder)
        for part, (half, optimizer) in self.halves.items():
            with optimizer.averaged():
                write_weights(folder / f"{part}.safetensors", half, self.workers)

    def keep_for_new_records(self, *, trained: bool) -> None:
        """Write what a finished run leaves: the half, if it was `trained`, the encoder, and which records it had."""
        if self.recorder:
            self.recorder.sync()
        if trained:
            self.keep_what_predicts(self.folder)
        if self.workers.is_first:
            if self.encoder is not None and not self.job.hands_over:
                self.run.save_encoder(self.name, self.encoder)
            self.run.note_records(self.name, self.ids)

    def version_of(self, embeddings: Tensor) -> str:
        """Return the version of the half that has sent these embeddings of this worker's rows, as they arrived.

        Two runs of one job differ by their noise, and a half works only with its counterparts. The version of a half
        is a digest of embeddings that it sent when the run last evaluated, as they were received. Both sides hold these
        bytes, so each notes the version without a message.
        """
        whole = self.workers.all_gather_rows(embeddings).contiguous().cpu().numpy()
        return hashlib.sha256(b"tpsl half" + whole.tobytes()).hexdigest()

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
        super().__init__(setup, side.party, side)
        self.side = side

    @property
    def halves(self) -> Halves:
        """The bottom half."""
        return {"bottom": (self.party.bottom, self.party.optimizer)}


class FeatureRun:
    """The feature parties of this process, all of a job or one over a network, and the label party that they ask.

    On a GPU `together` may take steps of all parties at once, without questions.
    """

    def __init__(self, roles: Sequence[FeatureRole], label: Label, together: JointSteps | None = None) -> None:
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

    def send(self, method: str, part: int, tensors: Sequence[Tensor]) -> Callable[[], Answers]:
        """Send a tensor of each party; return what waits for the answers."""
        said = {role.name: Message(tensor=tensor) for role, tensor in zip(self.roles, tensors, strict=True)}
        return self.label.ask_ahead(method, self.done, part, said)

    def send_parts(
        self, method: str, parts: Callable[[Schedule], list[Rows]], embeds: Sequence[Embed], *, versions: bool
    ) -> Answers:
        """Send what each party has of some records, part after part; return the answers to the last one.

        Note the `versions` of the halves, of which the first part's embeddings come.
        """
        waiting = list[Callable[[], Answers]]()
        for part, of_roles in enumerate(zip(*(parts(role.schedule) for role in self.roles), strict=True)):
            sent = [embed(role.mine(rows)) for embed, role, rows in zip(embeds, self.roles, of_roles, strict=True)]
            for role, embeddings in zip(self.roles, sent, strict=True) if part == 0 and versions else ():
                version = role.version_of(rounded(embeddings, self.job.training.wire))
                if self.workers.is_first:
                    role.run.note_versions(role.name, {role.name: version})
            waiting.append(self.send(method, part, sent))
        return [answers() for answers in waiting][-1] if waiting else {}


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
        super().__init__(setup, LABEL_PARTY, records)
        self.records, self.vault = records, vault
        self.make_party, self.after_epoch = make_party, after_epoch
        self.present: tuple[str, ...] = ()
        """The feature parties that take part, in the job's order: all, but for those that have finished for good."""

    @property
    def halves(self) -> Halves:
        """The top half, and the bottom half of the own features if there are any."""
        return self.party.halves

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

    def note_versions(self, received: Sequence[Tensor]) -> None:
        """Note the versions of the halves that these embeddings have come from, a tensor each."""
        versions = [self.version_of(embeddings) for embeddings in received]
        if self.workers.is_first:
            self.run.note_versions(LABEL_PARTY, dict(zip(self.present, versions, strict=True)))
