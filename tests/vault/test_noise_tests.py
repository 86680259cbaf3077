"""The tests of noise: their tails are exact, sound noise of every kind passes, and broken noise is told in a sentence.

The first part is about the tests, the second about vaults (`verify`), the third about statistics.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom
from tests.vault_labels import true_labels

from tpsl.mechanisms import (
    DiscreteGaussian,
    DiscreteLaplace,
    Mechanism,
    NoNoise,
    RandomizedResponse,
    RandomWords,
    StatisticNoise,
    TableMechanism,
    gaussian,
    identity,
    integer_weights,
    laplace,
    optimized_unary,
    randomized_response,
    seeded_words,
    subset_selection,
    table_mechanism,
)
from tpsl.vault import ReleasePolicy, StatisticPlan, Vault, VaultError, noise_tests
from tpsl.vault.blocks import CHUNK
from tpsl.vault.noise_tests import (
    LEVEL,
    Agreement,
    Expected,
    Neighbours,
    Rates,
    accusations,
    at_least,
    level_at,
    statistic_noise_tests,
    surprise,
)

RECORDS = 4000
UNEVEN = integer_weights([[0.6, 0.2, 0.2], [0.3, 0.5, 0.2], [0.3, 0.3, 0.4]], 1.0)
"""A user's table: no two labels are treated alike."""

MECHANISMS = [
    randomized_response(1.0),
    laplace(1.0),
    gaussian(1.0, 1e-5),
    optimized_unary(1.0, 2),
    identity(),
    randomized_response(2.0, 5),
    laplace(2.0, 5),
    gaussian(1.0, 1e-5, 5),
    optimized_unary(1.0, 5),
    subset_selection(0.5, 10),
    identity(5),
    table_mechanism("uneven", integer_weights([[0.5, 0.3, 0.2], [0.25, 0.35, 0.4]], 1.0)),
    table_mechanism("uneven", integer_weights([[0.4, 0.3, 0.3], [0.3, 0.4, 0.3], [0.2, 0.2, 0.6]], 1.0)),
]


COUNTS = [(0, 0), (0, 10), (3, 10), (10, 10), (11, 10), (700, 1000), (-2, 5), (14_621, 20_000), (20_000, 20_000)]


@pytest.mark.parametrize(("count", "trials"), COUNTS)
@pytest.mark.parametrize("p", [0.0, 1e-9, 0.01, 0.3, 0.731, 0.9999, 1.0])
def test_tails_are_those_of_the_binomial_distribution(count: int, trials: int, p: float) -> None:
    assert float(at_least(count, trials, p)) == pytest.approx(float(binom.sf(count - 1, trials, p)), rel=1e-9, abs=0)
    both = 2 * min(binom.sf(count - 1, trials, p), binom.cdf(count, trials, p))
    assert float(surprise(count, trials, p)) == pytest.approx(min(1.0, both), rel=1e-9, abs=1e-300)


def test_an_allowance_covers_whatever_was_exchanged() -> None:
    rng = np.random.default_rng(0)
    kept = rng.random(2000) < 0.7
    # The worst choice: 120 records that were not kept leave the row, and 120 that were come in.
    worst = np.concatenate([kept[kept], kept[~kept][120:], np.ones(120, np.bool_)])
    assert float(surprise(worst.sum(), len(worst), 0.7)) < 1e-6
    assert float(surprise(worst.sum(), len(worst), 0.7, allowance=120)) > 0.05


@pytest.mark.parametrize("exchanged", [0, 3])
@pytest.mark.parametrize(("low", "high", "trials"), [(0.3, 0.9, 30), (0.5, 0.52, 40), (1e-4, 0.2, 20), (0.0, 1.0, 10)])
def test_trials_of_different_probabilities_are_not_more_surprising_than_they_should_be(
    low: float, high: float, trials: int, exchanged: int
) -> None:
    """Exactly: the distribution of their sum is convolved, and an adversary exchanges the worst trials for others."""
    probabilities = np.linspace(low, high, trials)
    sums = np.ones(1)
    for p in probabilities:
        sums = np.convolve(sums, [1 - p, p])
    for new in {low, high}:
        for gone in (slice(0, exchanged), slice(trials - exchanged, trials)):
            mean = (probabilities.sum() - probabilities[gone].sum() + exchanged * new) / trials
            for direction in (-exchanged, exchanged):
                counts = np.clip(np.arange(trials + 1) + direction, 0, trials)
                found = surprise(counts, trials, mean, exchanged, high - low)
                for p_value in np.unique(found):
                    assert sums[found <= p_value].sum() <= p_value * (1 + 1e-9)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: f"{m.name}-{m.classes}")
