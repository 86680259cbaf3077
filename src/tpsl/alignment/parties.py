"""What `tpsl align` does: from a job and the file of a party to its alignment, over a network or all in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tpsl.alignment import AlignmentError
from tpsl.alignment.keys import KeyTable, PartyKeys, read_keys
from tpsl.alignment.rounds import (
    METHODS,
    AligningFeatureParty,
    AligningLabelParty,
    AligningParty,
    Outcome,
    attend_as_features,
    attend_as_label,
)
from tpsl.alignment.terms import AlignmentTerms
from tpsl.alignment.working_folder import WorkingFolder
from tpsl.data.aligned import Alignment, is_aligned
from tpsl.data.config import AlignmentConfig, TableData, TableFile
from tpsl.data.order import Rows
from tpsl.data.party_file import PartyFile
from tpsl.files import is_disk_full
from tpsl.net.asking import AtHome
from tpsl.net.client import LabelClient
from tpsl.net.connection import Patience, Terms
from tpsl.net.desk import Desk
from tpsl.net.failures import JobStopped, NetError
from tpsl.net.peers import LABEL_PARTY, described
from tpsl.net.server import LabelServer
from tpsl.progress import Notice
from tpsl.tables.reading import dialect_of
from tpsl.training.job import Job
from tpsl.training.local import Local, certificates_of, connect_address, listen_address
from tpsl.training.observer import UNWATCHED, Watching


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
    keys: PartyKeys
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
    data, config = _aligned_data(job)
    terms, mine = AlignmentTerms.of(data), _read(data, party, watching)
    role = align_as_label if party == LABEL_PARTY else partial(align_as_feature, party=party)
    result = role(
        terms=terms,
        table=mine.table,
        local=local,
        folder=mine.folder,
        watching=watching,
        insecure_loopback=insecure_loopback,
    )
    return Aligned(mine.folder, result, mine.keys, tuple(_learned(config, party)))


def align_all(job: Job, watching: Watching = UNWATCHED) -> dict[str, Aligned]:
    """Be all parties of a job's alignment, in one process."""
    data, config = _aligned_data(job)
    terms = AlignmentTerms.of(data)
    read = {party: _read(data, party, watching) for party in terms.circle}
    tables = {party: each.table for party, each in read.items()}
    results = align_together(terms, tables, {party: each.folder for party, each in read.items()}, watching)
    return {
        party: Aligned(each.folder, results[party], each.keys, tuple(_learned(config, party)))
        for party, each in read.items()
    }


def warnings(config: AlignmentConfig) -> Iterator[str]:
    """Yield a sentence for each thing that an alignment reveals and that may be more than is wanted."""
    if config.mode == "both":
        yield (
            "membership can be the label: in mode both the feature parties learn which of their records the label "
            "party has; if its list is its buyers, they learn who bought (label-only keeps that from them)"
        )
    if config.engine == "plain":
        yield (
            "plain is no private set intersection: the label party gets salted hashes of all keys, and can test any "
            "key that it guesses, also one that it does not have"
        )


def align_as_label(
    terms: AlignmentTerms,
    table: KeyTable,
    local: Local,
    folder: Path,
    *,
    watching: Watching = UNWATCHED,
    insecure_loopback: bool = False,
) -> AlignmentResult:
    """Be the label party of an alignment; one that was interrupted goes on where it stopped.

    In mode `label-only` the feature parties learn how many records this party has and nothing else of them: what it
    sends does not depend on which they are, and which are common is found when the port is closed.
    """
    certificates = None if insecure_loopback else certificates_of(local, LABEL_PARTY)
    address, working = listen_address(local), WorkingFolder(folder, terms)
    side = AligningLabelParty(LABEL_PARTY, terms, table, working, watching)
    with side.working.held():
        if not _is_done(side):
            desk = Desk(terms.parties, terms.agreement(), _wire(side, local))
            desk.waiting_for = watching.observer.waiting_for
            with LabelServer(address, desk, METHODS, certificates=certificates) as server:
                watching.observer.event("listening", address=f"{address.rpartition(':')[0]}:{server.port}")
                with _attending(side, server.stop):
                    attend_as_label(side, desk)
            # The port is closed and every connection has ended: nobody can measure how long this takes.
            _save(side, side.outcome())
        return _result(side)


def align_as_feature(
    terms: AlignmentTerms,
    party: str,
    table: KeyTable,
    local: Local,
    folder: Path,
    *,
    watching: Watching = UNWATCHED,
    insecure_loopback: bool = False,
) -> AlignmentResult:
    """Be a feature party of an alignment; one that was interrupted goes on where it stopped.

    All parties learn how many records this party has. The label party also learns which of its own records are among
    them, and where several feature parties are, each which of its own all of them have. In mode `size` all learn the
    number of common records, and nobody which they are.
    """
    certificates = None if insecure_loopback else certificates_of(local, party)
    address, working = connect_address(local), WorkingFolder(folder, terms)
    side = AligningFeatureParty(party, terms, table, working, watching)
    with side.working.held():
        if not _is_done(side):
            wire = _wire(side, local)
            with LabelClient(address, party, terms.agreement(), wire, certificates=certificates) as client:
                watching.observer.gathered({LABEL_PARTY: client.label})
                with _attending(side, client.stop):
                    attend_as_features([side], client, _save)
        return _result(side)


