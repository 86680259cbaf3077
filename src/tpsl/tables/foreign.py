"""Tables that another party has made: handed-over labels, lists of records, scores.

Everything in them is the other side's word, also how large they are. `read_blocks` bounds the memory of one block.
What is kept of all blocks of another party's table is bounded here.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.parquet import read_schema

from tpsl.progress import Progress, no_progress
from tpsl.tables import DataError
from tpsl.tables.columns import MOST_ID_BYTES, is_text, value_type
from tpsl.tables.locations import Location, StoredFile, files_of
from tpsl.tables.reading import PLAIN, Block, Dialect, is_parquet, read_blocks

MOST_EXPANSION = 256
"""How many times the size of the files their contents may have. Ids differ and noise is random: two million numbers one
after the other, behind 40 letters that they share, have 61 times the size of their file."""
SMALL_BYTES = 1 << 27
"""What the contents may have in any case."""
MOST_FOOTER_BYTES = 1 << 23
"""The description of a Parquet file, which is in memory before anything else of it; it grows with its columns."""
_ROW_BYTES = 8


def read_foreign(
    location: Location, columns: list[str], dialect: Dialect = PLAIN, *, progress: Progress = no_progress
) -> Iterator[Block]:
    """Yield the blocks of a table as `read_blocks` does, as long as what another party has made of it is within bounds.

    Guarantee: all blocks together have at most `MOST_EXPANSION` times the bytes of the files, or `SMALL_BYTES`, and no
    text has more than `MOST_ID_BYTES`; anything else is a `DataError` of one sentence.
    """
    files = files_of(location)
    for file in files:
        _require_small_footer(file)
    size = sum(file.size for file in files)
    left = most = max(SMALL_BYTES, MOST_EXPANSION * size)
    for block in read_blocks(location, columns, dialect, progress=progress):
        found = {name: _short(column, f"{block.file}: column {name!r}") for name, column in block.columns.items()}
        left -= sum((column.nbytes for column in found.values()), start=_ROW_BYTES * block.rows)
        if left < 0:
            raise DataError(f"{location}: has {size:,} bytes and unpacks to more than {most:,}")
        yield replace(block, columns=found)


def foreign_schema(path: Path) -> Any:
    """Return the `pa.Schema` of a Parquet file that another party has made, whose description is within bounds."""
    (file,) = files_of(path)
    _require_small_footer(file)
    return read_schema(path)


def _require_small_footer(file: StoredFile) -> None:
    """Refuse a Parquet file with a large description; the four bytes before the last four say how large it is."""
    if not is_parquet(file.name):
        return
    with file.open() as content:
        content.seek(max(0, file.size - 8))
        size = int.from_bytes(content.read(4), "little")
    if size > MOST_FOOTER_BYTES:
        raise DataError(f"{file.name}: its description has {size:,} bytes, more than {MOST_FOOTER_BYTES:,}")


def _short(column: Any, place: str) -> Any:
    """Return a column, its texts themselves where it has a dictionary of them; long ones are a `DataError`."""
    if not is_text(value_type(column)):
        return column
    encoded = pa.types.is_dictionary(column.type)
    texts = (column.dictionary if encoded else column).cast(pa.string())
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    if longest > MOST_ID_BYTES:
        raise DataError(f"{place} has a text of {longest:,} bytes, and {MOST_ID_BYTES:,} are allowed")
    return texts.take(column.indices) if encoded else texts
