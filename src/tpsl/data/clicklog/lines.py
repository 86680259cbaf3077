"""Text, plain or compressed, in blocks of whole lines that know their line numbers."""

import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pyarrow as pa

from tpsl.data.errors import DataError
from tpsl.progress import Progress

BLOCK_BYTES = 1 << 24
# A compressed stream that breaks off takes the whole piece with it, so pieces are small.
PIECE_BYTES = 1 << 16

_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_DAMAGED = (pa.ArrowException, OSError, EOFError, zlib.error, zipfile.BadZipFile, RuntimeError)


@dataclass(frozen=True)
class Block:
    """Consecutive whole lines; only the last line of a file may lack its end."""

    first_line: int
    text: bytes

    @property
    def lines(self) -> int:
        """Number of lines."""
        return self.text.count(b"\n") + self.unfinished

    @property
    def unfinished(self) -> bool:
        """Whether the last line has no end."""
        return not self.text.endswith(b"\n")

    def first(self, lines: int) -> "Block":
        """Return the block cut after so many lines."""
        if lines >= self.lines:
            return self
        ends = np.flatnonzero(np.frombuffer(self.text, np.uint8) == ord("\n"))
        return Block(self.first_line, self.text[: int(ends[lines - 1]) + 1])


def line_blocks(path: Path, what: str, progress: Progress | None = None) -> Iterator[Block]:
    """Read a file of any size in memory bounded by `BLOCK_BYTES`; the ending tells how it is compressed.

    Endings are `.gz`, `.bz2`, `.zst` and `.zip` (an archive of one file); any other file is read as plain text.
    Progress is told in bytes of the file as it lies on disk. A damaged or cut-off compressed file is an error that says
    how many lines were read before; they are yielded first.
    """
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    if path.name.lower().endswith((".tar.gz", ".tgz", ".tar")):
        raise DataError(f"{path}: this is an archive of several files; unpack it and give the training file in it")
    total = path.stat().st_size
    line = 1
    try:
        with path.open("rb") as file:
            for text in _whole_lines(path, _uncompressed(path, file)):
                block = Block(line, text)
                yield block
                line += block.lines
                if progress is not None:
                    progress(file.tell(), total, what)
    except _DAMAGED as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path}: is damaged or cut off soon after line {line - 1} ({reason})") from error


def _uncompressed(path: Path, file: IO[bytes]) -> Any:
    ending = path.suffix.lower()
    if ending in _CODECS:
        return pa.CompressedInputStream(file, _CODECS[ending])
    if ending == ".zip":
        archive = zipfile.ZipFile(file)
        members = [member for member in archive.infolist() if not member.is_dir()]
        if len(members) != 1:
            raise DataError(f"{path}: the archive holds {len(members)} files and must hold one")
        return archive.open(members[0])
    return file


def _whole_lines(path: Path, stream: Any) -> Iterator[bytes]:
    """Yield about `BLOCK_BYTES` of whole lines at a time, also those before the place where the stream breaks."""
    rest, ended, failure = b"", False, None
    while not ended:
        pieces = [rest]
        for _ in range(BLOCK_BYTES // PIECE_BYTES):
            try:
                pieces.append(cast(bytes, stream.read(PIECE_BYTES)))
            except _DAMAGED as error:
                failure = error
            ended = failure is not None or not pieces[-1]
            if ended:
                break
        text = b"".join(pieces)
        cut = text.rfind(b"\n") + 1
        if not cut and not ended:
            raise DataError(f"{path}: a line is longer than {len(text)} bytes, so this is not a click log")
        rest = text[cut:]
        if cut:
            yield text[:cut]
    if failure is not None:
        raise failure
    if rest:
        yield rest
