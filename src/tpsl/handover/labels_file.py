"""Handed-over labels as a Parquet file: a column of record ids, and one of outcomes for each draw.

An outcome is a number, or a list of k numbers where each class has a coordinate of its own. The file is written and
read in blocks, a row group each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.handover.card import CARD, LABELS, Card, CardError, read_card
from tpsl.mechanisms import Mechanism
from tpsl.tables.pages import MOST_LISTED
from tpsl.tables.reading import foreign_schema, new_parquet, read_foreign
from tpsl.vault import NoisyLabels, VaultError
from tpsl.vault.received import received_labels
from tpsl.vault.texts import Texts

_ID, _OUTCOME = "id", "outcome"


@dataclass(frozen=True)
class HandedOver:
    """Noisy labels and the card that was checked against them."""

    card: Card
    path: Path
    ids: Any  # pa.Array of strings
    labels: NoisyLabels

    def of(self, ids: Any) -> NoisyLabels:
        """Return the noisy labels of these records, in their order; all of them must have been handed over."""
        places = pc.index_in(ids, value_set=self.ids)
        if places.null_count:
            first = ids.filter(places.is_null())[0]
            raise CardError(
                f"{self.path}: has no label of {places.null_count:,} of the {len(ids):,} training records "
                f"(the first is {first.as_py()!r})"
            )
        return self.labels.take(places.to_numpy())


def write_labels(
    path: Path, mechanism: Mechanism, draws: int, blocks: Iterable[tuple[list[str], npt.NDArray[Any]]]
) -> tuple[int, str]:
    """Write (ids, outcomes `[draws, records, …]`) in blocks; return the number of records and the digest of ids."""
    records, digest, schema = 0, hashlib.sha256(), _schema(mechanism, draws)
    most = MOST_LISTED // mechanism.classes  # of lists of outcomes, a row group that readers take
    with new_parquet(path, schema) as writer:
        for ids, outcomes in blocks:
            columns = [pa.array(ids, pa.string()), *(_column(mechanism, draw) for draw in outcomes)]
            writer.write_table(pa.table(columns, schema=schema), row_group_size=min(len(ids), most))
            records += len(ids)
            digest.update(Texts.of(ids).to_bytes())
    return records, digest.hexdigest()


def read_handed_over(path: Path, classes: int, authority: Path | None = None) -> HandedOver:
    """Return handed-over labels, a file or its folder, if they are those that the card beside them speaks of.

    Everything in both is the other side's word. Checked are the card (`tpsl.handover.card`), that the file is the one
    that was signed, that it holds ids and outcomes and nothing else, types, numbers of records, that every outcome is
    one of the mechanism and every id there once; all of it in memory that the size of the file bounds.
    """
    path = path / LABELS if path.is_dir() else path
    card = read_card(path.parent / CARD, classes, authority)
    if not path.is_file():
        raise CardError(f"{path}: there is no such file")
    if file_digest(path) != card.labels_digest:
        raise CardError(f"{path}: is not the file that {CARD} beside it speaks of")
    ids, draws = _read(path, card)
    try:
        return HandedOver(card, path, ids, received_labels(card.mechanism, draws, card.private))
    except VaultError as error:
        raise CardError(f"{path}: {error}") from error


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path, card: Card) -> tuple[Any, list[npt.NDArray[Any]]]:
    """Return the ids and the outcomes of each draw."""
    schema, digest, ids = _schema(card.mechanism, card.draws), hashlib.sha256(), []
    draws: list[list[npt.NDArray[Any]]] = [[] for _ in range(card.draws)]
    for block in read_foreign(path, schema.names):
        for name, kind in zip(schema.names, schema.types, strict=True):
            column = block.columns[name]
            if column.type != kind or column.null_count:
                raise CardError(f"{path}: the column {name!r} is not {kind} without gaps")
        ids.append(block.columns[_ID])
        digest.update(Texts.of(ids[-1]).to_bytes())
        for found, name in zip(draws, schema.names[1:], strict=True):
            found.append(_outcomes(card.mechanism, block.columns[name]))
        if sum(map(len, ids)) > card.records:
            break
    if not foreign_schema(path).equals(schema, check_metadata=True):
        raise CardError(f"{path}: holds more than the columns {', '.join(schema.names)}")
    every = pa.concat_arrays(ids)
    if len(every) != card.records or digest.hexdigest() != card.ids_digest:
        raise CardError(f"{path}: has other records than {CARD} beside it states")
    if pc.count_distinct(every).as_py() != len(every):
        raise CardError(f"{path}: has a record twice")
    return every, [np.concatenate(parts) for parts in draws]


def _schema(mechanism: Mechanism, draws: int) -> Any:
    kind = pa.from_numpy_dtype(mechanism.outcome_dtype)
    if mechanism.outcome_shape:
        kind = pa.list_(pa.field("element", kind), mechanism.classes)
    outcomes = [(_OUTCOME if draw == 1 else f"{_OUTCOME}_{draw}", kind) for draw in range(1, draws + 1)]
    return pa.schema([(_ID, pa.string()), *outcomes])


def _column(mechanism: Mechanism, outcomes: npt.NDArray[Any]) -> Any:
    flat = pa.array(outcomes.reshape(-1), pa.from_numpy_dtype(mechanism.outcome_dtype))
    return pa.FixedSizeListArray.from_arrays(flat, mechanism.classes) if mechanism.outcome_shape else flat


def _outcomes(mechanism: Mechanism, column: Any) -> npt.NDArray[Any]:
    flat = column.flatten() if mechanism.outcome_shape else column
    found: npt.NDArray[Any] = flat.to_numpy(zero_copy_only=False)
    return found.reshape(len(column), *mechanism.outcome_shape)
