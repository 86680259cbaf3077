"""The ledger: an append-only, hash-chained account of what happened to the vault and what it spent.

Each entry is one line of canonical JSON that contains the hash of the entry before it; its own hash is SHA-256 over
that line. What the chain can do: an entry that was changed, dropped or moved, by accident or by hand, does not fit its
neighbours, and `verify` says so. What it cannot do: stop someone who can write the file. They can cut off the newest
entries together with their releases, recompute all hashes over a false history, go back to an old copy, or keep a
second vault in another home folder (`tpsl.vault.place`). Only someone who noted `Ledger.head` before and compares
(`entries_since`) notices the first three; nothing shows the last.

No entry contains a label or a digest of labels, and a random number in each makes its hash say nothing about the rest.
The ledger stays at the label party all the same. Times are what the machine's clock said. Nothing depends on them: the
order is that of the numbers.
"""

import datetime
import hashlib
import json
import math
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import UnionType
from typing import Any

from tpsl.mechanisms import Cost
from tpsl.vault.cost import Series, Spent, as_json, canonical, of_group, repeated
from tpsl.vault.errors import VaultError
from tpsl.vault.store import Store

FIRST_PREVIOUS = "0" * 64

_Shape = Mapping[str, type | UnionType]
_LABEL: _Shape = {"label": int, "name": str, "classes": int}
_RELEASE: _Shape = (
    dict.fromkeys(("label", "records"), int)
    | dict.fromkeys(("description", "noise", "ids_digest"), str)
    | {"mechanism": dict, "epsilon": float | str, "delta": float, "seed": int | None}
)
_DETAILS: dict[str, _Shape] = {
    "created": {**_LABEL, "format": int},
    "label": _LABEL,
    "added": dict.fromkeys(("label", "records", "labels_changed", "labels_changed_after_release"), int)
    | {"ids_digest": str, "units_digest": str | None},
    "released": {**_RELEASE, "table_digest": str, "draws": int, "outcomes_digest": str},
    "statistic": dict.fromkeys(("bound", "width", "classes", "releases"), int)
    | dict.fromkeys(("noise_digest", "phi_digest", "values_digest"), str)
    | {**_RELEASE, "rho": str | None},
}
"""What the details of each kind of entry consist of."""
_OPTIONAL: dict[str, _Shape] = {
    "created": {"counts_people": bool, "scratch": bool, "apart": str},
    "label": {"counts_people": bool},
}
"""What they may have besides."""
_RELEASES = ("released", "statistic")


@dataclass(frozen=True)
class Entry:
    """One entry: what happened, when, its details and its place in the chain.

    Kinds are `created` (with its first label), `label` (a further one), `added`, and two of
    releases: `released` (noisy labels) and `statistic` (one noisy statistic).
    """

    sequence: int
    kind: str
    time: str
    previous: str
    hash: str
    details: Mapping[str, Any]

    @property
    def is_release(self) -> bool:
        """Whether labels left the vault, as noisy labels or in a noisy statistic."""
        return self.kind in _RELEASES

    @property
    def epsilon(self) -> float:
        """What this release cost each of its records, draws included; 0 for entries that release nothing."""
        return float(self.details.get("epsilon", 0.0))

    @property
    def delta(self) -> float:
        """The delta that goes with `epsilon`."""
        return float(self.details.get("delta", 0.0))

    @property
    def cost(self) -> Cost:
        """What this release cost each of its records; ρ where the ledger has it."""
        rho = self.details.get("rho")
        return Cost(self.epsilon, self.delta, None if rho is None else Fraction(rho))

    def cost_of(self, records: int) -> Cost:
        """What it cost a unit of which it covered this number of records."""
        return of_group(self.cost, records) if self.kind == "statistic" else repeated(self.cost, records)

    @property
    def private(self) -> bool:
        """False for a release with seeded noise or with none."""
        return not self.is_release or (self.details["noise"] == "secure" and math.isfinite(self.epsilon))

    @property
    def series(self) -> Series:
        """The series this release belongs to."""
        details = self.details
        if self.kind == "statistic":
            parts = {name: details[name] for name in ("mechanism", "bound", "width", "ids_digest", "phi_digest")}
            return Series(canonical(parts), details["noise_digest"], 1, details["seed"])
        return Series(canonical(details["mechanism"]), details["table_digest"], details["draws"], details["seed"])

    @property
    def description(self) -> str:
        """What was released, in words: mechanism, draws, and the noise where it is not private."""
        return describe_release(str(self.details["description"]), self.series.draws, self.details["seed"])

    def as_dict(self) -> dict[str, Any]:
        """The entry as JSON-able data; an infinite epsilon is the text "inf"."""
        place = {"sequence": self.sequence, "kind": self.kind, "time": self.time}
        return {**place, **self.details, "previous": self.previous, "hash": self.hash}


