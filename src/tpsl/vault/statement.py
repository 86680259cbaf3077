"""What a label party can state about its vault to the other side: what was released and what it cost.

A statement never contains a label, an outcome, a count of labels, or the seed of noise. What it does tell of labels:
its totals are larger if another label of the vault is the same one (`tpsl.vault.same_labels`). Its digest of ids
lets someone who knows all ids of the vault check that these are the records; someone who knows all but a few could
try candidates for those. What a unit has spent is not stated where alignments have made the records and these have
units: those are of the people whom the label party knows, and whom it knows may be the label. Every `add` is an entry
of the ledger, whether it corrected labels or not: two statements show how many there were between them, and no more.
"""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from types import UnionType
from typing import Any

from tpsl.vault.accounting import Account
from tpsl.vault.blocks import ids_in_order
from tpsl.vault.cost import Series, as_json
from tpsl.vault.errors import VaultError
from tpsl.vault.ledger import Entry
from tpsl.vault.store import Store
from tpsl.vault.texts import Texts

FORMAT = 1

_Fields = Mapping[str, type | UnionType]
_UNIT: _Fields = {"epsilon": float | str, "delta": float, "records": int}
_FIELDS: _Fields = (
    dict.fromkeys(("statement", "records", "classes", "released_records", "ledger_entries"), int)
    | dict.fromkeys(("label", "ids_digest", "ledger_head"), str)
    | {"epsilon_per_record": float | str, "delta_per_record": float, "largest_unit": dict | None}
    | {"private": bool, "apart": str | None, "releases": list}
)
_RELEASE: _Fields = (
    dict.fromkeys(("mechanism", "table_digest", "noise", "first", "last"), str)
    | dict.fromkeys(("draws", "entries"), int)
    | {**_UNIT, "spec": dict}
)


def facts(store: Store) -> dict[str, Any]:
    """All that a statement says about one state of a label of the vault, as JSON-able data."""
    ledger = Account(store).ledger()
    unit = ledger.stated_unit
    return {
        "statement": FORMAT,
        "label": ledger.name,
        "records": ledger.records,
        "ids_digest": _ids_digest(store),
        "classes": ledger.classes,
        "released_records": ledger.released_records,
        "epsilon_per_record": as_json(ledger.epsilon_per_record),
        "delta_per_record": ledger.delta_per_record,
        "largest_unit": unit and unit.as_dict(),
        "private": ledger.private,
        "apart": ledger.apart,
        "releases": _by_series(ledger.releases),
        "ledger_entries": len(ledger.entries),
        "ledger_head": ledger.head,
    }


def require_statement(content: Mapping[str, Any]) -> None:
    """Raise a `VaultError` unless this has the form of a statement; it may come from anybody."""
    if content.get("statement") != FORMAT:
        raise VaultError(f"it is no statement about a vault that this version of tpsl reads (format {FORMAT})")
    _require_fields(content, _FIELDS)
    for part, fields in ((content["largest_unit"], _UNIT), *((release, _RELEASE) for release in content["releases"])):
        if part is not None:
            _require_fields(part, fields)


def _require_fields(part: object, fields: _Fields) -> None:
    for name, kind in fields.items():
        value = part.get(name) if isinstance(part, Mapping) else None
        number = kind != float | str or isinstance(value, float) or value == "inf"
        if not isinstance(value, kind) or not number or (isinstance(value, bool) and kind is not bool):
            raise VaultError(f"it is no statement about a vault: its {name} is {value!r}")


def first_difference(content: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The name of the first fact of a statement that is not that of the vault; None if all are."""
    return next((name for name in _FIELDS if content[name] != now[name]), None)


def digest_of_ids(ids: Iterable[str]) -> str:
    """The digest of a set of ids as statements have it: SHA-256 over them as UTF-8, sorted, a zero byte after each."""
    texts = Texts.of(list(ids))
    return sha256(texts.take(texts.sorted_rows()).to_bytes()).hexdigest()


def _ids_digest(store: Store) -> str:
    digest = sha256()
    with ids_in_order(store) as ordered:
        for ids, _ in ordered.parts():
            digest.update(Texts(ids).to_bytes())
    return digest.hexdigest()


def _by_series(releases: Iterable[Entry]) -> list[dict[str, Any]]:
    """One row for each series: while labels arrive late, there is an entry for every few records."""
    rows: dict[Series, dict[str, Any]] = {}
    for entry in releases:
        details = entry.details
        same = {name: details[name] for name in ("noise", "epsilon", "delta")}
        spec = {**details["mechanism"], **{name: details[name] for name in ("bound", "width") if name in details}}
        of_series = {"table_digest": entry.series.digest, "draws": entry.series.draws}
        new = {"mechanism": details["description"], "spec": spec, **of_series, **same}
        row = rows.setdefault(entry.series, {**new, "records": 0, "entries": 0, "first": entry.time})
        row["records"] += details["records"]
        row["entries"] += 1
        row["last"] = entry.time
    return list(rows.values())