def test_what_a_mechanism_draws_is_expected(mechanism: Mechanism) -> None:
    labels = np.random.default_rng(1).integers(0, mechanism.classes, 6000)
    expected = Expected(mechanism)
    assert expected.probabilities.sum(axis=1) == pytest.approx(1.0)
    rates, neighbours, agreement = Rates(expected), Neighbours(expected), Agreement(expected, expected)
    bits = []
    for draw in range(4):
        outcomes = mechanism.release(labels, seeded_words(3, draw)).outcomes
        by_label = mechanism.classes == 2 or isinstance(mechanism, TableMechanism)
        assert expected.counts(labels, outcomes).sum() == len(labels) * (1 if by_label else mechanism.classes)
        rates.take(labels, outcomes)
        bits.append(expected.bits(labels, outcomes))
        neighbours.take(bits[-1], labels)
        assert surprise(np.bincount(labels, bits[-1]), np.bincount(labels), expected.bit).min() > 1e-6
    agreement.take(np.concatenate(bits[:2]), np.concatenate(bits[2:]), np.tile(labels, 2))
    for tested in (rates.tested("here"), neighbours.tested("here"), agreement.tested("here")):
        assert tested.p_value * tested.tests > 1e-6
        assert tested.sentence.startswith("here: ")


@pytest.mark.parametrize("mechanism", MECHANISMS[5:10], ids=lambda m: m.name)
def test_counts_of_many_classes_are_those_of_a_loop(mechanism: Mechanism) -> None:
    k = mechanism.classes
    labels = np.random.default_rng(2).integers(0, k, 300)
    outcomes = mechanism.release(labels, seeded_words(4)).outcomes
    expected = Expected(mechanism)
    bits = outcomes if mechanism.outcome_shape else np.eye(k, dtype=np.int64)[outcomes]
    found = np.zeros(expected.probabilities.shape, np.int64)
    for label, row in zip(labels, bits, strict=True):
        for column in range(k):
            found[column if column == label else k + column, expected._bin[row[column]]] += 1
    assert (expected.counts(labels, outcomes) == found).all()


def test_each_lag_counts_every_record_in_at_most_one_pair() -> None:
    neighbours = Neighbours(Expected(randomized_response(1.0, 3)))
    neighbours.take(np.zeros(100, np.int8), np.arange(100) % 3)
    for lag, pairs in enumerate(neighbours._pairs, 1):
        assert pairs.sum() == 100 - lag
        assert pairs.max() <= 50
    assert (neighbours._agreed == neighbours._pairs).all()


