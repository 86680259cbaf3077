"""A text file, plain or compressed, as a stream of whole lines in bounded memory."""

import io
import re
import threading

import pyarrow as pa

from tpsl.tables import DataError
from tpsl.tables.locations import StoredFile

# A compressed stream that breaks off takes the whole piece with it, so pieces are small.
PIECE_BYTES = 1 << 16
_BUFFER_BYTES = 1 << 20

_CODECS = {".gz": "gzip", ".zst": "zstd"}
COMPRESSIONS = ("", *_CODECS)
_NOT_READ = (".tar.gz", ".tgz", ".tar", ".zip", ".bz2")
_FAULT = re.compile(rb"\r(?!\n)|(?:\A|(?<=\n))\r?\n")
_MOMENT = 0.6
"""Seconds; if so much was read ahead that nobody reads at the moment, they are waited for in vain."""


class LineStream(io.RawIOBase):
    """The text of a file; `read` returns whole lines, and only the last line of the file may lack its end.

    The ending tells how the file is compressed: `.gz` or `.zst`. Where a compressed file is damaged or cut off, or a
    line is longer than what is read at a time, the text ends with the last whole line before that place; `finish` then
    raises. With `strict_lines` an empty line, and a carriage return inside a line, are errors that name the line.
    """

    def __init__(self, file: StoredFile, strict_lines: bool = False) -> None:
        if file.name.lower().endswith(_NOT_READ):
            raise DataError(f"{file.name}: archives and .bz2 files are not read; unpack it, or give the table as .gz")
        self.name, self.lines = file.name, 0
        self.unfinished_line: int | None = None
        """The number of the last line, once it is read, if it has no end."""
        self._file = io.BufferedReader(file.open(), _BUFFER_BYTES)
        self._strict = strict_lines
        self._rest = self._ahead = b""
        self._ended = False
        self._failure: Exception | None = None
        self._owner, self._is_read_ahead = threading.get_ident(), False
        self._lock, self._closing, self._drained = threading.Lock(), False, threading.Event()
        codec = _CODECS.get(file.name[file.name.rfind(".") :].lower())
        self._text = self._file if codec is None else pa.CompressedInputStream(self._file, codec)

    @property
    def position(self) -> int:
        """Number of bytes of the file, as it lies on disk, that were read."""
        return self._file.tell()

    def readable(self) -> bool:
        """Return true."""
        return True

    def peek(self, size: int) -> bytes:
        """Return what the next `read` will return; raise if that is nothing because the file is damaged."""
        self._ahead = self.read(size)
        if not self._ahead:
            self.finish()
        return self._ahead

    def read(self, size: int = -1) -> bytes:
        """Return at most `size` bytes of whole lines; none at the end, and when the stream is being closed."""
        with self._lock:
            self._is_read_ahead |= threading.get_ident() != self._owner
            if self._closing:
                self._drained.set()
                return b""
            return self._read(size)

    def _read(self, size: int) -> bytes:
        if self._ahead:
            ahead, self._ahead = self._ahead, b""
            return ahead
        pieces = [self._rest]
        space = max(size, PIECE_BYTES) - len(self._rest)
        while space > 0 and not self._ended:
            try:
                pieces.append(self._text.read(min(space, PIECE_BYTES)))
            except (pa.ArrowException, OSError) as error:
                self._failure = error
            self._ended = self._failure is not None or not pieces[-1]
            space -= len(pieces[-1])
        text = b"".join(pieces)
        cut = len(text) if self._ended and self._failure is None else text.rfind(b"\n") + 1
        if not cut and not self._ended:
            self._failure = DataError(f"{self.name}: a line is longer than {len(text)} bytes, so this is not a table")
            self._ended = True
        self._rest = b"" if self._ended else text[cut:]
        if self._strict:
            self._check_lines(text[:cut])
        self.lines += text.count(b"\n", 0, cut)
        if cut and not text.endswith(b"\n", 0, cut):
            self.unfinished_line = self.lines + 1
        return text[:cut]

    def finish(self) -> None:
        """Raise if the text ended because the file is damaged, or a line has no end."""
        if isinstance(self._failure, DataError):
            raise self._failure
        if self._failure is not None:
            reason = " ".join(str(self._failure).split()) or type(self._failure).__name__
            raise DataError(
                f"{self.name}: cannot be read, it is damaged or cut off soon after line {self.lines} ({reason})"
            ) from self._failure

    def close(self) -> None:
        """Close the file, when no thread reads ahead any more.

        PyArrow reads blocks ahead in background threads. One that is still reading when the program ends, because the
        table was given up after an error, would abort the program or hang it: so it is told that the text is at its
        end, and has a moment to take notice.
        """
        self._closing = True
        if self._is_read_ahead and not self._ended:
            self._drained.wait(_MOMENT)
        with self._lock:
            self._file.close()
        super().close()

    def _check_lines(self, text: bytes) -> None:
        begins_empty = text.startswith((b"\n", b"\r\n")) or b"\n\n" in text or b"\n\r\n" in text
        if not begins_empty and text.count(b"\r") == text.count(b"\r\n"):
            return
        fault = _FAULT.search(text)
        if fault is not None:
            sentence = "the line is empty" if b"\n" in fault.group() else "a carriage return stands inside the line"
            line = self.lines + text.count(b"\n", 0, fault.start()) + 1
            raise DataError(f"{self.name}: line {line}: {sentence}")
