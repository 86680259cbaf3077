"""What two parties compare at the handshake before they train together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from tpsl.data.dataset import feature_party_names
from tpsl.data.rawtable import FIND_COMMON_RECORDS
from tpsl.tables.columns import TextsDigest
from tpsl.training.job import Job
from tpsl.training.origin import Origin
from tpsl.training.schedule import Schedule
from tpsl.training.search_step import CONFIGURATION, SPACE, SearchStep
from tpsl.training.stages import TOPICS
from tpsl.training.stages.hand_over import NOISY_LABELS, packed_bytes
from tpsl.transport.frames import Limits
from tpsl.transport.handshake import RECORD_IDS, Agreement
from tpsl.transport.peers import WorkerPlace
from tpsl.workers import Workers

PROTOCOL = 8
"""Rises with every change of the messages or of what a step computes: both sides must run the same."""

_RECORDS = "number of records"
_SAME_SPACE = "give all sides the same job and the same --space file"
_LONGEST = 200


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
        **dict(_flat(job.agreed(), "job")),
        "digest of the job": job.digest(),
        _RECORDS: str(len(ids)),
        "number of training records": str(len(schedule.train)),
        "width of the cut": ", ".join(str(job.model.cut_width(party)) for party in feature_party_names(job.data)),
        "batch plan": schedule.plan.digest(),
        **({"table of the mechanism": job.mechanism.digest} if job.hands_over else {}),
    }
    versions = {} if origin is None else origin.versions
    starts = {party: {"version that training starts from": version} for party, version in versions.items()}
    advice = {**dict.fromkeys((_RECORDS, RECORD_IDS), FIND_COMMON_RECORDS), SPACE: _SAME_SPACE}
    return Agreement(fields, ids_digest(ids), advice, starts, passing=frozenset({CONFIGURATION}))


def place_of(workers: Workers) -> WorkerPlace:
    """Return which worker of its party this process is; all of them ask together."""
    crew = workers.broadcast(WorkerPlace().crew.hex())
    return WorkerPlace(workers.rank, workers.count, bytes.fromhex(crew))


def limits(job: Job, schedule: Schedule) -> Limits:
    """Return the tensors that a party of the job accepts."""
    if job.hands_over:
        records = max(map(len, schedule.train_parts()))
        return Limits(job.privacy.draws, packed_bytes(job.mechanism, records), (NOISY_LABELS,))
    return Limits(schedule.largest_part, job.widest_share, TOPICS)


def ids_digest(ids: Any) -> bytes:
    """Return a SHA-256 of the record ids in their order; it stays at home."""
    digest = TextsDigest(b"tpsl record ids")
    digest.update(ids)
    return digest.digest()


def _flat(content: Any, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(content, dict):
        for key, value in content.items():
            yield from _flat(value, f"{name}.{key}")
    elif isinstance(content, list) and content and isinstance(content[0], dict):
        for number, value in enumerate(content):
            yield from _flat(value, f"{name}.{number}")
    else:
        yield name, _short(json.dumps(content, ensure_ascii=False))


def _short(value: str) -> str:
    """A value that is too long for a sentence is compared by its digest."""
    if len(value) <= _LONGEST:
        return value
    return f"{value[:_LONGEST]}… (SHA-256 {hashlib.sha256(value.encode()).hexdigest()})"
