"""What `tpsl align` does: from a job and the file of a party to its alignment, over a network or all in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tpsl.alignment import AlignmentError
from tpsl.alignment.keys import KeyTable, read_keys
from tpsl.alignment.rounds import (
    METHODS,
    AligningFeatureParty,
    AligningLabelParty,
    AligningParty,
    attend_as_features,
    attend_as_label,
)
from tpsl.alignment.terms import AlignmentTerms
from tpsl.data.aligned import Alignment, is_aligned
from tpsl.data.config import AlignmentConfig, TableData, TableFile
from tpsl.data.order import Rows
from tpsl.data.party_file import PartyFile
from tpsl.files import is_disk_full
from tpsl.net.asking import AtHome
from tpsl.net.certificates import Certificates
from tpsl.net.client import LabelClient
from tpsl.net.connection import Patience, Terms
from tpsl.net.desk import Desk
from tpsl.net.failures import JobStopped, NetError
from tpsl.net.messages import LABEL_PARTY, described
from tpsl.net.server import LabelServer
from tpsl.run.job import Job
from tpsl.run.local import Local, certificates_of, connect_address, listen_address
from tpsl.run.observer import UNWATCHED, Watching
from tpsl.tables.reading import dialect_of


@dataclass(frozen=True, eq=False)
class AlignmentResult:
    """What an alignment has left in its folder, and the bytes that this process sent and received for it."""

    alignment: Alignment
    bytes_sent: int = 0
    bytes_received: int = 0


@dataclass(frozen=True)
class Aligned:
    """A party's alignment, the folder it is in, the keys it was made from, and what this party and others learned."""

    folder: Path
    result: AlignmentResult
    keys: KeyTable
    learned: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able data."""
        alignment = self.result.alignment
        return {
            "party": alignment.party,
            "folder": str(self.folder),
            "mode": alignment.mode,
            "records": len(alignment),
            "matched": alignment.matched,
            "digest": alignment.digest,
            "rows": alignment.source.rows,
            "missing_keys": dict(self.keys.missing),
            "repeated_keys": dict(self.keys.repeated),
            "bytes_sent": self.result.bytes_sent,
            "bytes_received": self.result.bytes_received,
            "learned": list(self.learned),
        }


def align(
    job: Job,
    party: str,
    local: Local,
    *,
    watching: Watching = UNWATCHED,
    insecure_loopback: bool = False,
) -> Aligned:
    """Be one party of a job's alignment, over a network; one that was interrupted goes on where it stopped."""
    data, terms = _aligned_data(job)
    table, folder = _read(data, terms.config, party, watching)
    result = align_as(party, terms, table, local, folder, watching=watching, insecure_loopback=insecure_loopback)
    return Aligned(folder, result, table, tuple(_learned(terms.config, party)))


def align_all(job: Job, watching: Watching = UNWATCHED) -> dict[str, Aligned]:
    """Be all parties of a job's alignment, in one process."""
    data, terms = _aligned_data(job)
    read = {party: _read(data, terms.config, party, watching) for party in terms.circle}
    tables = {party: table for party, (table, _) in read.items()}
    results = align_together(terms, tables, {party: folder for party, (_, folder) in read.items()}, watching)
    return {
        party: Aligned(folder, results[party], table, tuple(_learned(terms.config, party)))
        for party, (table, folder) in read.items()
    }


def warnings(config: AlignmentConfig) -> Iterator[str]:
    """Yield a sentence for each thing that an alignment reveals and that may be more than is wanted."""
    if config.mode == "both":
        yield (
            "membership can be the label: in mode both the feature parties learn which of their records the label "
            "party has; if its list is its buyers, they learn who bought (label-only keeps that from them)"
        )


def align_as(
    party: str,
    terms: AlignmentTerms,
    table: KeyTable,
    local: Local,
    folder: Path,
    *,
    watching: Watching = UNWATCHED,
    insecure_loopback: bool = False,
) -> AlignmentResult:
    """Be one party of an alignment, over a network; one that was interrupted goes on where it stopped.

    All parties learn how many records each party has. In mode `label-only` the feature parties learn nothing else of
    the label party's: what it sends does not depend on which they are, and which are common is found when the port is
    closed. The label party learns which of its own records are common, and where several feature parties are, each of
    them which of its own all feature parties have. In mode `size` all learn the number of common records, and nobody
    which they are.
    """
    certificates = None if insecure_loopback else certificates_of(local, party)
    address = listen_address(local) if party == LABEL_PARTY else connect_address(local)
    kind = AligningLabelParty if party == LABEL_PARTY else AligningFeatureParty
    side = kind(party, terms, table, folder, watching)
    with side.working.held():
        if not _is_done(side):
            # A settled party is here only so that nobody waits for it: if nobody is there, nobody does.
            wait = min(local.wait, local.silence) if side.working.state.is_settled else local.wait
            wire = Terms(terms.limits(), "uint8", Patience(local.silence, wait), watching.connections)
            if isinstance(side, AligningLabelParty):
                _answer(side, address, wire, certificates)
                # The port is closed and every connection has ended: nobody can measure how long this takes.
                side.outcome().save(folder)
            else:
                _ask(side, address, wire, certificates)
        return _result(side)


def _answer(side: AligningLabelParty, address: str, wire: Terms, certificates: Certificates | None) -> None:
    observer = side.watching.observer
    desk = Desk(side.terms.parties, side.terms.agreement(), wire)
    desk.waiting_for = observer.waiting_for
    with LabelServer(address, desk, METHODS, certificates=certificates) as server:
        observer.event("listening", address=f"{address.rpartition(':')[0]}:{server.port}")
        with _attending(side, server.stop):
            attend_as_label(side, desk)


