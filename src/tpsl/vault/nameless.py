"""A file for what does not fit into memory: it has no name, and is gone when the process is, however it ends.

What the disk keeps of it nobody can read: it is encrypted with a key that only the process has.
"""

import secrets
from array import array
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Self

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

_IN_MEMORY = 1 << 20
_AES_BLOCK = 16


class PartedFile:
    """Bytes in numbered parts, each of which is written piece by piece, then read as a whole.

    The file lies in a folder, for its owner only; a small one stays in memory.
    """

    def __init__(self, folder: Path, parts: int) -> None:
        self._file = SpooledTemporaryFile(_IN_MEMORY, dir=str(folder))  # noqa: SIM115
        self._key, self._end = AES256(secrets.token_bytes(32)), 0
        self._encryptor = self._cipher(0).encryptor()
        self._pieces = [array("Q") for _ in range(parts)]
        """Where the pieces of each part begin and end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up what was written."""
        self._file.close()

    def __len__(self) -> int:
        """The number of parts."""
        return len(self._pieces)

    def write(self, part: int, piece: bytes | memoryview) -> None:
        """Append a piece to a part; no part has been read yet."""
        content = memoryview(piece).cast("B")
        if content.nbytes:
            self._file.write(self._encryptor.update(content))
            self._pieces[part].extend((self._end, self._end + content.nbytes))
            self._end += content.nbytes

    def read(self, part: int) -> bytes:
        """All that was written to a part."""
        bounds, found = iter(self._pieces[part]), []
        for start, end in zip(bounds, bounds, strict=True):
            self._file.seek(start)
            first, skipped = divmod(start, _AES_BLOCK)
            decryptor = self._cipher(first).decryptor()
            decryptor.update(bytes(skipped))
            found.append(decryptor.update(self._file.read(end - start)))
        return b"".join(found)

    def _cipher(self, first: int) -> Cipher[CTR]:
        """The cipher of the file from one of its blocks on; each byte is written once, so no part of it comes twice."""
        return Cipher(self._key, CTR(first.to_bytes(_AES_BLOCK, "big")))
