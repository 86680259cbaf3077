"""The vault's second kind of release: one noisy statistic of many labels, drawn once and accounted for."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpsl.mechanisms import (
    DiscreteGaussian,
    DiscreteLaplace,
    NoNoise,
    epsilon_of_rho,
    fit_noise,
    laplace,
    randomized_response,
)
from tpsl.vault import NoisyStatistic, ReleasePolicy, StatisticPlan, Vault, VaultError

ALL = np.arange(1000)
BOUND = 1000
PLAN = StatisticPlan(fit_noise("gaussian", 1.0, 1e-6, BOUND, 2), BOUND, 5)
WITHOUT = StatisticPlan(NoNoise(), BOUND, 5)
COMPOSE = ReleasePolicy(compose=True)


def rows_of(count: int, seed: int = 0, width: int = 5) -> np.ndarray:
    """Vectors inside the bound, so that the vault leaves them as they are."""
    return np.random.default_rng(seed).integers(-BOUND // width, BOUND // width + 1, (count, width))


ROWS = rows_of(1000)


def in_blocks(rows: np.ndarray, *cuts: int) -> Iterator[np.ndarray]:
    yield from np.split(rows, cuts)


def test_the_statistic_is_the_sum_over_positive_labels(vault: Vault, labels: np.ndarray) -> None:
    order = np.random.default_rng(1).permutation(1000)
    found = vault.release_statistic(WITHOUT, order, in_blocks(ROWS[order], 1, 400))
    assert (found.values == labels @ ROWS).all()
    assert (found.values.dtype, found.values.shape, found.records, found.private) == (np.int64, (1, 5), 1000, False)
    assert math.isinf(found.cost.epsilon)
    with pytest.raises(ValueError, match="read-only"):
        found.values[0] = 0
    assert vault.verify() == []


@pytest.mark.parametrize(("classes", "count"), [(3, 66_000), (10, 3000), (100, 3000)])  # more than a chunk, and less
def test_of_k_classes_each_has_a_sum(folder: Path, classes: int, count: int) -> None:
    labels, rows = np.random.default_rng(2).integers(0, classes, count), rows_of(count, width=8)
    plan = StatisticPlan(DiscreteLaplace(4), BOUND, 8, seed=1)
    with Vault.create(folder, classes=classes, batches=[(np.arange(count), labels, None)]) as vault:
        found = vault.release_statistic(plan, np.arange(count), [rows])
        assert (found.values.shape, found.classes, found.cost.epsilon) == ((classes, 8), classes, 2 * BOUND / 4)
        for number in range(classes):
            assert np.abs(found.values[number] - rows[labels == number].sum(axis=0)).max() < 100
        assert vault.verify() == []
        assert vault.statistic_problems(plan, np.arange(count), [rows]) == []


def test_what_was_released_is_read_without_its_vectors(vault: Vault) -> None:
    with pytest.raises(VaultError, match="no statistic of these records under this plan"):
        vault.noisy_statistics(PLAN, ALL)
    released = vault.release_statistic(PLAN, ALL, [ROWS])
    head = vault.ledger().head
    (found,) = vault.noisy_statistics(PLAN, ALL)
    assert (found.values == released.values).all()
    with pytest.raises(VaultError, match="no statistic of these records under this plan"):
        vault.noisy_statistics(StatisticPlan(PLAN.noise, BOUND, 6), ALL)
    assert vault.ledger().head == head


def test_the_same_vectors_for_the_same_records_give_the_same_numbers_and_spend_nothing(
    vault: Vault, folder: Path
) -> None:
    first = vault.release_statistic(PLAN, ALL, [ROWS])
    head = vault.ledger().head
    with Vault.open(folder) as other:
        again = other.release_statistic(PLAN, [str(id) for id in ALL], in_blocks(ROWS.astype(np.int16), 3, 7))
        assert other.ledger().head == head
    assert (again.values == first.values).all()
    assert (again.records, again.private, again.cost) == (1000, True, first.cost)


@pytest.mark.parametrize(
    "changed",
    {
        "a number": lambda: (PLAN, ALL, ROWS + (np.arange(5000).reshape(1000, 5) == 7)),
        "the records": lambda: (PLAN, ALL[:-1], ROWS[:-1]),
        "their order": lambda: (PLAN, ALL[::-1], ROWS),
        "the noise": lambda: (StatisticPlan(DiscreteGaussian(10**9, 1e-6), BOUND, 5), ALL, ROWS),
        "δ": lambda: (StatisticPlan(DiscreteGaussian(PLAN.noise.variance, 1e-5), BOUND, 5), ALL, ROWS),
        "the bound": lambda: (StatisticPlan(PLAN.noise, BOUND + 1, 5), ALL, ROWS),
        "the width": lambda: (StatisticPlan(PLAN.noise, BOUND, 4), ALL, ROWS[:, :4]),
        "the seed": lambda: (StatisticPlan(PLAN.noise, BOUND, 5, seed=1), ALL, ROWS),
    }.items(),
    ids=lambda changed: changed[0],
)
def test_anything_else_is_another_release(vault: Vault, changed: tuple[str, Callable[[], Any]]) -> None:
    first = vault.release_statistic(PLAN, ALL, [ROWS])
    head, (plan, ids, rows) = vault.ledger().head, changed[1]()
    with pytest.raises(
        VaultError, match=rf"^{len(ids):,} records were released before .* under statistic of 5 numbers"
    ):
        vault.release_statistic(plan, ids, [rows])
    assert vault.ledger().head == head
    policy = ReleasePolicy(compose=True, max_epsilon=math.inf, max_delta=0.1, not_private=True)
    other = vault.release_statistic(plan, ids, [rows], policy=policy)
    assert (vault.release_statistic(PLAN, ALL, [ROWS]).values == first.values).all()
    assert (vault.release_statistic(plan, ids, [rows]).values == other.values).all()
    assert [entry.kind for entry in vault.ledger().entries] == ["created", "added", "statistic", "statistic"]
    assert vault.verify() == []


def test_labels_after_a_statistic_and_a_statistic_after_labels_are_refused(vault: Vault) -> None:
    vault.release(laplace(0.5), ids=ALL[:300])
    with pytest.raises(VaultError, match=r"^50 records were released before .*\(50 under laplace \(ε = 0.5\)\)"):
        vault.release_statistic(PLAN, ALL[250:], [ROWS[250:]])
    with pytest.raises(VaultError, match=r"^50 records were released before"):
        vault.check_statistic(PLAN, ALL[250:], policy=ReleasePolicy())
    vault.release_statistic(PLAN, ALL[300:], [ROWS[300:]])
    with pytest.raises(VaultError, match=r"^700 records were released before .*statistic of 5 numbers"):
        vault.release(laplace(0.5))
    with pytest.raises(VaultError, match=r"^1 records were released before"):
        vault.check_release(laplace(0.5), [300], policy=ReleasePolicy())
    assert vault.release(laplace(0.5), ids=ALL[:300]).released == 0
    ledger = vault.ledger()
    assert ledger.released_records == 1000
    assert [(part.records, part.epsilon, part.delta) for part in ledger.spent] == [
        (700, PLAN.cost(2).epsilon, 1e-6),
        (300, laplace(0.5).epsilon, 0.0),
    ]
    assert vault.total(ALL[:300]).delta == 0.0


def test_what_a_record_spends_over_both_kinds_is_composed_and_rounded_up(vault: Vault) -> None:
    noise = randomized_response(0.5)
    vault.release(noise)
    vault.release_statistic(PLAN, ALL, [ROWS], policy=COMPOSE)
    once = vault.total([0])
    both = Fraction(noise.epsilon) + Fraction(PLAN.cost(2).epsilon)
    assert Fraction(once.epsilon) >= both > Fraction(math.nextafter(once.epsilon, 0.0))
    assert once.delta == 1e-6
    for seed in range(1, 9):
        vault.release_statistic(PLAN, ALL, [rows_of(1000, seed)], policy=ReleasePolicy(compose=True, max_delta=1e-4))
    rho = 9 * Fraction(BOUND**2, 2 * PLAN.noise.variance)
    total = vault.total(ALL)
    assert total.delta >= 9e-6 > math.nextafter(total.delta, 0.0)
    assert total.epsilon <= noise.epsilon + epsilon_of_rho(rho, total.delta) + 1e-9 < 5  # not 0.5 + 9
    assert total.epsilon >= epsilon_of_rho(rho, total.delta)
    assert vault.ledger().epsilon_per_record == total.epsilon


def plan_of_two(epsilon: float, kind: str = "gaussian", seed: int | None = None) -> StatisticPlan:
    return StatisticPlan(fit_noise(kind, epsilon, 1e-6, BOUND, 2, 2), BOUND, 5, seed, releases=2)


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_two_releases_of_one_plan_are_permitted_together_and_a_third_is_not(vault: Vault, kind: str) -> None:
    plan, limits = plan_of_two(1.0, kind), ReleasePolicy(max_epsilon=1.0)
    first = vault.release_statistic(plan, ALL, [ROWS], policy=limits)
    assert 0.49 < vault.total(ALL).epsilon < 0.75
    second = vault.release_statistic(plan, ALL, [-ROWS], policy=limits)
    total = vault.total(ALL)
    assert total.epsilon == plan.total(2).epsilon == vault.ledger().epsilon_per_record
    assert 0.999 <= total.epsilon <= 1.0
    assert total.delta == (1e-6 if kind == "gaussian" else 0.0)
    for rows, found in ((ROWS, first), (-ROWS, second)):
        assert (vault.release_statistic(plan, ALL, [rows], policy=limits).values == found.values).all()
    with pytest.raises(VaultError, match=r"to ε = .* more than the ε = 1 that the label party permits"):
        vault.release_statistic(plan, ALL, [ROWS // 2], policy=replace(limits, compose=True))
    with pytest.raises(VaultError, match=r"^1,000 records were released before"):
        vault.release_statistic(plan, ALL, [ROWS // 2], policy=ReleasePolicy(max_delta=0.1))
    assert [entry.kind for entry in vault.ledger().entries] == ["created", "added", "statistic", "statistic"]
    assert vault.verify() == []


def test_the_cost_of_all_releases_of_a_plan_is_asked_for_with_the_first(vault: Vault) -> None:
    plan = plan_of_two(1.0)
    assert plan.cost(2).epsilon < 0.8
    for ask in (
        lambda policy: vault.check_statistic(plan, ALL, policy=policy),
        lambda policy: vault.release_statistic(plan, ALL, [ROWS], policy=policy),
    ):
        with pytest.raises(VaultError, match=r"to ε = 0\.99\d+ in all, more than the ε = 0.8"):
            ask(ReleasePolicy(max_epsilon=0.8))
        with pytest.raises(VaultError, match=r"δ = 1e-06 in all, more than 6e-07"):
            ask(ReleasePolicy(max_delta=6e-7))
    assert vault.ledger().released_records == 0


def test_a_single_release_with_the_same_noise_is_not_the_first_of_two(vault: Vault) -> None:
    plan = plan_of_two(1.0)
    vault.release_statistic(StatisticPlan(plan.noise, BOUND, 5), ALL, [ROWS])
    with pytest.raises(VaultError, match=r"^1,000 records were released before"):
        vault.release_statistic(plan, ALL, [-ROWS])


def test_seeded_noise_of_two_releases_is_independent(vault: Vault, labels: np.ndarray) -> None:
    plan = plan_of_two(1.0, seed=4)
    noise = [vault.release_statistic(plan, ALL, [rows]).values[0] - labels @ rows for rows in (ROWS, -ROWS)]
    assert not np.isin(noise[0], noise[1]).any()


def test_the_policy_is_asked_before_a_vector_is_read(vault: Vault) -> None:
    def never() -> Iterator[np.ndarray]:
        raise AssertionError("a vector was read")
        yield

    large = StatisticPlan(DiscreteGaussian(BOUND, 1e-6), BOUND, 5)
    fails = StatisticPlan(DiscreteGaussian(PLAN.noise.variance, 0.01), BOUND, 5)
    for plan, complaint in (
        (large, r"would bring the records to ε = .* more than the ε = 10"),
        (fails, r"a record would have δ = 0.01 in all, more than 1/records = "),
        (StatisticPlan(PLAN.noise, BOUND, 5, seed=3), "NOT PRIVATE"),
        (WITHOUT, "NOT PRIVATE"),
    ):
        with pytest.raises(VaultError, match=complaint):
            vault.release_statistic(plan, ALL, never(), policy=ReleasePolicy())
        with pytest.raises(VaultError, match=complaint):
            vault.check_statistic(plan, [*ALL, "new"], policy=ReleasePolicy())
    assert vault.ledger().released_records == 0
    vault.check_statistic(PLAN, [*ALL, "new"], policy=ReleasePolicy())
    vault.release_statistic(PLAN, ALL, [ROWS])
    for width in (5, 1):  # the vectors may be the same, whoever asks before they are known
        vault.check_statistic(StatisticPlan(PLAN.noise, BOUND, width), ALL, policy=ReleasePolicy(max_epsilon=1.0))
    limits = ReleasePolicy(max_epsilon=1.0, compose=True)
    with pytest.raises(VaultError, match="more than the ε = 1 that the label party permits"):
        vault.release_statistic(PLAN, ALL, [-ROWS], policy=limits)
    assert vault.release_statistic(PLAN, ALL, [ROWS], policy=limits).records == 1000


HOSTILE = {
    "huge": np.full((1000, 5), np.iinfo(np.int64).max),
    "least": np.full((1000, 5), np.iinfo(np.int64).min),
    "unsigned": np.full((1000, 5), np.iinfo(np.uint64).max, np.uint64),
    "one record": (ALL[:, None] == 3) * np.int64(2) ** 62 * np.array([1, 0, 0, 0, 0]),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_no_vector_moves_the_statistic_by_more_than_the_bound(tmp_path: Path, name: str, norm: str) -> None:
    plan = StatisticPlan(DiscreteLaplace(1) if norm == "l1" else DiscreteGaussian(1, 1e-6), BOUND, 5, seed=0)
    sums = []
    for label in (0, 1):  # of the record that is attacked
        with Vault.create(
            tmp_path / str(label), batches=[(ALL, np.where(ALL == 3, label, 0), None)], apart="other people"
        ) as vault:
            sums.append(vault.release_statistic(plan, ALL, [HOSTILE[name]]).values[0])
    moved = (sums[1] - sums[0]).tolist()  # the noise, from one seed, is the same
    assert 0 < (sum(map(abs, moved)) if norm == "l1" else math.hypot(*moved)) <= BOUND


def test_what_is_no_statistic_is_named(vault: Vault) -> None:
    for blocks, complaint in (
        ([ROWS[:-1]], r"of 1,000 records got rows for 999 of them"),
        ([ROWS, ROWS[:1]], r"of 1,000 records got rows for more of them"),
        ([ROWS[:, :4]], r"integers, 5 for each record, not from int64 of shape \(1000, 4\)"),
        ([ROWS[0]], r"not from int64 of shape \(5,\)"),
        ([ROWS / 1.0], "not from float64"),
        ([ROWS.tolist()], "not from list"),
    ):
        with pytest.raises(VaultError, match=complaint):
            vault.release_statistic(PLAN, ALL, blocks)
    with pytest.raises(VaultError, match=r"the record '7' occurs twice"):
        vault.release_statistic(PLAN, [*ALL[:-1], 7], [ROWS])
    with pytest.raises(VaultError, match=r"does not know 1 of the 2 records"):
        vault.release_statistic(PLAN, [1, "x"], [ROWS[:2]])
    with pytest.raises(VaultError, match="needs at least one record"):
        vault.release_statistic(PLAN, [], [])
    with pytest.raises(TypeError, match="out of a vault only"):
        NoisyStatistic(np.zeros((1, 5), np.int64), PLAN, 10, True)
    assert vault.ledger().released_records == 0
    assert vault.verify() == []


def test_an_interrupted_statistic_is_undone(vault: Vault) -> None:
    def interrupted() -> Iterator[np.ndarray]:
        yield ROWS[:500]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vault.release_statistic(PLAN, ALL, interrupted())
    assert vault.ledger().released_records == 0
    assert vault.verify() == []


def test_processes_that_release_a_statistic_at_once_draw_once(
    vault: Vault, folder: Path, fork: Callable[..., Any], tmp_path: Path
) -> None:
    code = (
        "import numpy as np; from tpsl.vault import StatisticPlan, Vault; from tpsl.mechanisms import DiscreteGaussian;"
        "plan = StatisticPlan(DiscreteGaussian(10**12, 1e-6), 1000, 5);"
        "rows = np.arange(5000).reshape(1000, 5) % 400;"
        "print(Vault.open(place).release_statistic(plan, range(1000), [rows]).values.tobytes().hex())"
    )
    running = [fork(code, tmp_path, place=str(folder)) for _ in range(3)]
    assert [process.status(60) for process in running] == [0] * 3
    assert len({process.stdout.read_text() for process in running}) == 1
    assert [entry.kind for entry in vault.ledger().entries] == ["created", "added", "statistic"]


def test_seeded_noise_is_the_same_whatever_the_vectors(tmp_path: Path, labels: np.ndarray) -> None:
    plan = StatisticPlan(PLAN.noise, BOUND, 5, seed=4)
    noise = []
    for name, rows in (("one", ROWS), ("other", -ROWS)):
        with Vault.create(tmp_path / name, batches=[(ALL, labels, None)], apart="other people") as vault:
            found = vault.release_statistic(plan, ALL, [rows])
            assert not found.private
            noise.append(found.values - labels @ rows)
    assert (noise[0] == noise[1]).all()


def test_a_unit_spends_by_how_many_of_its_records_share_the_noise(folder: Path) -> None:
    """Of one person's records in one statistic all labels may change at once: m²ρ, not m times (ε, δ)."""
    units = ["a"] * 5 + [f"u{row}" for row in range(5, 20)]
    with Vault.create(folder, batches=[(range(20), [0] * 20, units)]) as vault:
        found = vault.release_statistic(PLAN, range(3, 20), [ROWS[:17]])
        vault.release(laplace(0.25), ids=range(3))
        unit = vault.ledger().largest_unit
    assert (unit.records, unit.delta) == (5, 1e-6)
    group = epsilon_of_rho(4 * found.cost.rho, 1e-6)
    assert group <= unit.epsilon <= group + 0.75
    pure = StatisticPlan(DiscreteLaplace(BOUND), BOUND, 5)
    with Vault.create(folder.with_name("pure"), batches=[(range(20), [0] * 20, units)], apart="other people") as vault:
        vault.release_statistic(pure, range(3, 20), [ROWS[:17]])
        assert vault.ledger().largest_unit.epsilon == 2.0


