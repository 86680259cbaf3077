"""Which halves belong together: two runs of one job differ by their noise, and a half works with its own others only.

The version of a party's half is a digest of embeddings that it sent when the run last evaluated, as they were received.
Both sides hold these bytes, so each notes the version by itself and nothing more crosses the border.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from torch import Tensor

from tpsl.training.role import FeatureRole, LabelRole
from tpsl.transport.rounding import rounded


def note_received(role: LabelRole, received: Sequence[Tensor]) -> None:
    """Note the versions of the halves that these embeddings have come from, one tensor a feature party."""
    versions = {name: _version(share) for name, share in zip(role.channels, received, strict=True)}
    role.run.note_versions(role.name, versions)


def note_sent(role: FeatureRole, embeddings: Tensor) -> None:
    """Note the version of the half that sends these embeddings."""
    arriving = rounded(embeddings, role.job.training.wire)
    role.run.note_versions(role.name, {role.name: _version(arriving)})


def _version(embeddings: Tensor) -> str:
    digest = hashlib.sha256(b"tpsl half")
    digest.update(embeddings.contiguous().cpu().numpy().data)
    return digest.hexdigest()
