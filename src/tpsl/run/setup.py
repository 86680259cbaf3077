"""What a process knows of a run before it has any records, and how every process opens a run.

One process, the label party, a feature party and a hand-over differ in who they are and what they read; the order is
the same (`RunSetup.opened`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from tpsl.data.check import id_warnings
from tpsl.data.config import DataConfig
from tpsl.data.dataset import Dataset, load_feature_party, load_label_party
from tpsl.data.encoder import EncoderState
from tpsl.data.sides import FeatureSide, LabelSide
from tpsl.net.messages import LABEL_PARTY
from tpsl.run.job import Job, JobError, SearchStep
from tpsl.run.local import Local, own_data
from tpsl.run.method import resolve_method
from tpsl.run.observer import UNWATCHED, Observer, Watching
from tpsl.run.own_parts import OwnParts
from tpsl.run.run_folder import RunFolder
from tpsl.run.warm_start import StartingPoint, begin
from tpsl.workers import ALONE, Placement, Workers

Records = TypeVar("Records", Dataset, FeatureSide, LabelSide)


@dataclass(frozen=True)
class RunSetup:
    """One run in one process."""

    job: Job
    run: RunFolder
    own: Mapping[str, OwnParts] = field(default_factory=dict)
    """What each party of this process brings itself, by its name."""
    device: torch.device | None = None
    """Where the networks are; the CPU if None."""
    record_steps: int = 0
    """The number of steps, from the first, that are recorded in the transcript."""
    watching: Watching = UNWATCHED
    search: SearchStep | None = None
    """Which configuration of a search this is; such a run keeps what predicts after each epoch."""
    start: StartingPoint | None = None
    """What training begins with; None: weights from the job's seed."""
    workers: Workers = ALONE
    """The processes that are this party, if there are several."""

    @property
    def place(self) -> Placement:
        """Where the networks are."""
        return Placement(self.device, self.workers)

    @contextmanager
    def opened(
        self,
        parties: Collection[str],
        is_done: Callable[[], bool],
        read: Callable[[RunSetup], Records],
        *,
        moved: bool = False,
    ) -> Iterator[tuple[RunSetup, Records] | None]:
        """Hold the run's folder, with a folder for each of these parties in it, as `RunFolder.started` does.

        Give the run, with the method that `auto` stands for and with what it starts from, and its records; None if
        nothing is left to do. Of several workers the first holds the folder for all. What several cannot do is an
        error.
        """
        silent = replace(self, watching=Watching(progress=self.watching.progress))
        job = resolve_method(self.job, lambda: _training_records(read(silent)), self.watching.reason)
        reasons = {
            "a transcript is recorded": self.record_steps > 0,
            "it is one of a search": self.search is not None,
        }
        for reason, applies in reasons.items():
            if applies and self.workers.are_several:
                raise JobError(f"this run is for one worker, not for {self.workers.count}: {reason}")
        started = self.run.started(job, parties, moved=moved, own=self.own)
        with started if self.workers.is_first else nullcontext():
            self.workers.barrier()
            if is_done():
                self.say_finished()
                yield None
                return
            start = begin(job, self.run, parties, self.start) if self.workers.is_first else None
            self.workers.barrier()
            setup = replace(self, job=job, start=start or begin(job, self.run, parties, None))
            yield setup, read(setup)

    def encoders(self) -> dict[str, EncoderState]:
        """Return what encodes the parties' records, by party, where an earlier run has learned it."""
        return {} if self.start is None else self.start.encoders()

    def own_parts(self, party: str) -> OwnParts:
        """Return what a party brings itself."""
        return self.own.get(party, OwnParts())

    def load_features(self, party: str, local: Local) -> FeatureSide:
        """Return the records of a feature party."""
        data, encoder = own_data(self.job, party, local.data, local.alignment).data, self.encoders().get(party)
        source = self.own_parts(party).source(party)
        side = load_feature_party(data, party, self.watching.progress, source=source, encoder=encoder)
        self.say_what_is_loaded(data, side)
        return side

    def load_labels(self, local: Local) -> LabelSide:
        """Return the records of the label party, with their true labels."""
        data = own_data(self.job, LABEL_PARTY, local.data, local.alignment).data
        source, encoder = self.own_parts(LABEL_PARTY).source(LABEL_PARTY), self.encoders().get(LABEL_PARTY)
        side = load_label_party(data, self.watching.progress, source=source, encoder=encoder)
        self.say_what_is_loaded(data, side)
        return side

    def say_what_is_loaded(self, data: DataConfig, records: Dataset | FeatureSide | LabelSide) -> None:
        """Say what cannot be checked of these records, and which of their columns are like ids."""
        trusted = data.unverified_assumption
        # What an earlier run has learned says nothing of the columns of these records.
        learned = id_warnings(records) if self.start is None else ()
        for sentence in [*([trusted] if trusted else []), *learned]:
            self.watching.notice(sentence)

    def watched_by(self, observer: Observer) -> RunSetup:
        """Return the same run for a role with an observer of its own."""
        return replace(self, watching=replace(self.watching, observer=observer))

    def say_finished(self) -> None:
        """Say that there is nothing to do; not of each run of a search."""
        if self.search is None:
            self.watching.notice(f"{self.run.path} is a finished run; nothing to do")


def _training_records(records: Dataset | FeatureSide | LabelSide) -> int:
    return len(records.records.train if isinstance(records, LabelSide) else records.train)
