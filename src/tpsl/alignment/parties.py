"""What `tpsl align` does: from a job and the file of a party to the party's alignment, and what who has learned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tpsl.alignment.alignment_errors import AlignmentError
from tpsl.alignment.key_table import KeyTable
from tpsl.alignment.keys import PartyKeys, read_keys
from tpsl.alignment.roles import AlignmentResult, align_as_feature, align_as_label, align_together
from tpsl.alignment.terms import AlignmentTerms
from tpsl.data.config import AlignmentConfig, TableData, TableFile
from tpsl.data.order import Rows
from tpsl.data.party_file import PartyFile
from tpsl.progress import Notice
from tpsl.tables.reading import dialect_of
from tpsl.training.job import Job
from tpsl.training.local import Local
from tpsl.training.observer import UNWATCHED, Watching
from tpsl.transport.peers import LABEL_PARTY


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
