"""The label party's side: what its vault has released, as a file with a card."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.handover.card import CARD, LABELS, Card, write_card
from tpsl.handover.labels_file import file_digest, write_labels
from tpsl.tables.columns import Place
from tpsl.tables.locations import Location
from tpsl.tables.reading import dialect_of, read_foreign
from tpsl.vault import Vault, VaultError
from tpsl.vault.canonical import ids_as_text
from tpsl.vault.cost import Planned


def hand_over(
    vault: Vault,
    released: Planned,
    folder: Path,
    certificates: Path | None = None,
    ids: Collection[str] | None = None,
    label: str | None = None,
) -> Card:
    """Write `labels.parquet` and `card.json`: all records that were released in this way, in the order of their ids.

    Nothing is drawn here, and no label leaves that is not released: what is written was stored and accounted for
    before. Writing it again, after a crash or for somebody else, costs nothing. ε is about labels, and says nothing of
    which records the vault has: with `ids` no other record is named in the file. `label` is what the labels are of.
    """
    vault.refuse_scratch()
    mechanism, draws, labels = released.mechanism, released.draws, folder / LABELS
    blocks = vault.released(mechanism, draws=draws, seed=released.seed)
    wanted = blocks if ids is None else _of_records(blocks, frozenset(ids))
    records, ids_digest = write_labels(labels, mechanism, draws, wanted)
    if not records:
        labels.unlink()
        raise VaultError(f"the vault {vault.path} has released nothing with {mechanism}: there is nothing to hand over")
    digests = ids_digest, file_digest(labels), vault.head()
    card = Card(mechanism, draws, released.private, vault.total(None), records, *digests, label)
    write_card(card, folder / CARD, certificates)
    return card


def ids_of_table(path: Location, column: str, most: int) -> list[str]:
    """Return the ids in a CSV or Parquet table, as the vault writes them; more than `most` are a `VaultError`."""
    found: list[str] = []
    for block in read_foreign(path, [column], dialect_of(path)):
        if len(found) + block.rows > most:
            raise VaultError(f"{path}: lists more records than the {most:,} of the vault")
        found += ids_as_text(block.columns[column], place=Place.of(block, column)).to_list()
    return found


def _of_records(
    blocks: Iterator[tuple[list[str], npt.NDArray[Any]]], wanted: frozenset[str]
) -> Iterator[tuple[list[str], npt.NDArray[Any]]]:
    """Yield what the blocks have of the wanted records."""
    for ids, outcomes in blocks:
        here = np.flatnonzero([id in wanted for id in ids])
        if here.size:
            yield [ids[place] for place in here.tolist()], outcomes[:, here]
