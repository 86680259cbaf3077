"""Anonymous temporary file for what does not fit into memory; the operating system deletes it when the process ends."""

from array import array
from collections.abc import Iterator
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Self

import numpy as np
import numpy.typing as npt

from tpsl.vault.texts import Texts

_IN_MEMORY = 1 << 20


class SpillFile:
    """Bytes in numbered parts, each of which is written piece by piece, then read as a whole.

    The file lies in a folder, for its owner only; a small one stays in memory.
    """

    def __init__(self, folder: Path, parts: int) -> None:
        self._file = SpooledTemporaryFile(_IN_MEMORY, dir=str(folder))  # noqa: SIM115
        self._end = 0
        self._pieces = [array("Q") for _ in range(parts)]
        """Where the pieces of each part begin and end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete the file."""
        self._file.close()

    def __len__(self) -> int:
        """The number of parts."""
        return len(self._pieces)

    def write(self, part: int, piece: bytes | memoryview) -> None:
        """Append a piece to a part; no part has been read yet."""
        content = memoryview(piece).cast("B")
        if content.nbytes:
            self._file.write(content)
            self._pieces[part].extend((self._end, self._end + content.nbytes))
            self._end += content.nbytes

    def read(self, part: int) -> bytes:
        """All that was written to a part."""
        bounds, found = iter(self._pieces[part]), []
        for start, end in zip(bounds, bounds, strict=True):
            self._file.seek(start)
            found.append(self._file.read(end - start))
        return b"".join(found)


class TextParts:
    """Texts and numbers that are written to parts in any order, then read part by part."""

    def __init__(self, folder: Path, parts: int) -> None:
        self._texts, self._numbers = SpillFile(folder, parts), SpillFile(folder, parts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete the files."""
        self._texts.close()
        self._numbers.close()

    def write(self, part: int, texts: Texts, numbers: npt.NDArray[np.int64]) -> None:
        """Append texts, and the number of each, to a part."""
        self._texts.write(part, texts.to_bytes())
        self._numbers.write(part, numbers.tobytes())

    def read(self) -> Iterator[tuple[Texts, npt.NDArray[np.int64]]]:
        """The texts and numbers of each part, as they were written."""
        for part in range(len(self._texts)):
            yield Texts.from_bytes(self._texts.read(part)), np.frombuffer(self._numbers.read(part), np.int64)
