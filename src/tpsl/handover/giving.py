"""The label party's side: what its vault has released, as a file with a card, and the check of such a file."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from tpsl.handover.card import CARD, LABELS, Card, CardError, write_card
from tpsl.handover.labels_file import HandedOver, file_digest, read_handed_over, write_labels
from tpsl.tables import DataError
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


def handed_problems(vault: Vault, folder: Path) -> list[str]:
    """Return a sentence for each way in which a hand-over differs from what the vault has released; none if it is that.

    Compared exactly: the form of the file, which has no room for anything but ids and outcomes, the order of the
    records, the outcome of each of them under the mechanism of the card, the ledger's head, and what was spent. The
    card says only that the file is the one that was written; whether the program wrote noisy labels or true ones, only
    the vault can tell: it has the outcomes that were drawn.
    """
    try:
        handed = read_handed_over(folder, vault.classes)
        return [f"{handed.path.parent}: {problem}" for problem in (*_of_card(vault, handed.card), *_of(vault, handed))]
    except (CardError, DataError) as error:
        return [str(error)]


def _of_card(vault: Vault, card: Card) -> list[str]:
    try:
        since = vault.entries_since(card.ledger_head)
    except VaultError as error:
        return [str(error)]
    if since is None:
        return [f"its card is of another vault: the ledger has no entry with the hash {card.ledger_head}"]
    stated, now = ((spent.epsilon, spent.delta, not spent.private) for spent in (card.spent, vault.total(None)))
    if any(one > other for one, other in zip(stated, now, strict=True)) or (since == 0 and stated != now):
        return [f"its card states that records have spent ε = {stated[0]!r}, and by the ledger it is {now[0]!r}"]
    return []


def _of(vault: Vault, handed: HandedOver) -> list[str]:
    in_order = not pc.any(pc.greater(handed.ids[:-1], handed.ids[1:])).as_py()
    out_of_order = [] if in_order else ["its records are not in the order of their ids, which may tell labels"]
    releases = _releases(vault, handed.card)
    if not releases:
        return [*out_of_order, f"the vault has released nothing with {handed.card.mechanism} in this way"]
    return out_of_order + min((_outcomes(vault, handed, release) for release in releases), key=len)


def _releases(vault: Vault, card: Card) -> list[Planned]:
    """Return what the vault has released as the card says: one way, or one for each seed, which no card tells."""
    made = {entry.series for entry in vault.ledger().entries if entry.kind == "released"}
    planned = [Planned(card.mechanism, card.draws, seed) for seed in {series.seed for series in made}]
    return [release for release in planned if release.series in made and release.private == card.private]


def _outcomes(vault: Vault, handed: HandedOver, release: Planned) -> list[str]:
    try:
        stored = vault.noisy_labels(release.mechanism, handed.ids, draws=release.draws, seed=release.seed)
    except VaultError as error:
        return [str(error)]
    differ = np.zeros(len(stored), np.bool_)
    for found, drawn in zip(handed.labels.draws, stored.draws, strict=True):
        differ |= (found != drawn).reshape(len(stored), -1).any(axis=1)
    if not differ.any():
        return []
    first = handed.ids[int(differ.argmax())].as_py()
    return [
        f"the outcomes of {int(differ.sum()):,} of {len(stored):,} records are not those that the vault has released "
        f"(the first is {first!r})"
    ]
