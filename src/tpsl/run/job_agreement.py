"""What two parties compare at the handshake before they train together."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tpsl.data.rawtable import FIND_COMMON_RECORDS
from tpsl.net.agreement import RECORD_IDS, Agreement
from tpsl.net.messages import Limits
from tpsl.net.rounding import wire_bytes
from tpsl.run.job import CONFIGURATION, SPACE, Job, SearchStep, dotted
from tpsl.run.result import Origin
from tpsl.run.schedule import Schedule
from tpsl.run.stages.hand_over import packed_bytes
from tpsl.tables.columns import TextsDigest

PROTOCOL = 10
"""Rises with every change of the messages or of what a step computes: both sides must run the same."""

_RECORDS = "number of records"
_SAME_SPACE = "give all sides the same job and the same --tune FILE"
_LONGEST = 200
_WINDOW = 64 << 20
"""Bytes of a party's questions that may be under way; two of the largest in any case."""
_FEWEST_CALLS, _MOST_CALLS = 4, 64


def agreement(
    job: Job, ids: Any, schedule: Schedule, origin: Origin | None = None, search: SearchStep | None = None
) -> Agreement:
    """Return the fields of the job and of the data that must be equal, in the order in which they are compared.

    Where training starts from an earlier run, each feature party and the label party also compare the version of its
    half. In a search they compare the space, and who is at a later configuration waits. Record ids themselves never
    cross: their digest is the key of the handshake's proofs.
    """
    fields = {
        "protocol version": str(PROTOCOL),
        **({} if search is None else search.agreed()),
        **{f"job.{name}": _short(value) for name, value in dotted(job.agreed()).items()},
        "digest of the job": job.digest(),
        _RECORDS: str(len(ids)),
        "number of training records": str(len(schedule.train)),
        "width of the cut": ", ".join(str(job.model.cut_width(party)) for party in job.data.feature_parties),
        "batch plan": schedule.plan.digest(),
        **({"table of the mechanism": job.mechanism.digest} if job.hands_over else {}),
    }
    versions = {} if origin is None else origin.versions
    starts = {party: {"version that training starts from": version} for party, version in versions.items()}
    advice = {**dict.fromkeys((_RECORDS, RECORD_IDS), FIND_COMMON_RECORDS), SPACE: _SAME_SPACE}
    return Agreement(fields, ids_digest(ids), advice, starts, passing=frozenset({CONFIGURATION}))


def limits(job: Job, schedule: Schedule) -> Limits:
    """Return what a party of the job accepts: tensors of a size, and a number of questions at once."""
    if job.hands_over:
        records = max(map(len, schedule.train_parts()))
        return Limits(job.privacy.draws, packed_bytes(job.mechanism, records))
    rows, width = schedule.largest_part, job.widest_share
    wanted = (1 + job.training.staleness) * job.training.micro_batches + 1
    fitting = _WINDOW // max(1, wire_bytes((rows, width), job.wire_type))
    return Limits(rows, width, min(max(_FEWEST_CALLS, wanted), max(2, fitting), _MOST_CALLS))


def ids_digest(ids: Any) -> bytes:
    """Return a SHA-256 of the record ids in their order; it stays at home."""
    digest = TextsDigest(b"tpsl record ids")
    digest.update(ids)
    return digest.digest()


def _short(value: Any) -> str:
    """Return a value as JSON; one that is too long for a sentence is compared by its digest."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}… (SHA-256 {hashlib.sha256(text.encode()).hexdigest()})"
