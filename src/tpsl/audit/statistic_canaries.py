"""Canaries in a statistic: the vault releases sums of vectors that a hostile feature party has chosen.

Each canary has a fair coin for its label and a coordinate of its own, in which its vector is as long as 62 bits allow:
the vault has to cut it to the bound. So a released number is noise, or noise plus the bound, and nothing is hidden by
other records. That is the worst that vectors can do. The labels are made up, so no budget is spent; the code that cuts,
sums, draws, stores and reads is the vault's own. Several releases, each in a vault of its own, show whether noise
repeats.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tpsl.attacks.auc_prediction import predicted_statistic_auc
from tpsl.audit.canaries import new_folder
from tpsl.audit.canary_bound import clopper_pearson_lower, epsilon_at_least, worth_guessing
from tpsl.audit.repeated_releases import most_alike
from tpsl.mechanisms import RandomWords, StatisticNoise, float_above, secure_words
from tpsl.progress import Progress, no_progress
from tpsl.vault import StatisticPlan, Vault
from tpsl.vault.noise_tests import LEVEL, Tested, accusations, at_least, statistic_noise_tests, surprise

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_FEWEST_RELEASES = 2
_MOST_WIDE, _MOST_NUMBERS = 2048, 1 << 18
"""The canaries of one release, and its numbers over all classes, at most."""
_ROWS_AT_ONCE = 256
_HUGE = 1 << 62


@dataclass(frozen=True)
class StatisticResult:
    """What was claimed of a statistic and what was found."""

    passed: bool
    claimed: float
    """The ε of one release."""
    delta: float
    lower_bound: float
    """ε is at least this, at the stated confidence; loose for Gaussian noise, whose ε holds for a δ alone."""
    rho: float | None
    """The ρ of one release; None for Laplace noise."""
    rho_lower_bound: float
    """ρ is at least this, at the stated confidence: a guess is right with probability `½ + √(ρ/8)` at most."""
    confidence: float
    releases: int
    canaries: int
    right: int
    """Coins that the likelihood ratio guesses right."""
    expected: float
    """The coins that it guesses right on average, by the formula for this noise."""
    noise: str
    accusations: tuple[str, ...]
    """What sound code shows with probability `LEVEL` at most, a sentence each."""


def audit_statistic(
    plan: StatisticPlan,
    classes: int,
    folder: Path,
    *,
    canaries: int = 20_000,
    confidence: float = 0.95,
    progress: Progress = no_progress,
) -> StatisticResult:
    """Release statistics of canaries with the noise and bound of a plan, in a new folder, guess their coins and judge.

    A seed of the plan is not used: releases with it would have their noise in common.

    Guarantee: a vault that cuts every vector to the bound and draws independent noise as the plan says is accused with
    probability at most `LEVEL`.
    """
    new_folder(folder)
    words, noise = secure_words(), plan.noise
    releases = max(_FEWEST_RELEASES, math.ceil(canaries / min(_MOST_WIDE, max(1, _MOST_NUMBERS // classes))))
    width = max(2, math.ceil(canaries / releases))
    found = []
    for number in range(releases):
        canaries_of_release = OneHotCanaries.draw(width, classes, words)
        wanted = StatisticPlan(noise, plan.bound, width)
        values = _released(wanted, classes, canaries_of_release.labels, folder / "vault")
        found.append(canaries_of_release.read(values, noise, plan.bound, words))
        progress(number + 1, releases, f"releasing a statistic of {width:,} canaries")
    evidence, right = (np.concatenate([getattr(read, name) for read in found]) for name in ("evidence", "right"))
    success = predicted_statistic_auc(noise, plan.bound, classes).likelier_class
    cost = noise.cost(plan.bound, classes)
    guessed = worth_guessing(evidence, confidence) if cost.delta == 0 else np.ones(len(evidence), np.bool_)
    accused = tuple(accusations(examine_releases(found, noise, success, words), LEVEL))
    return StatisticResult(
        passed=not accused,
        claimed=cost.epsilon,
        delta=cost.delta,
        lower_bound=epsilon_at_least(int(right[guessed].sum()), int(guessed.sum()), cost.delta, confidence),
        rho=None if cost.rho is None else float_above(cost.rho),
        rho_lower_bound=2 * max(0.0, 2 * clopper_pearson_lower(int(right.sum()), len(right), confidence) - 1) ** 2,
        confidence=confidence,
        releases=releases,
        canaries=len(right),
        right=int(right.sum()),
        expected=success * len(right),
        noise=str(noise),
        accusations=accused,
    )


@dataclass(frozen=True)
class ReadRelease:
    """What one release says about its canaries."""

    evidence: Floats
    """The logarithm of the likelihood ratio of the two classes of each canary's coin."""
    right: npt.NDArray[np.bool_]
    added: Integers
    """The noise: `[vectors, width]`."""


