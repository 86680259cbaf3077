"""Warm start: training begins with what an earlier run has ended with.

That is the weights that predict in the earlier run (averages, where it averages), its encoders and its wide part.
Optimisers, schedules and averages begin anew: their memory is of records that may not come again. Each party keeps a
copy in its folder, `RUN/<party>/start`, so that a run that is resumed, attacked or audited begins with the same numbers
when the earlier run is gone.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from tpsl.data.config import OwnData, TableData
from tpsl.data.encoder import EncoderState
from tpsl.files import make_private_folder, sync_folder, write_durably
from tpsl.net.messages import LABEL_PARTY
from tpsl.run.checkpoint import Halves, load_weights
from tpsl.run.job import Job
from tpsl.run.result import Origin, ReleasedBefore, TrainResult
from tpsl.run.run_folder import ENCODER, ORIGIN, START, RunError, RunFolder, write_note


@dataclass(frozen=True)
class StartingPoint:
    """What an earlier run has ended with; or, from `of_run`, what it has begun with itself."""

    run: Path
    _folder: str = ""

    @classmethod
    def of_run(cls, run: Path) -> StartingPoint:
        """Return what a run has begun with, if that was a warm start."""
        return cls(run, START)

    def place(self, party: str) -> Path:
        """Return the folder with a party's part of it."""
        return self.run / party / self._folder

    def encoders(self) -> dict[str, EncoderState]:
        """Return the encoders of those parties that have one in this folder; none if there was no warm start."""
        places = {entry.name: self.place(entry.name) for entry in self.run.iterdir()}
        if self._folder:  # a copy is whole when its origin is noted
            places = {party: place for party, place in places.items() if (place / ORIGIN).exists()}
        return {
            party: EncoderState.load(place / ENCODER) for party, place in places.items() if (place / ENCODER).is_dir()
        }

    def load_into(self, party: str, halves: Halves) -> None:
        """Put the weights into a party's halves."""
        for part, (half, _) in halves.items():
            load_weights(half, self.place(party) / f"{part}.safetensors", RunError)

    def origin(self, job: Job, party: str) -> Origin:
        """Return what a party notes of it; what a run of this job cannot start from is an error."""
        earlier = RunFolder(self.run)
        if self._folder:
            origin = earlier.origin(party)
            if origin is None:
                raise RunError(f"{self.run}: has not started from another run")
            return replace(origin, released=None)  # the run releases its own labels
        self._check(job, earlier.job())
        run, noted = str(self.run.absolute()), earlier.noted_ledger()
        result = earlier.result() if party == LABEL_PARTY else earlier.party_result(party)
        if result is None:
            raise RunError(f"{self.run}: the part of {party!r} in it is not finished, so training cannot start from it")
        if not isinstance(result, TrainResult):
            return Origin(run, {party: earlier.version(party)}, result.train_records)
        if noted is None:
            raise RunError(f"{self.run}: has not noted which vault it has released from")
        released = ReleasedBefore(noted.vault, noted.head, result.total_epsilon)
        return Origin(run, earlier.versions(), result.train_records, released)

    def _check(self, job: Job, earlier: Job) -> None:
        """Raise if the network of the job cannot begin with the weights of the earlier one."""
        difference = earlier.other_network(job)
        is_later = isinstance(job.data, TableData | OwnData) and job.data.since is not None
        reasons = {
            f"training cannot start from a run of another network ({difference})": difference is not None,
            "training cannot start from a run, or go on, with a statistic: its head is whole": (
                earlier.statistic is not None or job.statistic is not None
            ),
            "with privacy.gradients 'none' no half learns, and none can go on learning": (
                not earlier.trains or not job.trains
            ),
            "has a wide part, which scores only records that it was not fitted on: set data.since": (
                job.model.wide and not is_later
            ),
            "was not pre-trained, and training that starts from it cannot be: leave pretrain out": (
                job.training.pretrain is not None and earlier.training.pretrain is None
            ),
        }
        for reason, applies in reasons.items():
            if applies:
                raise RunError(f"{self.run}: {reason}")

    def keep_copy(self, run: RunFolder, party: str, origin: Origin) -> None:
        """Keep a copy in a party's folder of a run; the origin is noted last: a copy without it counts for nothing."""
        copy = run.party(party) / START
        if copy.exists():  # a part of it
            shutil.rmtree(copy)
        make_private_folder(copy)
        for file in sorted(self.place(party).glob("*.safetensors")):
            write_durably(copy / file.name, file.read_bytes())
        if (encoder := self.encoders().get(party)) is not None:
            encoder.save(copy / ENCODER)
        sync_folder(copy)
        write_note(copy / ORIGIN, origin)


def begin(job: Job, run: RunFolder, parties: Collection[str], start: StartingPoint | None) -> StartingPoint | None:
    """Return what these parties of a run begin with, copied into its folder; None: weights from the job's seed.

    A run that has begun goes on with its copy, whether or not `start` is given again; another start is refused.
    """
    noted = {party: run.origin(party) for party in parties}
    missing = [party for party, origin in noted.items() if origin is None]
    if start is None:
        if 0 < len(missing) < len(noted):
            raise RunError(
                f"{run.path}: its start from another run was interrupted; name that run again in local.start_from"
            )
        return None if missing else StartingPoint.of_run(run.path)
    for party, before in noted.items():
        if before is None and run.has_begun(party):
            raise RunError(f"{run.path}: has begun with weights of its own, not from {start.run}; choose another --out")
        if before is None or before.run == str(start.run.absolute()):
            continue
        if before.versions != start.origin(job, party).versions:  # nor is it one with the same halves
            raise RunError(f"{run.path}: has begun from {before.run}, not from {start.run}; choose another --out")
    origins = {party: start.origin(job, party) for party in missing}
    expected = origins[LABEL_PARTY].versions if LABEL_PARTY in origins else {}
    for party, origin in origins.items():  # over a network the handshake compares them
        if party in expected and origin.versions[party] != expected[party]:
            raise RunError(f"{start.run}: the half of {party!r} is not the one that the label party was trained with")
    for party, origin in origins.items():
        start.keep_copy(run, party, origin)
    return StartingPoint.of_run(run.path)
