"""Which halves belong together: two runs of one job differ by their noise, and a half works only with its counterparts.

The version of a party's half is a digest of embeddings that it sent when the run last evaluated, as they were received.
Both sides hold these bytes, so each notes the version without a message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from torch import Tensor

from tpsl.net.rounding import rounded
from tpsl.training.role import FeatureRole, LabelRole


def note_received(role: LabelRole, received: Sequence[Tensor]) -> None:
    """Note the versions of the halves that these embeddings have come from, one tensor a feature party."""
    received = [role.workers.all_gather_rows(share) for share in received]
    if role.workers.is_first:
        versions = {name: _version(share) for name, share in zip(role.present, received, strict=True)}
        role.run.note_versions(role.name, versions)


def note_sent(role: FeatureRole, embeddings: Tensor) -> None:
    """Note the version of the half that sends these embeddings."""
    arriving = rounded(role.workers.all_gather_rows(embeddings), role.job.training.wire)
    if role.workers.is_first:
        role.run.note_versions(role.name, {role.name: _version(arriving)})


def _version(embeddings: Tensor) -> str:
    digest = hashlib.sha256(b"tpsl half")
    digest.update(embeddings.contiguous().cpu().numpy().data)
    return digest.hexdigest()