@dataclass(frozen=True)
class OneHotCanaries:
    """Fair coins, each between two classes of its own: the label of canary i is `sides[i, coins[i]]`."""

    coins: Integers
    sides: Integers
    classes: int

    @classmethod
    def draw(cls, width: int, classes: int, words: RandomWords) -> OneHotCanaries:
        """Toss a coin for each canary; with k classes all classes have their turn."""
        coins = (words.words(width) & np.uint64(1)).astype(np.int64)
        first = np.zeros(width, np.int64) if classes == 2 else np.arange(width) % classes
        apart = 1 + (words.words(width) % np.uint64(classes - 1)).astype(np.int64)
        return cls(coins, np.stack([first, (first + apart) % classes], axis=1), classes)

    @property
    def labels(self) -> Integers:
        """The labels."""
        return self.sides[np.arange(len(self.coins)), self.coins]

    def sums(self, bound: int) -> Integers:
        """What is released of them, without the noise: `[vectors, width]`."""
        counted = np.arange(self.classes) if self.classes > 2 else np.ones(1, np.int64)
        sums: Integers = bound * (self.labels == counted[:, None]).astype(np.int64)
        return sums

    def read(self, values: Integers, noise: StatisticNoise, bound: int, words: RandomWords) -> ReadRelease:
        """Guess the coins from what was released; a coin decides where nothing speaks for either side."""
        ratio, canary = noise.log_ratio(values, bound), np.arange(len(self.coins))
        evidence = ratio[0]
        if self.classes > 2:
            evidence = ratio[self.sides[:, 1], canary] - ratio[self.sides[:, 0], canary]
        tossed = words.words(len(evidence)) & np.uint64(1)
        guess = np.where(evidence == 0, tossed, evidence > 0)
        return ReadRelease(evidence, guess == self.coins, values - self.sums(bound))


def _released(plan: StatisticPlan, classes: int, labels: Integers, path: Path) -> Integers:
    """Return what a new vault releases of canaries with vectors that are far too long."""
    ids = np.arange(len(labels))

    def vectors() -> Iterator[Integers]:
        for start in range(0, len(ids), _ROWS_AT_ONCE):
            rows = ids[start : start + _ROWS_AT_ONCE]
            block = np.zeros((len(rows), plan.width), np.int64)
            block[rows - start, rows] = _HUGE
            yield block

    with Vault.create(path, classes=classes, batches=[(ids, labels, None)], scratch=True) as vault:
        values = vault.release_statistic(plan, ids, vectors()).values
    shutil.rmtree(path)
    return values


def examine_releases(
    found: Sequence[ReadRelease], noise: StatisticNoise, success: float, words: RandomWords
) -> list[Tested]:
    """Test the guesses and the noise of all releases; a guess is right with probability `success`."""
    right = sum(int(read.right.sum()) for read in found)
    guesses = _guessed(right, sum(len(read.right) for read in found), success, noise)
    return [guesses, *_noise_tests(noise, np.stack([read.added for read in found]), words)]


def _guessed(right: int, canaries: int, success: float, noise: StatisticNoise) -> Tested:
    sentence = (
        f"{right:,} of {canaries:,} coins in a statistic were guessed right, where {noise} allows "
        f"{success * canaries:,.0f}: a label moves the sum by more than the bound, or there is less noise"
    )
    return Tested(sentence, float(at_least(right, canaries, success)), 1)


def _noise_tests(noise: StatisticNoise, added: Integers, words: RandomWords) -> list[Tested]:
    """Test the noise of releases, `[releases, vectors, width]`: its size, its centre, and that none says another."""
    place = f"{len(added)} releases of a statistic"
    zero = (words.words(added.size) & np.uint64(1)).astype(np.bool_).reshape(added.shape)
    above = np.where(added == 0, zero, added > 0)  # a fair coin
    half = above.shape[2] // 2
    pairs = [above[:, :, : 2 * half : 2] == above[:, :, 1 : 2 * half : 2]]
    if above.shape[1] > 1:
        half = above.shape[1] // 2
        pairs.append(above[:, : 2 * half : 2] == above[:, 1 : 2 * half : 2])
    alike = [(int(equal.sum()), equal.size) for equal in pairs]
    found = [float(surprise(count, trials, 0.5)) for count, trials in alike]
    worst = int(np.argmin(found))
    sentence = (
        f"{place}: the noise of neighbouring numbers is not independent: {alike[worst][0]:,} of {alike[worst][1]:,} "
        f"pairs are on the same side of 0, where half of them are expected"
    )
    return [
        *statistic_noise_tests(noise, added, place),
        Tested(sentence, found[worst], len(found)),
        most_alike(above.reshape(len(added), -1), 0.5, place),
    ]
