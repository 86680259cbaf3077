"""The most memory that a process of a party takes: what a rehearsal took, and what more records add to it.

    peak(n) = peak(m) + held(n) - held(m)

What is held of n records are columns of them (ids, orders, the split, labels), features of 4 bytes a number, each up to
what is kept in memory, since more lies on disk; 32 bytes for each number of the three blocks that are read and encoded
at a time; and at the label party noisy labels, and whether each was found while they are looked up. Weights, optimiser
state, batches and what is under way are the same for any number of records, and in peak(m) already.
"""

from __future__ import annotations

from tpsl.data.arrays import LARGE_BYTES
from tpsl.planning.rehearsal import Rehearsal
from tpsl.tables.reading import BLOCK_ROWS
from tpsl.transport.peers import LABEL_PARTY

LABEL_RECORD_BYTES, FEATURE_RECORD_BYTES = 200, 120
"""Of the columns of a record, measured."""
NOISY_LABEL_BYTES = 2
_NUMBER_BYTES, _NUMBER_BYTES_IN_WORK = 4, 32
_RECORDS_IN_WORK = 3 * BLOCK_ROWS


def peak_bytes(rehearsed: Rehearsal, party: str, rows: int, fields: int) -> int:
    """Return the most memory of a process of a party that holds this many numbers of each of n records."""
    more = _held_bytes(party, rows, fields) - _held_bytes(party, rehearsed.counts.rows, fields)
    return rehearsed.peak_bytes[party] + more


def _held_bytes(party: str, rows: int, fields: int) -> int:
    columns = min(rows * (LABEL_RECORD_BYTES if party == LABEL_PARTY else FEATURE_RECORD_BYTES), LARGE_BYTES)
    features = min(rows * fields * _NUMBER_BYTES, LARGE_BYTES)
    in_work = min(rows, _RECORDS_IN_WORK) * fields * _NUMBER_BYTES_IN_WORK
    return columns + features + in_work + (rows * NOISY_LABEL_BYTES if party == LABEL_PARTY else 0)
