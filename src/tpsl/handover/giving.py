"""The label party's side: what its vault has released, as a file with a card."""

from __future__ import annotations

from pathlib import Path

from tpsl.handover.card import CARD, LABELS, Card, write_card
from tpsl.handover.labels_file import file_digest, write_labels
from tpsl.vault import Vault, VaultError
from tpsl.vault.planned import Planned


def hand_over(vault: Vault, released: Planned, folder: Path, certificates: Path | None = None) -> Card:
    """Write `labels.parquet` and `card.json`: all records that were released in this way, in the order of their ids.

    Nothing is drawn here, and no label leaves that is not released: what is written was stored and accounted for
    before. Writing it again, after a crash or for somebody else, costs nothing.
    """
    mechanism, draws, labels = released.mechanism, released.draws, folder / LABELS
    blocks = vault.released(mechanism, draws=draws, seed=released.seed)
    records, ids_digest = write_labels(labels, mechanism, draws, blocks)
    if not records:
        labels.unlink()
        raise VaultError(f"the vault {vault.path} has released nothing with {mechanism}: there is nothing to hand over")
    digests = ids_digest, file_digest(labels), vault.head()
    card = Card(mechanism, draws, released.private, vault.total(None), records, *digests)
    write_card(card, folder / CARD, certificates)
    return card