@pytest.mark.parametrize("mechanism", MECHANISMS[-2:], ids=lambda m: f"{m.name}-{m.classes}")
def test_faults_in_the_noise_of_a_table_of_a_users_own_are_found(mechanism: Mechanism) -> None:
    labels = np.random.default_rng(6).integers(0, mechanism.classes, 20_000)
    expected = Expected(mechanism)
    words = seeded_words(7).words(len(labels))
    sound, shared = (mechanism._draw(labels, drawn) for drawn in (words, words[: len(words) // 2].repeat(2)))
    rates, neighbours, agreement = Rates(expected), Neighbours(expected), Agreement(expected, expected)
    rates.take(labels, np.where(np.arange(len(labels)) % 20 == 0, 0, sound))  # one in twenty is always outcome 0
    neighbours.take(expected.bits(labels, shared), labels)
    agreement.take(expected.bits(labels, sound), expected.bits(labels, sound), labels)
    for tested in (rates.tested("here"), neighbours.tested("here"), agreement.tested("here")):
        assert tested.p_value * tested.tests < 1e-6, tested.sentence


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: f"{m.name}-{m.classes}")
def test_the_same_outcomes_have_the_same_bits(mechanism: Mechanism) -> None:
    labels = np.random.default_rng(6).integers(0, mechanism.classes, 2000)
    outcomes = mechanism.release(labels, seeded_words(7)).outcomes
    expected = Expected(mechanism)
    first = expected.bits(labels, outcomes)
    for again in (expected, Expected(mechanism)):
        assert (again.bits(labels, outcomes) == first).all()


def test_labels_of_different_own_bits_do_not_make_sound_neighbours_surprising() -> None:
    mechanism = table_mechanism("uneven", integer_weights([[0.8, 0.1, 0.1], [0.3, 0.3, 0.4], [0.2, 0.2, 0.6]], 2.0))
    expected, small = Expected(mechanism), 0
    assert np.ptp(expected.bit) > 0.2
    labels = np.sort(np.random.default_rng(1).integers(0, 3, 600))
    for seed in range(400):
        neighbours = Neighbours(expected)
        neighbours.take(expected.bits(labels, mechanism.release(labels, seeded_words(seed)).outcomes), labels)
        tested = neighbours.tested("here")
        small += tested.p_value * tested.tests < 0.05
    assert small <= int(binom.isf(1e-6, 400, 0.05))


def test_all_tests_in_the_life_of_a_vault_share_the_level() -> None:
    parts = [level_at(entries) for entries in range(1, 10_000)]
    assert 0.999 * LEVEL < sum(parts) <= LEVEL
    assert level_at(3) == pytest.approx(LEVEL / 12)


def released(folder: Path, *mechanisms: Mechanism, draws: int = 1, records: int = RECORDS, **named: Any) -> Vault:
    classes = mechanisms[0].classes
    labels = np.random.default_rng(0).integers(0, classes, records)
    vault = Vault.create(folder, classes=classes, batches=[(np.arange(records), labels, None)], apart="others")
    for mechanism in mechanisms:
        vault.release(mechanism, draws=draws, compose=True, **named)
    return vault


def patch_words(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    exact = RandomWords.words
    monkeypatch.setattr(RandomWords, "words", lambda self, count: change(exact(self, count)))


SOUND = [
    (randomized_response(1.0), 1),
    (randomized_response(1.0), 2),
    (laplace(0.5), 2),
    (gaussian(1.0, 1e-5), 1),
    (identity(), 1),
    (randomized_response(2.0, 10), 1),
    (laplace(2.0, 5), 2),
    (optimized_unary(1.0, 5), 1),
    (subset_selection(0.5, 10), 2),
    (table_mechanism("uneven", UNEVEN), 2),
]


@pytest.mark.parametrize(("mechanism", "draws"), SOUND, ids=lambda value: getattr(value, "name", value))
def test_a_vault_of_sound_noise_is_not_accused(folder: Path, mechanism: Mechanism, draws: int) -> None:
    with released(folder, mechanism, draws=draws) as vault:
        assert vault.verify() == []
        assert "one in a hundred" in vault.cannot_see()[0]


def test_releases_by_two_tables_of_a_user_are_not_accused_of_noise_in_common(folder: Path) -> None:
    rows = integer_weights([[0.5, 0.25, 0.25], [0.34, 0.33, 0.33]], 1.0)
    with released(folder, table_mechanism("one", rows), table_mechanism("other", rows), records=20_000) as vault:
        assert vault.verify() == []


def test_seeded_noise_that_repeats_by_design_is_not_accused(folder: Path) -> None:
    with released(folder, randomized_response(1.0), draws=1, seed=5) as vault:
        vault.release(randomized_response(1.0), draws=2, compose=True, seed=5)
        assert vault.verify() == []


@pytest.mark.parametrize("mechanism", [m for m, _ in SOUND if m.name != "none"], ids=lambda m: f"{m.name}-{m.classes}")
def test_noise_shared_by_neighbours_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch, mechanism: Mechanism
) -> None:
    width = int(np.prod(mechanism.outcome_shape))

    def shared(words: Any) -> Any:
        rows = words.reshape(-1, width)
        return np.repeat(rows[::2], 2, axis=0)[: len(rows)].ravel()

    patch_words(monkeypatch, shared)
    with released(folder, mechanism) as vault:
        problems = vault.verify()
    assert any("release 3: the noise of neighbouring records is not independent" in text for text in problems), problems


def test_the_same_noise_in_two_releases_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.urandom", lambda size: bytes(size))
    with released(folder, randomized_response(1.0), laplace(1.0)) as vault:
        problems = vault.verify()
    assert any("release 3 and release 4: two draws that should be independent" in text for text in problems), problems


def test_the_same_noise_in_every_chunk_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = RandomizedResponse._draw

    def repeating(self: RandomizedResponse, labels: Any, words: Any) -> Any:
        same = np.random.default_rng(7).integers(0, 1 << 64, len(words), dtype=np.uint64)
        return exact(self, labels, same)

    monkeypatch.setattr(RandomizedResponse, "_draw", repeating)
    with released(folder, randomized_response(1.0), records=CHUNK + 2000) as vault:
        problems = vault.verify()
    assert [text.split(":")[0] for text in problems] == ["release 3, chunk by chunk"]


def half_the_noise(
    mechanism: RandomizedResponse, labels: Any, words: Any, exact: Any = RandomizedResponse._draw
) -> Any:
    return exact(randomized_response(2 * mechanism.parameters["epsilon"]), labels, words)


def test_half_the_noise_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RandomizedResponse, "_draw", half_the_noise)
    with released(folder, randomized_response(1.0)) as vault:
        problem, *_ = vault.verify()
    assert problem.startswith("release 3: the noise is not that of discrete (ε = 1): of ")


@pytest.mark.parametrize("mechanism", [randomized_response(2.0, 5), laplace(2.0, 5), subset_selection(0.5, 10)])
def test_one_class_without_noise_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch, mechanism: Mechanism) -> None:
    exact = type(mechanism)._draw

    def lays_class_3_bare(self: Mechanism, labels: Any, words: Any) -> Any:
        drawn = np.array(exact(self, labels, words))
        if drawn.ndim == 1:
            return np.where(labels == 3, 3, drawn)
        drawn[labels == 3] = np.where(np.arange(self.classes) == 3, self.outcomes - 1, 0)
        return drawn

    monkeypatch.setattr(type(mechanism), "_draw", lays_class_3_bare)
    with released(folder, mechanism) as vault:
        problems = vault.verify()
    assert any("records of class 3" in text for text in problems), problems


