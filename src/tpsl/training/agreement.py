"""What two parties compare at the handshake before they train together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.data.dataset import feature_party_names
from tpsl.training.job import Job
from tpsl.training.schedule import Schedule
from tpsl.training.stages import TOPICS
from tpsl.transport.frames import Limits
from tpsl.transport.handshake import Agreement

PROTOCOL = 4
"""Rises with every change of the messages or of what a step computes: both sides must run the same."""

_IDS_AT_ONCE = 1 << 20
_LONGEST = 200


def agreement(job: Job, ids: Any, schedule: Schedule) -> Agreement:
    """Return the fields of the job and of the data that must be equal, in the order in which they are compared.

    Record ids themselves never cross: their digest is the key of the handshake's proofs.
    """
    fields = {
        "protocol version": str(PROTOCOL),
        **dict(_flat(job.agreed(), "job")),
        "digest of the job": job.digest(),
        "number of records": str(len(ids)),
        "number of training records": str(len(schedule.train)),
        "width of the cut": ", ".join(str(job.model.cut_width(party)) for party in feature_party_names(job.data)),
        "batch plan": schedule.plan.digest(),
    }
    return Agreement(fields, ids_digest(ids))


def limits(job: Job, schedule: Schedule) -> Limits:
    """Return the tensors that a party of the job accepts."""
    return Limits(schedule.largest_part, job.widest_share, TOPICS)


def ids_digest(ids: Any) -> bytes:
    """Return a SHA-256 of the record ids in their order; it stays at home."""
    lengths, texts = hashlib.sha256(), hashlib.sha256()
    for start in range(0, len(ids), _IDS_AT_ONCE):
        part = ids.slice(start, _IDS_AT_ONCE)
        part = part.combine_chunks() if isinstance(part, pa.ChunkedArray) else part
        encoded = pc.cast(part, pa.large_string())
        offsets = np.frombuffer(encoded.buffers()[1], dtype="<i8")[encoded.offset : encoded.offset + len(encoded) + 1]
        lengths.update(np.diff(offsets).astype("<i8").tobytes())
        texts.update(memoryview(encoded.buffers()[2])[offsets[0] : offsets[-1]])
    return hashlib.sha256(b"tpsl record ids" + lengths.digest() + texts.digest()).digest()


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