@dataclass(frozen=True)
class Ledger:
    """What the vault has spent, computed from what each record was really released under."""

    label: int
    """The number of the label that it speaks of; the entries are those of the whole vault."""
    name: str
    classes: int
    records: int
    entries: tuple[Entry, ...]
    spent: tuple[Spent, ...]
    largest_unit: Spent | None
    """None where no record has a unit. Record-level epsilon is not user-level epsilon; this is the latter's maximum.

    Where alignments make new records of the same people it is the most that anybody can have spent over all of them.
    """
    same_labels: tuple[int, ...] = ()
    """The numbers of other labels that are the same one: what they spend is in all totals."""
    all_labels: Spent | None = None
    """The most that any record has spent over all labels of the vault; None if it has no other label."""

    @property
    def releases(self) -> tuple[Entry, ...]:
        """The releases that its totals count: of this label, and of those that are the same."""
        counted = {self.label, *self.same_labels}
        return tuple(entry for entry in self.entries if entry.is_release and entry.details["label"] in counted)

    @property
    def own(self) -> tuple[Entry, ...]:
        """The entries about this label."""
        return tuple(entry for entry in self.entries if entry.details.get("label") == self.label)

    @property
    def apart(self) -> str | None:
        """Why the labels of a second vault are nobody's in the label party's first one; None if it is that one."""
        return self.entries[0].details.get("apart")

    @property
    def counts_people(self) -> bool:
        """Whether the same people come again under new ids, and are counted over all of them."""
        return any(entry.details.get("counts_people") for entry in self.own)

    @property
    def stated_unit(self) -> Spent | None:
        """The largest unit, for others: None where alignments have made the records and these have units.

        Those are of the people whom the label party knows, and whom it knows may be the label.
        """
        has_units = any(entry.details.get("units_digest") for entry in self.own)
        return None if self.counts_people and has_units else self.largest_unit

    @property
    def released_records(self) -> int:
        """How many records have at least one release."""
        return sum(part.records for part in self.spent)

    @property
    def epsilon_per_record(self) -> float:
        """The largest epsilon that any record has spent over all its releases; exact, rounded up."""
        return max((part.epsilon for part in self.spent), default=0.0)

    @property
    def delta_per_record(self) -> float:
        """The largest delta that any record has spent over all its releases."""
        return max((part.delta for part in self.spent), default=0.0)

    @property
    def private(self) -> bool:
        """False as soon as one release used seeded noise or none."""
        return all(entry.private for entry in self.releases)

    @property
    def head(self) -> str:
        """The hash of the newest entry: it fixes the whole history."""
        return self.entries[-1].hash

    def as_dict(self) -> dict[str, Any]:
        """The ledger as JSON-able data; an infinite epsilon is the text "inf"."""
        unit = self.largest_unit
        return {
            "label": self.name,
            "classes": self.classes,
            "records": self.records,
            "released_records": self.released_records,
            "epsilon_per_record": as_json(self.epsilon_per_record),
            "delta_per_record": self.delta_per_record,
            "private": self.private,
            "largest_unit": unit and unit.as_dict(),
            **({"all_labels": self.all_labels.as_dict()} if self.all_labels else {}),
            "spent": [part.as_dict() for part in self.spent],
            "head": self.head,
            "entries": [entry.as_dict() for entry in self.entries],
        }


def describe_release(mechanism: str, draws: int, seed: int | None) -> str:
    """A release in words: mechanism, draws, and the noise where it is not private."""
    seeded = "" if seed is None else f", noise seeded with {seed} (NOT PRIVATE)"
    return mechanism + (f", {draws} draws" if draws > 1 else "") + seeded