def _ask(side: AligningFeatureParty, address: str, wire: Terms, certificates: Certificates | None) -> None:
    with LabelClient(address, side.name, side.terms.agreement(), wire, certificates=certificates) as client:
        side.watching.observer.gathered({LABEL_PARTY: client.traffic})
        with _attending(side, client.stop):
            attend_as_features([side], client)


def align_together(
    terms: AlignmentTerms,
    tables: Mapping[str, KeyTable],
    folders: Mapping[str, Path],
    watching: Watching = UNWATCHED,
) -> dict[str, AlignmentResult]:
    """Be all parties of an alignment, in one process; each has its table and its folder, by its name."""
    label = AligningLabelParty(LABEL_PARTY, terms, tables[LABEL_PARTY], folders[LABEL_PARTY], watching)
    features = [AligningFeatureParty(name, terms, tables[name], folders[name], watching) for name in terms.parties]
    sides: list[AligningParty] = [label, *features]
    with ExitStack() as holding:
        for side in sides:
            holding.enter_context(side.working.held())
        done = [side.name for side in sides if _is_done(side)]
        if not all(is_aligned(folder) for folder in folders.values()):
            if done:
                raise AlignmentError(f"{folders[done[0]]}: was aligned before, but not all parties were; remove it")
            attend_as_features(features, AtHome(label.begin, "uint8"))
            label.outcome().save(folders[LABEL_PARTY])
        return {side.name: _result(side) for side in sides}


def _is_done(side: AligningParty) -> bool:
    """Begin the alignment, or take it up; return whether it was done before, in which case the folder is left as is."""
    folder, working = side.working.folder, side.working
    if len(side.table) == 0:
        raise AlignmentError(f"no record of {side.name} has a key to align by: {', '.join(side.terms.keys)}")
    if is_aligned(folder) and not working.is_begun:
        there = Alignment.load(folder)
        if (there.party, there.mode, there.keys) != (side.name, side.terms.config.mode, side.terms.keys) or (
            not there.source.has_same_keys(side.table.source)
        ):
            raise AlignmentError(f"{folder}: holds another alignment; remove it, or choose another folder")
        side.watching.notice(f"{folder}: was aligned before; remove it to align anew")
        return True
    working.begin(side.table)
    return False


def _result(side: AligningParty) -> AlignmentResult:
    """Forget what was needed on the way, and return what the folder holds."""
    side.working.end()
    return AlignmentResult(Alignment.load(side.working.folder), side.bytes_sent, side.bytes_received)


@contextmanager
def _attending(side: AligningParty, stop: Callable[[NetError], None]) -> Iterator[None]:
    """Tell the others why this side stops, if it does; one that is settled does not need them any more."""
    try:
        yield
    except NetError as error:
        stop(error)
        if not side.working.state.is_settled:
            raise
        side.watching.notice(f"the alignment is done, but not every party has confirmed it: {error}")
    except Exception as error:
        if not is_disk_full(error):  # else the others wait for the return of this party
            stop(JobStopped(f"{described(side.name)} has an error that is not the others'"))
        raise


def _aligned_data(job: Job) -> tuple[TableData, AlignmentTerms]:
    data = job.data
    if not isinstance(data, TableData):
        raise AlignmentError(f"only tables are aligned, and the job's data are {data.source!r}")
    if data.alignment is None:
        raise AlignmentError(
            "the job has no data.alignment; add `alignment: {mode: both}` to its data, or mode label-only if the "
            "feature parties must not learn which records the label party has"
        )
    return data, AlignmentTerms(data.alignment, data.feature_parties)


def _read(data: TableData, config: AlignmentConfig, party: str, watching: Watching) -> tuple[KeyTable, Path]:
    """Return a party's keys, and the folder for its alignment."""
    file = data.label if party == LABEL_PARTY else next(file for file in data.features if file.party == party)
    if file.alignment is None:
        raise AlignmentError(f"{party!r} needs a folder for its alignment: `alignment` in its local file")
    in_time = config.order == "time" and file is data.features[0]
    keys = read_keys(file, config.keys, _by_time(file) if in_time else None, watching.progress)
    for name in keys.missing:
        for count, what in (
            (keys.missing[name], f"have no {name} that can be used"),
            (keys.repeated[name], f"repeat the {name} of an earlier row, and are not found by it"),
        ):
            if count:
                watching.notice(f"{file.path}: {count:,} of {keys.source.rows:,} rows {what}")
    return keys, file.alignment


def _by_time(file: TableFile) -> Rows:
    """Return the rows of a file in the order of its times."""
    times = PartyFile(file.path, {}, None, file.time, file.time_kind, dialect=dialect_of(file.path))
    found = times.read(label=False)
    assert found.times is not None
    return np.argsort(found.times, kind="stable")


def _learned(config: AlignmentConfig, party: str) -> Iterator[str]:
    """Yield a sentence for each party that says what it knows now, this one first."""
    if config.mode == "size":
        yield "all parties: how many records are common, and nobody which"
    elif config.mode == "both":
        yield "all parties: which of their records are common"
    elif party == LABEL_PARTY:
        yield "you: which of the records you know"
        yield "the feature parties: nothing of your list but its length"
    else:
        yield "you: nothing of the label party's list but its length"
        yield "the label party: which of the records it knows"
