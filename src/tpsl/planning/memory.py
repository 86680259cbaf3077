"""The most memory that a process of a party takes: what a rehearsal took, and what more records add to it.

    peak(n) = max over rehearsals m of peak(m) + held(n) - held(m)

What is held of n records are columns of them (ids, orders, the split, labels, noisy labels) and features of 4 bytes a
number, as they were read and as they are encoded, each up to what is kept in memory, since more lies on disk; 32 bytes
for each number of the three blocks that are read and encoded at a time; what a wide part needs; and noisy labels that
were handed over. Synthetic records never lie on disk. Weights, optimiser state, batches and what is under way are the
same for any number of records, and in peak(m) already.

It is not below what a run allocates: the bytes of a record are what was measured, rounded up, and peak(m) counts
mapped pages of programs and libraries as well, which nobody allocates: about 165 MB, where two runs of the same job
differ by up to 40 MB.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tpsl.data.config import SyntheticData
from tpsl.data.out_of_core import LARGE_BYTES
from tpsl.party.wide import fitted_records
from tpsl.planning.counts import Counts
from tpsl.planning.rehearsal import Rehearsal
from tpsl.tables.pages import BLOCK_ROWS
from tpsl.training.job import Job
from tpsl.transport.peers import LABEL_PARTY

LABEL_RECORD_BYTES, FEATURE_RECORD_BYTES = 180, 120
"""Of the columns of a record. Measured at the label party: 99 to 160 from 100,000 records to a million, 76 to two
million, because long columns are on disk."""
LABEL_LASTING_BYTES, FEATURE_LASTING_BYTES = 6, 2
"""What each record takes however many there are, on top of the columns: measured with 5 and 50 million records."""
SYNTHETIC_RECORD_BYTES = 60
"""The same of synthetic records, without their features: measured with 3 to 8 million."""
FITTED_RECORD_BYTES, SCORED_RECORD_BYTES = 56, 12
"""Of a wide part: what a fit computes; and an estimate of the label, a score, and the score as it is written."""
ESTIMATED_RECORD_BYTES = 12
"""At the label party: an estimate with 8 bytes and with 4."""
HANDED_OVER_COPIES = 3
"""Of noisy labels: as they came, joined, and as they are written."""
_NUMBER_BYTES, _NUMBER_BYTES_IN_WORK = 4, 32
_RECORDS_IN_WORK = 3 * BLOCK_ROWS


def peak_bytes(rehearsals: Sequence[Rehearsal], party: str, counts: Counts, fields: int) -> int:
    """Return the most memory of a process of a party that holds this many numbers of each record."""
    return max(
        rehearsed.peak_bytes[party]
        + held_bytes(rehearsed.job, party, counts, fields)
        - held_bytes(rehearsed.job, party, rehearsed.counts, fields)
        for rehearsed in rehearsals
    )


def held_bytes(job: Job, party: str, counts: Counts, fields: int) -> int:
    """Return what a process of a party holds of all records at most."""
    rows = counts.rows
    features = rows * fields * _NUMBER_BYTES
    record, lasting = (
        (LABEL_RECORD_BYTES, LABEL_LASTING_BYTES)
        if party == LABEL_PARTY
        else (FEATURE_RECORD_BYTES, FEATURE_LASTING_BYTES)
    )
    held = min(rows * record, LARGE_BYTES) + rows * lasting
    if isinstance(job.data, SyntheticData):
        held += rows * SYNTHETIC_RECORD_BYTES + features
    else:
        held += 2 * min(features, LARGE_BYTES) + min(rows, _RECORDS_IN_WORK) * fields * _NUMBER_BYTES_IN_WORK
    if job.model.wide:
        held += _wide_bytes(party, counts, fields)
    if job.hands_over and party != LABEL_PARTY:
        held += HANDED_OVER_COPIES * counts.train * _noisy_label_bytes(job)
    return held


def _wide_bytes(party: str, counts: Counts, fields: int) -> int:
    """Return what the wide part adds: estimates, the fit, and numbers with the score among them."""
    held = counts.train * ESTIMATED_RECORD_BYTES if party == LABEL_PARTY else 0
    if fields:
        held += fitted_records(counts.trained) * FITTED_RECORD_BYTES + counts.rows * SCORED_RECORD_BYTES
        held += min(counts.rows * (fields + 1) * _NUMBER_BYTES, LARGE_BYTES)
    return held


def _noisy_label_bytes(job: Job) -> int:
    outcomes = job.privacy.draws * math.prod(job.mechanism.outcome_shape)
    return outcomes * np.dtype(job.mechanism.outcome_dtype).itemsize
