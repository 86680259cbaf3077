"""Rows of the input on their way into a vault: checked, in canonical form, and with the place where each stands."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tpsl.vault.blocks import Block
from tpsl.vault.canonical import ids_as_text, labels_as_integers
from tpsl.vault.errors import VaultError
from tpsl.vault.tables import Batch, LabelTable

_ROWS = 1 << 19


class Stretch(NamedTuple):
    """Consecutive rows of one source: its name, the number of the first row from 1, and how many there are."""

    source: str
    first: int
    rows: int


@dataclass(frozen=True)
class Portion:
    """Records, and the stretches of the input that they are."""

    records: Block
    stretches: tuple[Stretch, ...]


def place_in(stretches: Iterable[Stretch], at: int) -> tuple[str, int]:
    """The source and the row of the record with this number, from 0, in some stretches."""
    for stretch in stretches:
        if at < stretch.rows:
            return stretch.source, stretch.first + at
        at -= stretch.rows
    raise AssertionError("a record that is in none of the stretches")


def portions_of(batches: Iterable[Batch], classes: int, source: str = "the input") -> Iterator[Portion]:
    """All batches in portions; what cannot be read is a `VaultError` that names the source and the row."""
    row = 1
    if isinstance(batches, LabelTable):
        batches.check_class_values(classes)
        source = str(batches.path)
    for ids, labels, units in batches:
        if len(ids) != len(labels) or (units is not None and len(ids) != len(units)):
            raise VaultError(f"{source}: a batch has {len(ids)} ids but another number of labels or units")
        for start in range(0, len(ids), _ROWS):
            part = slice(start, start + _ROWS)
            records = Block(
                ids_as_text(ids[part], first_row=row, source=source),
                labels_as_integers(labels[part], classes, first_row=row, source=source),
                None if units is None else ids_as_text(units[part], what="unit", first_row=row, source=source),
            )
            yield Portion(records, (Stretch(source, row, len(records)),))
            row += len(records)


def gathered(portions: Iterable[Portion], rows: int) -> Iterator[Portion]:
    """The same records in portions of at least this number of rows, but for the last, and where units begin or end."""
    waiting, count = list[Portion](), 0
    for portion in portions:
        if waiting and (waiting[0].records.units is None) != (portion.records.units is None):
            yield _joined(waiting)
            waiting, count = [], 0
        waiting.append(portion)
        count += len(portion.records)
        if count >= rows:
            yield _joined(waiting)
            waiting, count = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(portions: list[Portion]) -> Portion:
    stretches = tuple(stretch for portion in portions for stretch in portion.stretches)
    return Portion(Block.joined([portion.records for portion in portions]), stretches)
