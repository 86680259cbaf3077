"""One digest of many record ids."""

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_IDS_AT_ONCE = 1 << 20


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
