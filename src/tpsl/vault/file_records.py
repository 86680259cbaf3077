"""The records of the label party's file, where alignments make new ones of them: what a vault of people recognises.

Each alignment of mode `label-only` gives the people in it new ids, so by ids alone nobody could see that a label is
released again without an alignment. So the vault keeps the ids and labels of the whole file, whoever of it is in the
alignment. They are in no digest and in no entry of the ledger: these are shown to others, and whom the label party
knows is not for them.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from tpsl.vault.blocks import CHUNK
from tpsl.vault.canonical import ids_as_text
from tpsl.vault.comparing import Overlap, differing_by_chance
from tpsl.vault.errors import VaultError
from tpsl.vault.store import Store
from tpsl.vault.texts import Texts

_Labels = npt.NDArray[np.int64]


def keep(store: Store, ids: Any, labels: _Labels) -> None:
    """Keep those of a file's records that are not there yet, inside the running transaction."""
    given = ids_as_text(ids)
    new = np.flatnonzero(_found(store, given)[0] < 0)
    for start in range(0, len(new), CHUNK):
        rows = new[start : start + CHUNK]
        content = given.take(rows).to_bytes(), labels[rows].astype("<u2").tobytes()
        store.execute("INSERT INTO file_records VALUES (?, ?, ?)", (store.label, *content))


def compare(store: Store, ids: Any, labels: _Labels) -> Overlap:
    """Compare records with those of the file; each that is there may have been released."""
    given = ids_as_text(ids)
    at, kept = _found(store, given)
    here = np.flatnonzero(at >= 0)
    told, stored = labels[here], kept[at[here]]
    others = here[(told >= 0) & (told != stored)]
    first = given[int(others[0])] if len(others) else None
    return Overlap(len(here), len(others), len(here), first, differing_by_chance(told[told >= 0], stored[told >= 0]))


def _found(store: Store, ids: Texts) -> tuple[_Labels, _Labels]:
    """Which of the kept records each id is, -1 for none of them, and the labels of those kept."""
    rows = store.execute("SELECT ids, labels FROM file_records WHERE label = ?", (store.label,)).fetchall()
    try:
        kept = Texts.joined([Texts.from_bytes(stored) for stored, _ in rows])
        kept_labels = np.frombuffer(b"".join(labels for _, labels in rows), "<u2").astype(np.int64)
    except (TypeError, ValueError):
        raise VaultError("the records of the label party's file are damaged") from None
    at = pc.index_in(ids.to_arrow(), value_set=kept.to_arrow()).fill_null(-1).to_numpy(zero_copy_only=False)
    return at.astype(np.int64), kept_labels
