"""What records have spent over several vaults: the sum that no single ledger knows.

Records are the same if their ids are. The sum is made for each record and is exact: vaults that share some records do
not add what they spent on others, and a release that is in a vault and in a copy of it counts once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tpsl.vault.ledger import Entry
from tpsl.vault.totals import LedgerTotal, total_of
from tpsl.vault.vault import Vault

_IDS_AT_ONCE = 1 << 22
_Way = Mapping[str, Entry]
"""The releases that a record was part of, by the hash of their entry."""


@dataclass(frozen=True)
class VaultSum:
    """What the records of a vault have spent over several vaults, and each vault's part in it."""

    total: LedgerTotal
    parts: Mapping[Path, LedgerTotal]
    """What each vault has spent on them; vaults without a release of them that no earlier one has are left out."""


@dataclass(frozen=True)
class _Holdings:
    """One vault: how its records, by position, were released."""

    path: Path
    key: tuple[str, ...]
    """Equal for vaults that hold the same records in the same order."""
    way_of: npt.NDArray[np.integer]
    ways: Sequence[_Way]


def sums_over(vaults: Sequence[Path]) -> dict[Path, VaultSum]:
    """Return for each vault what its records have spent over all of these vaults; a path without one is left out."""
    held = []
    for path in filter(Vault.exists, vaults):
        with Vault.open(path) as vault:
            key, way_of, histories = vault.holdings()
            ways = [{entry.hash: entry for entry in history} for history in histories]
            held.append(_Holdings(path, key, way_of, ways))
    by_key: dict[tuple[str, ...], VaultSum] = {}
    for holdings in held:
        if holdings.key not in by_key:
            by_key[holdings.key] = _sum(holdings, held)
    return {holdings.path: by_key[holdings.key] for holdings in held}


def _sum(own: _Holdings, held: Sequence[_Holdings]) -> VaultSum:
    """Find the ways in which the records of this vault were released over all vaults, and total each of them."""
    way_of, ways = np.zeros(len(own.way_of), np.int64), list[_Way]([{}])
    parts: dict[Path, LedgerTotal] = {}
    for other in held:
        column = other.way_of.astype(np.int64) if other.key == own.key else _matched(own, other)
        theirs: list[_Way] = [{}, *other.ways]  # the first is that of a record which this vault does not know
        counts = np.bincount(column + 1, minlength=len(theirs)).tolist()
        seen = {hash for way in ways for hash in way}
        if any(count and way.keys() - seen for way, count in zip(theirs, counts, strict=True)):
            parts[other.path] = _largest(theirs, counts)
        pairs, way_of = np.unique(way_of * len(theirs) + column + 1, return_inverse=True)
        ways = [{**ways[pair // len(theirs)], **theirs[pair % len(theirs)]} for pair in pairs.tolist()]
    return VaultSum(_largest(ways, np.bincount(way_of, minlength=len(ways)).tolist()), parts)


def _largest(ways: Sequence[_Way], counts: Sequence[int]) -> LedgerTotal:
    """The most that any record has spent, over the ways that occur."""
    found = LedgerTotal()
    for way, count in zip(ways, counts, strict=True):
        if count:
            found = found.joined(total_of(way.values(), count))
    return found


def _matched(own: _Holdings, other: _Holdings) -> npt.NDArray[np.int64]:
    """For each record of one vault, how another released it; -1 where that does not know it.

    Vaults may have grown since they were looked at: records that came later are those of neither.
    """
    records = len(own.way_of)
    column = np.full(records, -1, np.int64)
    with Vault.open(own.path) as vault, Vault.open(other.path) as asked:
        for start in range(0, records, _IDS_AT_ONCE):
            positions = asked.positions(vault.ids_at(start, min(start + _IDS_AT_ONCE, records)))
            known = np.flatnonzero((positions >= 0) & (positions < len(other.way_of)))
            column[start + known] = other.way_of[positions[known]]
    return column
