"""The label party's check of a hand-over: is what lies in the folder what the vault has released, and nothing else?

The card and the digests in it say only that a file is the one that was written. Whether the program wrote noisy labels
or true ones, only the vault can tell: it has the outcomes that were drawn.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from tpsl.handover.card import Card, CardError
from tpsl.handover.labels_file import HandedOver, read_handed_over
from tpsl.tables import DataError
from tpsl.vault import Vault, VaultError
from tpsl.vault.cost import Planned


def handed_problems(vault: Vault, folder: Path) -> list[str]:
    """Return a sentence for each way in which a hand-over differs from what the vault has released; none if it is that.

    Compared exactly: the form of the file, which has no room for anything but ids and outcomes, the order of the
    records, the outcome of each of them under the mechanism of the card, the ledger's head, and what was spent.
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