def test_labels_changed_after_their_release_accuse_nobody(folder: Path) -> None:
    with released(folder, randomized_response(1.0), laplace(1.0, 2)) as vault:
        labels = true_labels(vault, np.arange(RECORDS))
        vault.add([(np.arange(800), 1 - labels[:800], None)])
        assert vault.verify() == []
        assert "800 labels were changed after their release" in vault.cannot_see()[1]


def test_a_small_vault_is_never_accused_by_chance_alone(folder: Path) -> None:
    """The tests are exact: also where a normal approximation would be far off, nobody is accused."""
    for number in range(20):
        with released(folder / str(number), randomized_response(4.0), records=1 + number % 7) as vault:
            assert vault.verify() == []


def everything_found(monkeypatch: pytest.MonkeyPatch, vault: Vault) -> list[tuple[float, int]]:
    """(probability, number of tests) of each sentence of `verify` where every test accuses."""
    monkeypatch.setattr(noise_tests, "LEVEL", 1e9)
    found = (re.search(r"\(probability (\S+), ([\d,]+) tests counted\)$", sentence) for sentence in vault.verify())
    return [(float(match[1]), int(match[2].replace(",", ""))) for match in found if match is not None]


def test_the_tests_of_all_labels_are_counted_together(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with released(folder, randomized_response(1.0)) as vault:
        ((_, alone), *_) = everything_found(monkeypatch, vault)
    labels = np.random.default_rng(1).integers(0, 2, RECORDS)
    for name in ("second", "third"):
        with Vault.create(folder / name, batches=[(np.arange(RECORDS), labels, None)]) as vault:
            vault.release(randomized_response(1.0), compose=True)
            together = everything_found(monkeypatch, vault)
    assert {tests for _, tests in together} == {3 * alone}
    assert len(together) == 3 * 2


def test_each_state_of_the_ledger_has_its_part_of_the_level(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RandomizedResponse, "_draw", half_the_noise)
    with released(folder, randomized_response(1.0), laplace(1.0)) as vault:
        entries = len(vault.ledger().entries)
        least = min(probability for probability, _ in everything_found(monkeypatch, vault))
        assert 0 < least < 1
        for factor, accused in ((0.9, False), (1.1, True)):
            monkeypatch.setattr(noise_tests, "LEVEL", factor * least * entries * (entries + 1))
            assert bool(vault.verify()) == accused


def test_another_process_finds_the_same_in_the_same_order(folder: Path) -> None:
    """Several sentences, with probabilities, of a user's table, two draws and two chunks."""
    mechanism = table_mechanism("uneven", UNEVEN)
    with released(folder, mechanism, draws=4, records=CHUNK + 500):
        pass
    program = (
        "import sys; from tpsl.vault import Vault, noise_tests; noise_tests.LEVEL = 1e9; "
        "print(*Vault.open(sys.argv[1]).verify(), sep='\\n')"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program, folder],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1
    assert found.pop().count("chunk by chunk") == 4


def test_broken_noise_of_a_further_label_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released(folder, randomized_response(1.0)).close()
    monkeypatch.setattr(RandomizedResponse, "_draw", lambda self, labels, words: labels)
    with Vault.create(folder / "second", batches=[(np.arange(RECORDS), np.arange(RECORDS) % 2, None)]) as vault:
        vault.release(randomized_response(1.0), compose=True)
    with Vault.open(folder / "label") as vault:
        problems = vault.verify()
    assert problems and all(text.startswith("release 6: ") for text in problems)


NOISES = [DiscreteGaussian(1, 1e-6), DiscreteGaussian(10**12, 1e-6), DiscreteLaplace(1), DiscreteLaplace(10**6)]


def problems_of(noise: StatisticNoise, added: np.ndarray) -> list[str]:
    return accusations(statistic_noise_tests(noise, added, "release 3"), LEVEL)


@pytest.mark.parametrize("noise", NOISES, ids=str)
@pytest.mark.parametrize("count", [1, 40, 5000])
def test_sound_noise_of_a_statistic_is_not_accused(noise: StatisticNoise, count: int) -> None:
    for seed in range(20):
        assert problems_of(noise, noise.sample(count, seeded_words(seed))) == []


@pytest.mark.parametrize("noise", [NOISES[1], NOISES[3]], ids=str)
def test_noise_of_a_statistic_of_another_size_or_place_is_accused(noise: StatisticNoise) -> None:
    sound = noise.sample(500, seeded_words(1))
    for wrong in (sound // 2, sound * 2, np.zeros(500, np.int64), np.zeros(1, np.int64)):
        if wrong.size > 1 or noise.deviation > 2e6:  # a single number is 0 once in a million times
            (problem,) = problems_of(noise, wrong)
            assert problem.startswith(f"release 3: the noise is not {noise}: its {wrong.size:,} numbers have a mean")
    shifted = problems_of(noise, sound + int(noise.deviation))
    assert any("release 3: the noise is not centred: its 500 numbers sum to" in problem for problem in shifted)


def test_where_no_noise_is_promised_none_may_be_there() -> None:
    assert problems_of(NoNoise(), np.zeros((2, 3), np.int64)) == []
    (problem,) = problems_of(NoNoise(), np.eye(2, 3, dtype=np.int64))
    assert problem.startswith("release 3: 2 numbers are not those without noise")


def test_a_statistic_is_tested_whatever_happens_to_another_label(folder: Path) -> None:
    ids, plan = np.arange(100), StatisticPlan(DiscreteLaplace(1000), 100, 3)
    rows = np.arange(300).reshape(100, 3) % 50
    with Vault.create(folder, batches=[(ids, ids % 2, None)]) as vault:
        vault.release(randomized_response(1.0))
        vault.add([(ids[:5], 1 - ids[:5] % 2, None)])
        with pytest.raises(VaultError, match="5 labels were changed"):
            vault.release_statistic(plan, ids, [rows], policy=ReleasePolicy(compose=True))
            vault.statistic_problems(plan, ids, [rows])
    with Vault.create(folder / "second", batches=[(ids, ids % 2, None)]) as vault:
        vault.release_statistic(plan, ids, [rows], policy=ReleasePolicy(compose=True))
        assert vault.statistic_problems(plan, ids, [rows]) == []
