"""Files for what does not fit into memory: they have no name, and are gone when the process is, however it ends."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO

_IN_MEMORY = 1 << 20


@contextmanager
def nameless_files(folder: Path, count: int) -> Iterator[list[IO[bytes]]]:
    """Open empty files in a folder, for their owner only, to be written and then read; small ones stay in memory."""
    with ExitStack() as files:
        yield [files.enter_context(SpooledTemporaryFile(_IN_MEMORY, dir=str(folder))) for _ in range(count)]


def read_back(file: IO[bytes]) -> bytes:
    """All that was written to a file."""
    file.seek(0)
    return file.read()
