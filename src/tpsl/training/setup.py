"""What a process knows of a run before it has any records: the same for one process, the label party and a feature
party."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tpsl.data.check import id_warnings
from tpsl.data.config import DataConfig
from tpsl.data.dataset import Dataset, taken_on_trust
from tpsl.data.encoder import EncoderState
from tpsl.data.sides import FeatureSide, LabelSide
from tpsl.models.computing import Placement
from tpsl.training.job import Job, JobError
from tpsl.training.observer import UNWATCHED, Observer, Watching
from tpsl.training.own_parts import OwnParts
from tpsl.training.run_folder import RunFolder
from tpsl.training.search_step import SearchStep
from tpsl.training.warm_start import StartingPoint, begin
from tpsl.workers import ALONE, Workers


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
    def held(self, parties: Collection[str], *, moved: bool = False) -> Iterator[None]:
        """Hold the run's folder, with a folder for each of these parties in it, as `RunFolder.started` does.

        Of several workers the first holds it for all. What several cannot do is an error.
        """
        if self.workers.are_several:
            self._require_possible()
        started = self.run.started(self.job, parties, moved=moved, own=self.own)
        with started if self.workers.is_first else nullcontext():
            self.workers.barrier()
            yield

    def _require_possible(self) -> None:
        """Raise a JobError if the run is one for a party of one worker."""
        reasons = {
            "a transcript is recorded": self.record_steps > 0,
            "it is one of a search": self.search is not None,
            "labels arrive while it trains": self.job.has_late_labels,
        }
        for reason, applies in reasons.items():
            if applies:
                raise JobError(f"this run is for one worker, not for {self.workers.count}: {reason}")

    def of_first(self) -> RunSetup:
        """Return the same run as the first worker has it where it does all by itself."""
        return replace(self, workers=ALONE)

    def begun(self, parties: Collection[str]) -> RunSetup:
        """Return the same run with what these parties begin with in its folder, which this process holds."""
        start = begin(self.job, self.run, parties, self.start) if self.workers.is_first else None
        self.workers.barrier()
        return replace(self, start=start or begin(self.job, self.run, parties, None))

    def encoders(self) -> dict[str, EncoderState]:
        """Return what encodes the parties' records, by party, where an earlier run has learned it."""
        return {} if self.start is None else self.start.encoders()

    def own_parts(self, party: str) -> OwnParts:
        """Return what a party brings itself."""
        return self.own.get(party, OwnParts())

    def source(self, party: str) -> Callable[[], Any] | None:
        """Return what makes a party's records, if it brings them itself."""
        return self.own_parts(party).source(party)

    def say_what_is_loaded(self, data: DataConfig, records: Dataset | FeatureSide | LabelSide) -> None:
        """Say what cannot be checked of these records, and which of their columns are like ids."""
        trusted = taken_on_trust(data)
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