def now() -> str:
    """The time in UTC, as entries have it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def append(store: Store, kind: str, details: Mapping[str, Any]) -> Entry:
    """Append an entry to the chain, inside the running transaction; it names the label that it is about."""
    details = {"label": store.label, **details} if store.label else details
    (last, previous), time = read_last(store), now()
    content = {"sequence": last + 1, "kind": kind, "time": time, "previous": previous, "details": details}
    body = canonical({**content, "nonce": secrets.token_hex(16)})
    store.execute("INSERT INTO ledger VALUES (?, ?, ?)", (last + 1, hash_of(body), body))
    return Entry(last + 1, kind, time, previous, hash_of(body), details)


def read_last(store: Store) -> tuple[int, str]:
    """The sequence number and the hash of the newest entry; what stands for them before the first."""
    row = store.execute("SELECT sequence, hash FROM ledger ORDER BY sequence DESC LIMIT 1").fetchone()
    return row or (0, FIRST_PREVIOUS)


def read_entries(store: Store, after: int = 0) -> tuple[Entry, ...]:
    """All entries, or those after one of this number, oldest first; whether the chain holds is for `verify` to say.

    One of a kind that is not known is a `VaultError`: what a newer version has released is spent, and nobody who cannot
    add it up may release more.
    """
    rows = store.execute("SELECT sequence, hash, body FROM ledger WHERE sequence > ? ORDER BY sequence", (after,))
    return tuple(parse(sequence, stored, body) for sequence, stored, body in rows)


class Entries(dict[int, Entry]):
    """The entries of the ledger by their numbers, each read when it is asked for; a missing one is a `VaultError`."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    def __missing__(self, number: int) -> Entry:
        row = self._store.execute("SELECT sequence, hash, body FROM ledger WHERE sequence = ?", (number,)).fetchone()
        if row is None:
            raise VaultError(
                f"ledger entry {number} is missing, of which noisy labels are stored; run verify on the vault"
            )
        self[number] = parse(*row)
        return self[number]


def read_first(store: Store) -> Entry:
    """The entry of the vault's creation."""
    row = store.execute("SELECT sequence, hash, body FROM ledger ORDER BY sequence LIMIT 1").fetchone()
    if row is None:
        raise VaultError("the ledger is empty: not even the creation of the vault is in it")
    return parse(*row)


def entries_since(store: Store, head: str) -> int | None:
    """How many entries were added after the one with this hash; None if none has it: the ledger was cut or replaced.

    Who noted the hash of the newest entry knows by it that all entries up to there are still the same, if the chain is
    sound.
    """
    if not re.fullmatch(r"[0-9a-f]{64}", head):
        raise VaultError(f"the hash of a ledger entry has 64 hexadecimal digits, so {head!r} is none")
    row = store.execute(
        "SELECT (SELECT COUNT(*) FROM ledger AS later WHERE later.sequence > ledger.sequence) FROM ledger"
        " WHERE hash = ?",
        (head,),
    ).fetchone()
    return None if row is None else int(row[0])


def parse(sequence: int, stored_hash: str, body: str) -> Entry:
    """Read one stored entry, or raise a `VaultError` that names it."""
    try:
        read = json.loads(body)
        entry = Entry(sequence, read["kind"], read["time"], read["previous"], stored_hash, read["details"])
        if isinstance(entry.kind, str) and entry.kind not in _DETAILS and hash_of(body) == stored_hash:
            raise VaultError(
                f"ledger entry {sequence} is of a kind that this version of tpsl does not know, {entry.kind!r}: "
                "a newer version wrote it, so use that one"
            )
        shape = _DETAILS[entry.kind]
        known = {**shape, **_OPTIONAL.get(entry.kind, {})}
        sound = shape.keys() <= entry.details.keys() <= known.keys() and all(
            isinstance(value, known[name]) for name, value in entry.details.items()
        )
        _ = entry.cost
    except VaultError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise VaultError(f"ledger entry {sequence} is damaged and cannot be read") from error
    if not sound or entry.details.get("draws", 1) < 1:
        raise VaultError(f"ledger entry {sequence} is damaged: its details are not those of {entry.kind!r}")
    return entry


def hash_of(body: str) -> str:
    """SHA-256 over an entry's canonical line."""
    return hashlib.sha256(body.encode()).hexdigest()
