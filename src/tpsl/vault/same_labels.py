"""Which labels of a vault are the same one: compared inside the vault, so that no true label leaves it.

Labels are compared on the records that they have in common, by a contingency table: how many records have each pair of
values. Two labels are the same if one of them tells the other, whatever its classes are called and however many were
declared: if the best guess of one from the other is wrong less than half as often as the best guess from nothing
(Goodman and Kruskal's λ above one half). A few corrected labels do not hide that. Labels that were the same once stay
so, and what they spend adds up (`tpsl.vault.accounting`).

Records that alignments have made have ids that no other label knows. The vault keeps the ids and labels of the whole
file that they come from, whoever of it is in an alignment, and compares those. They are in no digest and in no entry of
the ledger: these are shown to others, and whom the label party knows is not for them.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tpsl.vault.blocks import CHUNK, Positions, labels_at, read_blocks
from tpsl.vault.canonical import Given, ids_as_text
from tpsl.vault.errors import VaultError
from tpsl.vault.store import Store
from tpsl.vault.texts import Texts

LABELS_SCHEMA = """CREATE TABLE labels (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, classes INTEGER NOT NULL, counts_people INTEGER NOT NULL
)"""
SCHEMA = "CREATE TABLE same_labels (label INTEGER NOT NULL, other INTEGER NOT NULL, PRIMARY KEY (label, other))"
FILE_SCHEMA = "CREATE TABLE file_records (label INTEGER NOT NULL, ids BLOB NOT NULL, labels BLOB NOT NULL)"

_Labels = npt.NDArray[np.int64]


class Label(NamedTuple):
    """What a vault says of one of its labels."""

    number: int
    name: str
    classes: int
    counts_people: bool


@dataclass(frozen=True)
class Overlap:
    """How many of some records a label of a vault knows, and how many with another value than was given."""

    known: int
    differing: int
    first_differing: str | None
    """The id of the first record with another label."""
    same_label: bool
    """Whether the values given are the label's, with other names maybe, or with corrections."""

    @property
    def same(self) -> bool:
        """The label has records in common with the data, and the same values of all of them."""
        return self.known > 0 and not self.differing

    def difference(self, vault: Path, what: str = "training records") -> str:
        """Say which labels differ, and what to do about it."""
        return (
            f"{self.differing:,} of the {self.known:,} {what} that the vault {vault} knows have another label"
            f" there (the first is {self.first_differing!r}): if labels were corrected, store them with"
            f" `tpsl vault add {vault} FILE`, and the release stays"
        )


def labels_of(store: Store) -> dict[str, Label]:
    """The labels of a vault by name, oldest first."""
    rows = store.execute("SELECT number, name, classes, counts_people FROM labels ORDER BY number")
    return {row[1]: Label(row[0], row[1], row[2], bool(row[3])) for row in rows}


def label_called(store: Store, name: str | None) -> Label:
    """The label of this name; None: the only one. A `VaultError` names those there are."""
    found = labels_of(store)
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    if name in found:
        return found[name]
    names = ", ".join(found) or "none"
    what = "has several labels, and one must be named" if name is None else f"has no label {name!r}"
    raise VaultError(f"the vault {store.folder} {what}; its labels are: {names}")


def label_numbered(store: Store) -> Label:
    """The label that a store reaches."""
    return next(label for label in labels_of(store).values() if label.number == store.label)


def tells(values: _Labels, others: _Labels) -> bool:
    """Whether one of two columns tells the other: wrong less than half as often as a guess from nothing.

    Negative values are unknown and not counted. Two columns that are constant where both are known tell each other.
    """
    known = (values >= 0) & (others >= 0)
    pairs, records = np.unique(values[known] << 32 | others[known], return_counts=True)
    one, other = pairs >> 32, pairs & 0xFFFFFFFF
    found = [_errors(one, other, records), _errors(other, one, records)]
    return len(pairs) == 1 or any(2 * errors < chance for errors, chance in found)


def _errors(given: _Labels, guessed: _Labels, records: _Labels) -> tuple[int, int]:
    """How often the best guess of the second value is wrong, given the first, and given nothing.

    The rows are the cells of a contingency table.
    """
    value, other = (np.unique(column, return_inverse=True)[1] for column in (given, guessed))
    best = np.zeros(len(records), np.int64)
    np.maximum.at(best, value, records)
    of_guess = np.zeros(len(records), np.int64)
    np.add.at(of_guess, other, records)
    return int(records.sum() - best.sum()), int(records.sum() - of_guess.max(initial=0))


def settle(store: Store) -> None:
    """Enter which labels are the same as this one by now, inside the running transaction; they stay so.

    In the memory of the ids of two labels.
    """
    own, *others = sorted(labels_of(store).values(), key=lambda label: label.number != store.label)
    if others:
        ids, values = _all_values(store, own)
    for other in others:
        their_ids, their_values = _all_values(replace(store, label=other.number), other)
        at = ids.positions_in(their_ids)
        if tells(values[at >= 0], their_values[at[at >= 0]]):
            pair = sorted((own.number, other.number))
            store.execute("INSERT OR IGNORE INTO same_labels VALUES (?, ?)", pair)


def same_as(store: Store) -> list[Label]:
    """The other labels of the vault that are the same as this one, directly or by way of others."""
    pairs = store.execute("SELECT label, other FROM same_labels").fetchall()
    found = {store.label}
    while more := {label for pair in pairs if found & set(pair) for label in pair} - found:
        found |= more
    return [label for label in labels_of(store).values() if label.number in found and label.number != store.label]


def _all_values(store: Store, label: Label) -> tuple[Texts, _Labels]:
    """All ids and values of a label; those of the file's records where it counts people."""
    if label.counts_people:
        return _file_records(store)
    found = list(read_blocks(store))
    values = [np.zeros(0, np.int64), *(block.labels for block in found)]
    return Texts.joined(block.ids for block in found), np.concatenate(values)


def keep_file_records(store: Store, ids: Given, labels: _Labels) -> None:
    """Keep those of a file's records that are not there yet, inside the running transaction."""
    given = ids_as_text(ids)
    new = np.flatnonzero(given.positions_in(_file_records(store)[0]) < 0)
    for start in range(0, len(new), CHUNK):
        rows = new[start : start + CHUNK]
        content = given.take(rows).to_bytes(), labels[rows].astype("<u2").tobytes()
        store.execute("INSERT INTO file_records VALUES (?, ?, ?)", (store.label, *content))
    settle(store)


def _file_records(store: Store) -> tuple[Texts, _Labels]:
    """The ids and the labels of the file's records that are kept."""
    rows = store.execute("SELECT ids, labels FROM file_records WHERE label = ?", (store.label,)).fetchall()
    try:
        ids = Texts.joined([Texts.from_bytes(stored) for stored, _ in rows])
        return ids, np.frombuffer(b"".join(labels for _, labels in rows), "<u2").astype(np.int64)
    except (TypeError, ValueError):
        raise VaultError("the records of the label party's file are damaged") from None


def compare(store: Store, ids: Given, positions: Positions, labels: _Labels) -> Overlap:
    """Compare values of ids with those of the records at their positions in a label; a negative one differs from none.

    A negative position is that of an id that the label does not know.
    """
    rows = np.flatnonzero(positions >= 0)
    told, stored = labels[rows], labels_at(store, positions[rows])
    others = rows[(told >= 0) & (stored != told)]
    example = ids_as_text(ids[int(others[0]) :][:1])[0] if len(others) else None
    return Overlap(len(rows), len(others), example, tells(told, stored))
