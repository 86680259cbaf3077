"""Repeated releases: the same labels go through the vault many times, and no two releases may have noise in common.

One release says little about a single record, and nothing about the key that its noise came from. Many releases of the
same labels do: a record without noise never varies, and a key that is used twice gives the same noise twice. The labels
are made up, so no budget is spent; the code that draws, stores and reads the noise is the vault's own. One release is
handed over too, and the files are compared with the vault.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.audit.folder import new_folder
from tpsl.handover.giving import hand_over, handed_problems
from tpsl.mechanisms import Mechanism, secure_words
from tpsl.progress import Progress, no_progress
from tpsl.vault import Vault
from tpsl.vault.cost import Planned
from tpsl.vault.noise_tests import (
    LEVEL,
    Expected,
    Neighbours,
    Rates,
    Tested,
    accusations,
    agreement,
    at_least,
    surprise,
)

_FEWEST, _MOST = 64, 512
"""Releases: enough of them that noise which never varies is rare, but not more than this."""
_RARE = 1e-3
_RECORDS = 20_000
_OUTCOMES, _COORDINATES = 1 << 20, 1 << 25
"""Over all releases, this many records and coordinates are drawn at most."""


@dataclass(frozen=True)
class ReleasesResult:
    """What many releases of the same made-up labels have shown."""

    passed: bool
    releases: int
    records: int
    draws: int
    mechanism: str
    never_varied: int
    """Records whose noise was the same in all draws."""
    accusations: tuple[str, ...]
    """What sound code shows with probability `LEVEL` at most, a sentence each."""


def repeat_releases(
    mechanism: Mechanism,
    folder: Path,
    *,
    draws: int = 1,
    progress: Progress = no_progress,
) -> ReleasesResult:
    """Release made-up labels again and again, in copies of one vault in a new folder, and test what comes out.

    Guarantee: a mechanism that draws independent noise from its table is accused with probability at most
    `LEVEL`; what is handed over is compared exactly.
    """
    new_folder(folder)
    expected = Expected(mechanism)
    releases, records = _plan(expected, draws)
    labels = (np.argsort(secure_words().words(records)) % mechanism.classes).astype(np.int64)
    ids = np.arange(records)
    original = folder / "original"
    Vault.create(original, classes=mechanism.classes, batches=[(ids, labels, None)], apart="made-up labels").close()

    handed: list[str] = []

    def drawn() -> Iterator[npt.NDArray[Any]]:
        for number in range(releases):
            copy = Path(shutil.copytree(original, folder / "copy"))
            with Vault.open(copy) as vault:
                vault.release(mechanism, draws=draws)
                if number == 0:
                    hand_over(vault, Planned(mechanism, draws), folder / "handed")
                    handed.extend(handed_problems(vault, folder / "handed"))
                yield from vault.noisy_labels(mechanism, ids, draws=draws).draws
            shutil.rmtree(copy)
            progress(number + 1, releases, f"releasing {records:,} made-up labels")

    tested, constant = examine_draws(expected, labels, drawn(), f"{releases} releases of {records:,} made-up labels")
    found = (*handed, *accusations(tested, LEVEL))
    return ReleasesResult(not found, releases, records, draws, str(mechanism), constant, found)


def examine_draws(
    expected: Expected, labels: npt.NDArray[np.int64], draws: Iterable[npt.NDArray[Any]], place: str
) -> tuple[list[Tested], int]:
    """Test draws for the same labels against the table and each other; return also how many records never varied."""
    rates, neighbours, bits = Rates(expected), Neighbours(expected), []
    for outcomes in draws:
        rates.take(labels, outcomes)
        bits.append(expected.bits(labels, outcomes))
        neighbours.take(bits[-1], labels)
    of_draws, own = np.stack(bits) == 1, expected.bit[labels]
    constant = int((of_draws.all(axis=0) | ~of_draws.any(axis=0)).sum())
    tested = [
        rates.tested(place),
        neighbours.tested(place),
        _never_varied(constant, len(of_draws), own, place),
        most_alike(of_draws, float(agreement(own, own).mean()), place),
    ]
    return tested, constant


def _plan(expected: Expected, draws: int) -> tuple[int, int]:
    """Return how many releases of how many records: the nearer the noise is to none, the more releases of fewer."""
    surest = float(max(expected.bit.max(), 1.0 - expected.bit.min()))
    needed = math.log(_RARE) / math.log(surest) / draws if surest < 1.0 else _MOST
    releases = min(max(math.ceil(needed), _FEWEST), _MOST)
    drawn = releases * draws
    coordinates = drawn * math.prod(expected.mechanism.outcome_shape)
    return releases, max(100, min(_RECORDS, _OUTCOMES // drawn, _COORDINATES // coordinates))


def _never_varied(found: int, draws: int, own: npt.NDArray[np.float64], place: str) -> Tested:
    """Return how surprising it is that `found` records have the same own bit in all draws; `own`: how often it is 1."""
    records, probability = len(own), float((own**draws + (1.0 - own) ** draws).mean())
    sentence = (
        f"{place}: {found:,} records have noise that never varies, where {probability * records:.2g} are expected: "
        "their labels are released without noise, or always with the same"
    )
    return Tested(sentence, float(at_least(found, records, probability)), 1)


def most_alike(of_draws: npt.NDArray[np.bool_], same: float, place: str) -> Tested:
    """Return the two draws whose bits agree in the most surprising number of records; `same` is the expected share."""
    draws, records = of_draws.shape
    signs = np.where(of_draws, np.float32(1), np.float32(-1))  # sums of so few are exact
    agreed = ((signs @ signs.T).round().astype(np.int64) + records) // 2
    one, other = np.triu_indices(draws, 1)
    found = surprise(agreed[one, other], records, same)
    worst = int(found.argmin())
    sentence = (
        f"{place}: two have noise in common, {agreed[one[worst], other[worst]]:,} records of the same kind where "
        f"{same * records:,.0f} are expected: the key of the noise is not new each time"
    )
    return Tested(sentence, float(found[worst]), len(found))
