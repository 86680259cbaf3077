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

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from tpsl.vault.blocks import CHUNK, labels_at
from tpsl.vault.canonical import Given, ids_as_text
from tpsl.vault.errors import VaultError
from tpsl.vault.id_index import Found, find_positions
from tpsl.vault.store import Store
from tpsl.vault.texts import Texts

SCHEMA = """
CREATE TABLE labels (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, classes INTEGER NOT NULL, counts_people INTEGER NOT NULL
);
CREATE TRIGGER labels_stay BEFORE DELETE ON labels BEGIN SELECT RAISE(ABORT, 'labels are never deleted'); END;
CREATE TRIGGER labels_fixed BEFORE UPDATE ON labels BEGIN SELECT RAISE(ABORT, 'labels never change'); END;
CREATE TABLE agreement (
    label INTEGER NOT NULL, other INTEGER NOT NULL, value INTEGER NOT NULL, other_value INTEGER NOT NULL,
    records INTEGER NOT NULL, PRIMARY KEY (label, other, value, other_value)
);
CREATE TABLE same_labels (label INTEGER NOT NULL, other INTEGER NOT NULL, PRIMARY KEY (label, other));
CREATE TRIGGER same_stay BEFORE DELETE ON same_labels BEGIN SELECT RAISE(ABORT, 'labels stay the same'); END;
CREATE TABLE file_records (label INTEGER NOT NULL, ids BLOB NOT NULL, labels BLOB NOT NULL);
"""

_Labels = npt.NDArray[np.int64]
Pairs = Mapping[tuple[int, int], int]
"""How many records have each pair of values: a contingency table."""


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


def tells(pairs: Pairs) -> bool:
    """Whether one of two columns tells the other: wrong less than half as often as a guess from nothing.

    Two columns that are constant where both are known tell each other.
    """
    flipped = Counter({(other, value): count for (value, other), count in pairs.items()})
    found = [_errors(table) for table in (pairs, flipped)]
    constant = all(chance == 0 for _, chance in found) and any(pairs.values())
    return constant or any(2 * errors < chance for errors, chance in found)


def _errors(pairs: Pairs) -> tuple[int, int]:
    """How often the best guess of the second value is wrong, given the first, and given nothing."""
    best, of_second = Counter[int](), Counter[int]()
    for (value, other), count in pairs.items():
        best[value] = max(best[value], count)
        of_second[other] += count
    records = of_second.total()
    return records - best.total(), records - max(of_second.values(), default=0)


def count_pairs(values: _Labels, others: _Labels) -> Pairs:
    """The contingency table of two columns; negative values are unknown and not counted."""
    known = (values >= 0) & (others >= 0)
    found, counts = np.unique(values[known] << 32 | others[known], return_counts=True)
    return {(code >> 32, code & 0xFFFFFFFF): count for code, count in zip(found.tolist(), counts.tolist(), strict=True)}


def note(store: Store, ids: Texts, labels: _Labels, sign: int = 1) -> None:
    """Count records of a label with the values that other labels have of them, inside the running transaction.

    A correction takes the old values back (`sign=-1`) and notes the new ones.
    """
    for other in labels_of(store).values():
        if other.number != store.label and len(ids):
            theirs = values_of(replace(store, label=other.number), other.counts_people, ids)
            in_order = store.label < other.number
            pairs = count_pairs(labels, theirs) if in_order else count_pairs(theirs, labels)
            one, two = sorted((store.label, other.number))
            store.executemany(
                "INSERT INTO agreement VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET records = records + excluded.records",
                ((one, two, *pair, sign * count) for pair, count in pairs.items()),
            )


def settle(store: Store) -> None:
    """Enter which labels are the same as this one by now; they stay so."""
    rows = store.execute("SELECT * FROM agreement WHERE records > 0 AND ? IN (label, other)", (store.label,))
    tables: dict[tuple[int, int], dict[tuple[int, int], int]] = {}
    for label, other, value, other_value, records in rows:
        tables.setdefault((label, other), {})[value, other_value] = records
    same = [pair for pair, table in tables.items() if tells(table)]
    store.executemany("INSERT OR IGNORE INTO same_labels VALUES (?, ?)", same)


def same_as(store: Store) -> list[Label]:
    """The other labels of the vault that are the same as this one, directly or by way of others."""
    pairs = store.execute("SELECT label, other FROM same_labels").fetchall()
    found = {store.label}
    while more := {label for pair in pairs if found & set(pair) for label in pair} - found:
        found |= more
    return [label for label in labels_of(store).values() if label.number in found and label.number != store.label]


def values_of(store: Store, counts_people: bool, ids: Texts) -> _Labels:
    """The value that a label has of each id, -1 where it knows none; of the file's records where it counts people."""
    if counts_people:
        at, kept = _file_records(store, ids)
        return np.where(at >= 0, kept[at], -1) if len(kept) else at
    positions = find_positions(store, ids)
    values = np.full(len(ids), -1, np.int64)
    here = np.flatnonzero(positions >= 0)
    values[here] = labels_at(store, positions[here])
    return values


def keep_file_records(store: Store, ids: Given, labels: _Labels) -> None:
    """Keep those of a file's records that are not there yet, inside the running transaction."""
    given = ids_as_text(ids)
    new = np.flatnonzero(_file_records(store, given)[0] < 0)
    for start in range(0, len(new), CHUNK):
        rows = new[start : start + CHUNK]
        part, values = given.take(rows), labels[rows]
        content = part.to_bytes(), values.astype("<u2").tobytes()
        store.execute("INSERT INTO file_records VALUES (?, ?, ?)", (store.label, *content))
        note(store, part, values)
    settle(store)


def _file_records(store: Store, ids: Texts) -> tuple[_Labels, _Labels]:
    """Which of the kept records each id is, -1 for none of them, and the labels of those kept."""
    rows = store.execute("SELECT ids, labels FROM file_records WHERE label = ?", (store.label,)).fetchall()
    try:
        kept = Texts.joined([Texts.from_bytes(stored) for stored, _ in rows])
        kept_labels = np.frombuffer(b"".join(labels for _, labels in rows), "<u2").astype(np.int64)
    except (TypeError, ValueError):
        raise VaultError("the records of the label party's file are damaged") from None
    at = pc.index_in(ids.to_arrow(), value_set=kept.to_arrow()).fill_null(-1).to_numpy(zero_copy_only=False)
    return at.astype(np.int64), kept_labels


def compare(store: Store, ids: Given, found: Iterable[Found], labels: _Labels) -> Overlap:
    """Compare values with those of the records that were found in a label; a negative one differs from none."""
    known = differing = 0
    first, pairs = len(labels), Counter[tuple[int, int]]()
    for rows, positions in found:
        told = labels[rows]
        stored = labels_at(store, positions)
        others = rows[(told >= 0) & (stored != told)]
        first = int(others.min(initial=first))
        pairs.update(count_pairs(told, stored))
        known, differing = known + len(rows), differing + len(others)
    example = ids_as_text(ids[first:][:1])[0] if differing else None
    return Overlap(known, differing, example, tells(pairs))
