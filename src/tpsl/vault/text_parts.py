"""Texts, each with a number, in parts of which one at a time fits into memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from tpsl.vault.spill_file import SpillFile
from tpsl.vault.texts import Texts


class TextParts:
    """Texts and numbers that are written to parts in any order, then read part by part."""

    def __init__(self, folder: Path, parts: int) -> None:
        self._texts, self._numbers = SpillFile(folder, parts), SpillFile(folder, parts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up what was written."""
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
