"""Warm start: training begins with what an earlier run has ended with.

That is the weights that predict in the earlier run (averages, where it averages), its encoders and its wide part.
Optimisers, schedules and averages begin anew: their memory is of records that may not come again. Each party keeps a
copy in its folder, `RUN/<party>/start`, so that a run that is resumed, attacked or audited begins with the same numbers
when the earlier run is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from tpsl.data.config import OwnData, TableData
from tpsl.data.encoder import EncoderState
from tpsl.files import write_durably
from tpsl.net.peers import LABEL_PARTY
from tpsl.training.checkpoint import Halves, load_weights, written_folder
from tpsl.training.job import Job
from tpsl.training.result import Origin, ReleasedBefore
from tpsl.training.run_folder import ENCODER, ORIGIN, START, RunError, RunFolder, write_note


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
        parties = [entry.name for entry in self.run.iterdir() if (self.place(entry.name) / ENCODER).is_dir()]
        return {party: EncoderState.load(self.place(party) / ENCODER) for party in parties}

    def load_into(self, party: str, halves: Halves) -> None:
        """Put the weights into a party's halves."""
        for part, (half, _) in halves.items():
            load_weights(half, self.place(party) / f"{part}.safetensors", RunError)

    def origin(self, job: Job, party: str) -> Origin:
        """Return what a party notes of it; what a run of this job cannot start from is an error."""
        earlier = RunFolder(self.run)
        if self._folder:
            noted = earlier.origin(party)
            if noted is None:
                raise RunError(f"{self.run}: has not started from another run")
            return noted.without_release()
        self._check(job, earlier.job())
        at_label = party == LABEL_PARTY
        result = earlier.result() if at_label else earlier.party_result(party)
        if result is None:
            raise RunError(f"{self.run}: the part of {party!r} in it is not finished, so training cannot start from it")
        versions = earlier.versions() if at_label else {party: earlier.version(party)}
        released = _released(earlier) if at_label else None
        return Origin(str(self.run.absolute()), versions, result.train_records, released)

    def _check(self, job: Job, earlier: Job) -> None:
        """Raise if the network of the job cannot begin with the weights of the earlier one."""
        difference = earlier.other_network(job)
        if difference:
            raise RunError(f"{self.run}: training cannot start from a run of another network ({difference})")
        if earlier.statistic is not None or job.statistic is not None:
            raise RunError(
                f"{self.run}: training cannot start from a run, or go on, with a statistic: its head is whole"
            )
        if not (earlier.trains and job.trains):
            raise RunError(f"{self.run}: with privacy.gradients 'none' no half learns, and none can go on learning")
        if job.model.wide and not _has_first_time(job):
            raise RunError(
                f"{self.run}: has a wide part, which scores only records that it was not fitted on: set data.since"
            )
        if job.training.pretrain and not earlier.training.pretrain:
            raise RunError(
                f"{self.run}: was not pre-trained, and training that starts from it cannot be: leave pretrain out"
            )

    def matches(self, job: Job, party: str, noted: Origin) -> bool:
        """Whether this is what a party has noted: the same run, or one with the same halves."""
        return noted.run == str(self.run.absolute()) or noted.versions == self.origin(job, party).versions

    def keep_copy(self, run: RunFolder, party: str, origin: Origin) -> None:
        """Keep a copy in a party's folder of a run: whole or absent."""
        with written_folder(run.party(party) / START) as copy:
            for file in sorted(self.place(party).glob("*.safetensors")):
                write_durably(copy / file.name, file.read_bytes())
            if (encoder := self.encoders().get(party)) is not None:
                encoder.save(copy / ENCODER)
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
    for party, origin in noted.items():
        if origin is None and run.has_begun(party):
            raise RunError(f"{run.path}: has begun with weights of its own, not from {start.run}; choose another --out")
        if origin is not None and not start.matches(job, party, origin):
            raise RunError(f"{run.path}: has begun from {origin.run}, not from {start.run}; choose another --out")
    origins = {party: start.origin(job, party) for party in missing}
    _require_one_network(start, origins)
    for party, origin in origins.items():
        start.keep_copy(run, party, origin)
    return StartingPoint.of_run(run.path)


def _require_one_network(start: StartingPoint, origins: Mapping[str, Origin]) -> None:
    """Raise unless the parties' halves in a folder belong together; over a network the handshake compares them."""
    expected = origins[LABEL_PARTY].versions if LABEL_PARTY in origins else {}
    for party, origin in origins.items():
        if party in expected and origin.versions[party] != expected[party]:
            raise RunError(f"{start.run}: the half of {party!r} is not the one that the label party was trained with")


def _released(earlier: RunFolder) -> ReleasedBefore:
    result, noted = earlier.result(), earlier.noted_ledger()
    if result is None or noted is None:
        raise RunError(f"{earlier.path}: has not noted which vault it has released from")
    return ReleasedBefore(noted.vault, noted.head, result.total_epsilon)


def _has_first_time(job: Job) -> bool:
    return isinstance(job.data, TableData | OwnData) and job.data.since is not None