def align_together(
    terms: AlignmentTerms,
    tables: Mapping[str, KeyTable],
    folders: Mapping[str, Path],
    watching: Watching = UNWATCHED,
) -> dict[str, AlignmentResult]:
    """Be all parties of an alignment, in one process; each has its table and its folder, by its name."""
    workings = {name: WorkingFolder(folders[name], terms) for name in terms.circle}
    label = AligningLabelParty(LABEL_PARTY, terms, tables[LABEL_PARTY], workings[LABEL_PARTY], watching)
    features = [AligningFeatureParty(name, terms, tables[name], workings[name], watching) for name in terms.parties]
    with ExitStack() as holding:
        for working in workings.values():
            holding.enter_context(working.held())
        done = {side.name: _is_done(side) for side in (label, *features)}
        if not all(is_aligned(folder) for folder in folders.values()):
            if any(done.values()):
                first = next(name for name, is_done in done.items() if is_done)
                raise AlignmentError(f"{folders[first]}: was aligned before, but not all parties were; remove it")
            attend_as_features(features, AtHome(label.begin, "uint8"), _save)
            _save(label, label.outcome())
        return {side.name: _result(side) for side in (label, *features)}


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


def _save(side: AligningParty, outcome: Outcome) -> None:
    Alignment(
        side.name,
        side.terms.config.mode,
        outcome.digest,
        side.terms.keys,
        side.table.source,
        outcome.rows,
        outcome.matched,
        outcome.matched_keys,
    ).save(side.working.folder)


def _result(side: AligningParty) -> AlignmentResult:
    """Forget what was needed on the way, and return what the folder holds."""
    side.working.end()
    traffic = side.traffic
    return AlignmentResult(Alignment.load(side.working.folder), traffic.bytes_sent, traffic.bytes_received)


def _wire(side: AligningParty, local: Local) -> Terms:
    # A settled party is here only so that nobody waits for it: if nobody is there, nobody does.
    wait = min(local.wait, local.silence) if side.working.is_settled else local.wait
    return Terms(side.terms.limits(), "uint8", Patience(local.silence, wait), side.watching.connections)


@contextmanager
def _attending(side: AligningParty, stop: Callable[[NetError], None]) -> Iterator[None]:
    """Tell the others why this side stops, if it does; one that is settled does not need them any more."""
    try:
        yield
    except NetError as error:
        stop(error)
        if not side.working.is_settled:
            raise
        side.watching.notice(f"the alignment is done, but not every party has confirmed it: {error}")
    except Exception as error:
        if not is_disk_full(error):  # else the others wait for the return of this party
            stop(JobStopped(f"{described(side.name)} has an error that is not the others'"))
        raise


def _aligned_data(job: Job) -> tuple[TableData, AlignmentConfig]:
    data = job.data
    if not isinstance(data, TableData):
        raise AlignmentError(f"only tables are aligned, and the job's data are {data.source!r}")
    if data.alignment is None:
        raise AlignmentError(
            "the job has no data.alignment; add `alignment: {mode: both}` to its data, or mode label-only if the "
            "feature parties must not learn which records the label party has"
        )
    return data, data.alignment


class _Ready(NamedTuple):
    """What a party brings: its keys, the same as a table, and the folder for its alignment."""

    keys: PartyKeys
    table: KeyTable
    folder: Path


def _read(data: TableData, party: str, watching: Watching) -> _Ready:
    assert data.alignment is not None
    file = data.label if party == LABEL_PARTY else next(file for file in data.features if file.party == party)
    if file.alignment is None:
        raise AlignmentError(f"{party!r} needs a folder for its alignment: `alignment` in its local file")
    keys = read_keys(file, data.alignment.keys, watching.progress)
    _report(file, keys, watching.notice)
    in_time = data.alignment.order == "time" and file is data.features[0]
    return _Ready(keys, KeyTable.of(keys, _by_time(file) if in_time else None), file.alignment)


def _report(file: TableFile, keys: PartyKeys, notice: Notice) -> None:
    for each in keys.lists:
        if keys.missing[each.kind]:
            counted = f"{keys.missing[each.kind]:,} of {keys.source.rows:,} rows"
            notice(f"{file.path}: {counted} have no {each.kind} that can be used")
        if keys.repeated[each.kind]:
            counted = f"{keys.repeated[each.kind]:,} of {keys.source.rows:,} rows"
            notice(f"{file.path}: {counted} repeat the {each.kind} of an earlier row, and are not found by it")


def _by_time(file: TableFile) -> Rows:
    """Return the rows of a file in the order of its times."""
    times = PartyFile(file.path, {}, None, file.time, file.time_kind, dialect=dialect_of(file.path))
    found = times.read(label=False, features=False)
    assert found.times is not None
    return np.argsort(found.times, kind="stable")


def _learned(config: AlignmentConfig, party: str) -> Iterator[str]:
    """Yield a sentence for each party that says what it knows now, this one first."""
    at_label = party == LABEL_PARTY
    if config.mode == "size":
        yield "all parties: how many records are common, and nobody which"
    elif config.mode == "both":
        yield "all parties: which of their records are common"
    else:
        you, they = "you: which of the records you know", "the feature parties: nothing of your list but its length"
        if not at_label:
            you, they = (
                "you: nothing of the label party's list but its length",
                "the label party: which of the records it knows",
            )
        yield from (you, they)
    if config.engine == "plain":
        yield "the label party: salted hashes of all keys, with which it can test any key that it guesses"
