"""All ids of a vault in the order of their text, part by part, in bounded memory."""

import sqlite3

import numpy as np

from tpsl.vault.blocks import CHUNK, Positions, chunk_count, count_records, ids_between
from tpsl.vault.texts import Texts

_IDS_AT_ONCE = 1 << 21
_SAMPLE = 64
"""Sampled ids for each part: parts are of about one size."""

Bounds = tuple[Texts, Texts, int]
"""The least text of a part and that of the next (a column of one, or of none at either end), and how many records the
vault had: those that came later are in no part."""


def bounds_of_parts(connection: sqlite3.Connection) -> list[Bounds]:
    """What to ask `ids_in_order` for, so that all ids come in order."""
    records = count_records(connection)
    parts = max(1, -(-records // _IDS_AT_ONCE))
    step = max(1, records // (parts * _SAMPLE))
    nothing = Texts.of([])
    if parts == 1:
        return [(nothing, nothing, records)]
    chunks = (ids_between(connection, chunk * CHUNK, (chunk + 1) * CHUNK) for chunk in range(chunk_count(records)))
    sample = Texts.joined(ids.take(np.arange(0, len(ids), step)) for ids in chunks)
    sample = sample.take(sample.sorted_rows())
    cuts = [sample.part(at, at + 1) for at in (np.arange(1, parts) * len(sample) // parts).tolist()]
    return [(low, high, records) for low, high in zip([nothing, *cuts], [*cuts, nothing], strict=True)]


def ids_in_order(connection: sqlite3.Connection, low: Texts, high: Texts, records: int) -> tuple[Texts, Positions]:
    """The ids from one text to before another, in order, and their positions."""
    found, positions = [], [np.zeros(0, np.int64)]
    for chunk in range(chunk_count(records)):
        ids = ids_between(connection, chunk * CHUNK, min((chunk + 1) * CHUNK, records))
        mine = ids.between(low, high)
        found.append(ids.take(mine))
        positions.append(chunk * CHUNK + np.flatnonzero(mine))
    texts = Texts.joined(found)
    order = texts.sorted_rows()
    return texts.take(order), np.concatenate(positions)[order]
