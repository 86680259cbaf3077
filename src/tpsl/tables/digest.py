"""A digest of texts in their order, that does not depend on how they are cut into blocks."""

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_TEXTS_AT_ONCE = 1 << 16


class TextsDigest:
    """SHA-256 over the lengths and the bytes of texts, and over what they are (`purpose`)."""

    def __init__(self, purpose: bytes) -> None:
        self._purpose = purpose
        self._lengths, self._texts = hashlib.sha256(), hashlib.sha256()

    def update(self, texts: Any) -> None:
        """Take in the next texts, an Arrow array or chunked array; one that is missing counts as empty."""
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            part = texts.slice(start, _TEXTS_AT_ONCE)
            part = part.combine_chunks() if isinstance(part, pa.ChunkedArray) else part
            encoded = pc.fill_null(pc.cast(part, pa.large_string()), "")
            offsets = np.frombuffer(encoded.buffers()[1], dtype="<i8")
            offsets = offsets[encoded.offset : encoded.offset + len(encoded) + 1]
            self._lengths.update(np.diff(offsets).astype("<i8").tobytes())
            if offsets[-1] > offsets[0]:
                self._texts.update(memoryview(encoded.buffers()[2])[offsets[0] : offsets[-1]])

    def digest(self) -> bytes:
        """Return the digest of all texts so far."""
        return hashlib.sha256(self._purpose + self._lengths.digest() + self._texts.digest()).digest()
