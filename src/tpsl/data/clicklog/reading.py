"""From a click log's text to typed columns, block by block.

PyArrow parses and NumPy checks whole columns at once. Only a block in which something is wrong is looked through line
by line, to say where.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from tpsl.data.clicklog.layout import HOUR_FIELDS, Kind, Layout, hour_and_weekday
from tpsl.data.clicklog.lines import Block, line_blocks
from tpsl.data.clicklog.threads import side_by_side
from tpsl.data.errors import DataError
from tpsl.data.synthetic import record_ids
from tpsl.progress import Progress

ID, LABEL = "id", "label"
_HOUR = "(hour)"  # no column of a publisher has this name

_TYPES: dict[Kind, Any] = {
    "label": pa.uint8(),
    "id": pa.uint64(),
    "number": pa.int64(),
    "hex": pa.binary(),
    "integer": pa.int32(),
    "hour": pa.int64(),
}

_LABEL_KINDS: tuple[Kind, ...] = ("label",)
_FEATURE_KINDS: tuple[Kind, ...] = ("number", "hex", "integer", "hour")

# The parser's own blocks: two threads share the work on one of ours.
_PARSER_BYTES = 1 << 21


class TimeOrder:
    """Whether the records of a file stand in order of time, as far as it was read; without hours nobody can know."""

    def __init__(self) -> None:
        self.first_too_early: int | None = None
        """The position of the first record that is earlier than the one before it."""
        self._records, self._last = 0, 0

    def follow(self, hours: npt.NDArray[np.int64]) -> None:
        """Take in the hours (YYMMDDHH) of the records that come next."""
        earlier = np.diff(hours, prepend=self._last) < 0
        if self.first_too_early is None and earlier.any():
            self.first_too_early = self._records + int(earlier.argmax())
        self._records, self._last = self._records + len(hours), int(hours[-1])


class _WrongValueError(Exception):
    """Somewhere in the block; which line is found out afterwards."""


def _byte_of_digits() -> npt.NDArray[np.uint16]:
    """Return the byte that two hexadecimal digits, read as a little-endian integer, stand for; else 256."""
    byte = np.full(1 << 16, 256, dtype=np.uint16)
    for value in range(256):
        for digits in (f"{value:02x}", f"{value:02X}", f"{value:02x}".title(), f"{value:02x}".swapcase()):
            byte[int.from_bytes(digits.encode(), "little")] = value
    return byte


_BYTE_OF_DIGITS = _byte_of_digits()


def read_blocks(
    layout: Layout,
    path: Path,
    rows: int | None = None,
    *,
    features: bool = True,
    labels: bool = True,
    progress: Progress | None = None,
    order: TimeOrder | None = None,
) -> Iterator[Any]:
    """Yield `pa.Table`s of consecutive records: `id`, then `label` and the fields, as far as asked for.

    Ids are text, labels int8, numbers int64, categories uint32 (hexadecimal digits by their value, a negative integer
    as its two's complement); null is missing. Memory is bounded by a block, and eight bytes a record where the file has
    ids. `rows` takes only the first so many records. A line with another number of columns, a cut-off last line, an
    empty line, or a value that is not of its column's kind is a `DataError` that names the line; so is a repeated id,
    after all is read. `order` follows the hours of the records.
    """
    done, seen_ids = 0, []
    for block in line_blocks(path, f"reading {path.name}", progress):
        if layout.header and block.first_line == 1:
            block = _without_header(layout, path, block)
        if rows is not None:
            block = block.first(rows - done)
        if not block.text:
            continue
        columns = _checked_columns(layout, path, block, features, labels)
        done += len(columns[ID])
        hours = columns.pop(_HOUR, None)
        if order is not None and hours is not None:
            order.follow(hours.to_numpy())
        if layout.id is not None:
            seen_ids.append(columns[ID].to_numpy())
            columns[ID] = columns[ID].cast(pa.string())
        yield pa.table(columns)
        if done == rows:
            break
    if done == 0:
        raise DataError(f"{path}: the file has no records")
    if rows is not None and done < rows:
        raise DataError(f"{path}: rows: {rows} records were asked for, there are {done}")
    if layout.id is not None:
        _repeated_id_is_error(path, np.concatenate(seen_ids))


def _without_header(layout: Layout, path: Path, block: Block) -> Block:
    header, _, text = block.text.partition(b"\n")
    genuine = layout.delimiter.join(layout.columns)
    if header.decode(errors="replace").strip() != genuine:
        raise DataError(f"{path}: line 1 is not the header of {layout.source}'s file, {genuine[:19]!r} and so on")
    return Block(2, text)


def _checked_columns(layout: Layout, path: Path, block: Block, features: bool, labels: bool) -> dict[str, Any]:
    try:
        return _columns(layout, block, features, labels)
    except (pa.ArrowInvalid, _WrongValueError) as error:
        _name_the_line(layout, path, block, error)


def _columns(layout: Layout, block: Block, features: bool, labels: bool) -> dict[str, Any]:
    wanted = layout.of_kind("id", "hour", *(_LABEL_KINDS if labels else ()), *(_FEATURE_KINDS if features else ()))
    parsed = pyarrow.csv.read_csv(
        pa.BufferReader(block.text),
        pyarrow.csv.ReadOptions(column_names=list(layout.columns), block_size=_PARSER_BYTES),
        pyarrow.csv.ParseOptions(delimiter=layout.delimiter, quote_char=False, ignore_empty_lines=False),
        pyarrow.csv.ConvertOptions(
            include_columns=list(wanted),
            column_types={name: _TYPES[layout.columns[name]] for name in wanted},
            null_values=[""],
            strings_can_be_null=True,
        ),
    ).combine_chunks()
    if len(parsed) != block.lines:
        raise _WrongValueError("carriage returns stand where no line ends")
    found: dict[str, Any] = {
        ID: record_ids(block.first_line, block.first_line + len(parsed)) if layout.id is None else parsed[layout.id]
    }
    in_digits = [name for name in wanted if layout.columns[name] == "hex"]
    numbers = side_by_side(_hexadecimal, [parsed[name].chunk(0) for name in in_digits])
    of_digits = dict(zip(in_digits, numbers, strict=True))
    for name in wanted:
        kind, values = layout.columns[name], parsed[name].chunk(0)
        if kind == "label":
            found[LABEL] = _labels(values)
        elif kind == "number":
            found[name] = values
        elif kind == "hex":
            found[name] = of_digits[name]
        elif kind == "integer":
            found[name] = values.view(pa.uint32())
        elif kind == "hour":
            fields = dict(zip(HOUR_FIELDS, _hours(values), strict=True))
            found |= {_HOUR: values, **(fields if features else {})}
        elif values.null_count:
            raise _WrongValueError("an id is missing")
    return found


def _labels(values: Any) -> Any:
    if values.null_count or pc.max(values).as_py() > 1:
        raise _WrongValueError("a label is not 0 or 1")
    return values.cast(pa.int8())


def _hexadecimal(values: Any) -> Any:
    known = values.drop_null()
    ends = np.frombuffer(known.buffers()[1], np.int32, len(known) + 1, 4 * known.offset)
    if (np.diff(ends) != 8).any():
        raise _WrongValueError("a category has not eight digits")
    digits = np.frombuffer(known.buffers()[2], np.uint8)[ends[0] : ends[-1]]
    parts = _BYTE_OF_DIGITS[digits.view("<u2")]
    if len(parts) and parts.max() > 255:
        raise _WrongValueError("a category has a digit that is not hexadecimal")
    numbers = parts.astype(np.uint8).view(">u4").astype(np.uint32)
    if not values.null_count:
        return pa.array(numbers)
    missing = values.is_null().to_numpy(zero_copy_only=False)
    everywhere = np.zeros(len(values), dtype=np.uint32)
    everywhere[~missing] = numbers
    return pa.array(everywhere, mask=missing)


def _hours(values: Any) -> tuple[Any, Any]:
    encoded = values.dictionary_encode()
    moments = [hour_and_weekday(f"{hour:08d}") for hour in encoded.dictionary.to_pylist()]
    known = [moment for moment in moments if moment is not None]
    if values.null_count or len(known) < len(moments):
        raise _WrongValueError("an hour is not YYMMDDHH")
    return tuple(pa.array(part, pa.uint32()).take(encoded.indices) for part in zip(*known, strict=True))


def _name_the_line(layout: Layout, path: Path, block: Block, error: Exception) -> NoReturn:
    lines = block.text.split(b"\n")[: block.lines]
    for number, line in enumerate(lines, block.first_line):
        complaint = layout.complaint(line.decode(errors="replace").removesuffix("\r"))
        if complaint is not None:
            cut = block.unfinished and number == block.first_line + len(lines) - 1
            hint = " (and the line has no end: the file seems to be cut off)" if cut else ""
            raise DataError(f"{path}: line {number}: {complaint}{hint}") from error
    last = block.first_line + block.lines - 1
    raise DataError(f"{path}: lines {block.first_line} to {last} cannot be read ({error})") from error


def _repeated_id_is_error(path: Path, ids: npt.NDArray[np.uint64]) -> None:
    in_order = np.sort(ids)
    repeats = in_order[1:] == in_order[:-1]
    if repeats.any():
        example = in_order[int(np.argmax(repeats))]
        first, second = np.flatnonzero(ids == example)[:2] + 2  # the header is line 1
        raise DataError(
            f"{path}: id {example} stands in line {first} and in line {second}; "
            f"{int(repeats.sum())} lines repeat an id, and an id must be unique"
        )