def test_a_vault_that_counts_people_charges_them(folder: Path) -> None:
    ids, plan = [f"a-{row}" for row in range(4)], StatisticPlan(DiscreteLaplace(BOUND), BOUND, 5)
    later = [f"b-{row}" for row in range(4)]
    persons = ["anna", "anna", "ben", "cleo"]
    with Vault.create(folder, batches=[(ids, [0, 1, 0, 1], persons)], counts_people=True) as vault:
        with pytest.raises(VaultError, match=r"would bring people to ε = 2 in all"):
            vault.check_statistic(plan, ids, policy=ReleasePolicy(max_epsilon=1.5))
        vault.release_statistic(plan, ids, [ROWS[:4]], policy=ReleasePolicy(max_epsilon=2.0))
        assert vault.total(ids).epsilon == 2.0
        with pytest.raises(VaultError, match=r"would bring people to ε = 3 in all"):
            vault.check_statistic(plan, later, policy=ReleasePolicy(max_epsilon=2.5))
        vault.add([(later, [0, 1, 0, 1], [*persons[1:], "dora"])])
        with pytest.raises(VaultError, match="of records of 2 alignments is refused"):
            vault.release_statistic(plan, [ids[0], *later], [ROWS[:5]], policy=COMPOSE)
        vault.release_statistic(plan, later, [ROWS[:4]])
        assert vault.total(later).epsilon == 3.0
        assert vault.ledger().largest_unit.epsilon == 3.0
        assert vault.verify() == []


def test_corrected_labels_change_no_statistic(vault: Vault, labels: np.ndarray) -> None:
    first = vault.release_statistic(PLAN, ALL, [ROWS])
    assert vault.add([(ALL, 1 - labels, None)]).changed_after_release == 1000
    assert (vault.release_statistic(PLAN, ALL, [ROWS]).values == first.values).all()
    with pytest.raises(VaultError, match="1,000 labels were changed after their release"):
        vault.statistic_problems(PLAN, ALL, [ROWS])
