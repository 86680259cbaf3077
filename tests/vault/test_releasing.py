import math
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpsl.mechanisms import (
    Mechanism,
    gaussian,
    identity,
    laplace,
    optimized_unary,
    randomized_response,
    subset_selection,
)
from tpsl.vault import ReleasePolicy, Vault, VaultError

ALL = np.arange(1000)


def test_asking_again_gives_the_same_noisy_labels_and_spends_nothing(vault: Vault, folder: Path) -> None:
    first = vault.release(laplace(1.0))
    assert (first.requested, first.released, first.already_released, first.private) == (1000, 1000, 0, True)
    given, head = vault.noisy_labels(laplace(1.0), ALL), vault.ledger().head
    again = vault.release(laplace(1.0))
    assert (again.requested, again.released, again.already_released) == (1000, 0, 1000)
    with Vault.open(folder) as other:
        assert (other.noisy_labels(laplace(1.0), ALL).draws[0] == given.draws[0]).all()
        assert other.ledger().head == head


def test_a_report_tells_itself_in_a_sentence(vault: Vault) -> None:
    assert str(vault.release(laplace(1.0), ids=ALL[:10])) == "released 10 noisy labels by laplace (ε = 1)"
    assert str(vault.release(laplace(1.0))).endswith("(ε = 1); 10 had theirs already")
    assert str(vault.release(laplace(1.0))).startswith("all 1,000 records had their noisy labels already")
    seeded = str(vault.release(laplace(1.0), draws=2, seed=1, compose=True))
    assert seeded.endswith("in 2 draws (together ε = 2); 1,000 had another release before — NOT PRIVATE")


def test_noisy_labels_come_in_the_order_asked_for(vault: Vault) -> None:
    vault.release(laplace(1.0))
    given = vault.noisy_labels(laplace(1.0), ALL).draws[0]
    order = np.random.default_rng(1).integers(0, 1000, 5000)
    assert (vault.noisy_labels(laplace(1.0), order).draws[0] == given[order]).all()
    assert (vault.noisy_labels(laplace(1.0), [str(i) for i in order]).draws[0] == given[order]).all()
    assert len(vault.noisy_labels(laplace(1.0), [])) == 0


def test_the_noise_is_that_of_the_mechanism(folder: Path) -> None:
    count = 140_000  # over several chunks
    labels = np.arange(count) % 2
    mechanism = randomized_response(1.0)
    with Vault.create(folder, batches=[(np.arange(count), labels, None)]) as vault:
        vault.release(mechanism, draws=2, seed=0)
        drawn = vault.noisy_labels(mechanism, np.arange(count), draws=2, seed=0).draws
        assert vault.verify() == []
    flips = [outcomes != labels for outcomes in drawn]
    flip = 1 / (1 + math.e)
    bound = 4.9 * math.sqrt(flip * (1 - flip) / count)  # two-sided 1e-6
    assert all(abs(flipped.mean() - flip) < bound for flipped in flips)
    assert abs((flips[0] & flips[1]).mean() - flip**2) < 4.9 * math.sqrt(flip**2 * (1 - flip**2) / count)


def test_identity_releases_the_label_and_says_that_it_is_not_private(vault: Vault, labels: np.ndarray) -> None:
    report = vault.release(identity())
    given = vault.noisy_labels(identity(), ALL)
    assert (given.draws[0] == labels).all()
    assert (report.epsilon, report.private, given.epsilon, given.private) == (math.inf, False, math.inf, False)
    assert vault.ledger().as_dict()["epsilon_per_record"] == "inf"
    assert not vault.ledger().private
    assert vault.verify() == []


@pytest.mark.parametrize("build", [laplace, subset_selection, optimized_unary])
def test_many_classes_and_vector_outcomes(folder: Path, build: Callable[[float, int], Mechanism]) -> None:
    mechanism = build(1.0, 7)
    labels = np.arange(300) % 7
    with Vault.create(folder, classes=7, batches=[(np.arange(300), labels, None)]) as vault:
        vault.release(mechanism, draws=2)
        given = vault.noisy_labels(mechanism, np.arange(299, -1, -1), draws=2)
        assert [draw.shape for draw in given.draws] == [(300, *mechanism.outcome_shape)] * 2
        assert given.epsilon == 2 * mechanism.epsilon
        assert vault.verify() == []
        with pytest.raises(VaultError, match=r"has labels of 7 classes, the mechanism .* is for 2"):
            vault.release(laplace(1.0))


@pytest.mark.parametrize("build", [laplace, randomized_response])
def test_a_release_is_read_in_blocks_in_the_order_of_its_ids(folder: Path, build: Callable[..., Mechanism]) -> None:
    mechanism, count = build(1.0, 3), 70_000  # more than a chunk
    with Vault.create(folder, classes=3, batches=[(np.arange(count), np.arange(count) % 3, None)]) as vault:
        assert list(vault.released(mechanism, draws=2)) == []
        vault.release(mechanism, draws=2, ids=np.arange(1, count, 3))
        vault.release(mechanism, draws=2, ids=np.arange(0, count, 3))
        vault.release(laplace(2.0, 3), ids=np.arange(2, count, 3))  # another series
        blocks = vault.released(mechanism, draws=2)
        ids, outcomes = next(blocks)
        vault.release(mechanism, draws=2, ids=[count - 2], compose=True)  # too late
        for more, others in blocks:
            ids, outcomes = ids + more, np.concatenate([outcomes, others], axis=1)
        assert ids == sorted(str(id) for id in range(count) if id % 3 != 2)
        assert (outcomes == np.stack(vault.noisy_labels(mechanism, ids, draws=2).draws)).all()


OTHERS = {
    "mechanism": (randomized_response(1.0), 1, None),
    "epsilon": (laplace(2.0), 1, None),
    "draws": (laplace(1.0), 2, None),
    "noise": (laplace(1.0), 1, 7),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_release_of_a_record_is_refused_unless_composed(vault: Vault, name: str) -> None:
    mechanism, draws, seed = OTHERS[name]
    vault.release(laplace(1.0), ids=ALL[:400])
    given, head = vault.noisy_labels(laplace(1.0), ALL[:400]).draws[0], vault.ledger().head
    with pytest.raises(VaultError, match=r"^400 records were released before .*400 under laplace \(ε = 1\)"):
        vault.release(mechanism, draws=draws, seed=seed)
    assert vault.ledger().head == head
    report = vault.release(mechanism, draws=draws, seed=seed, compose=True)
    assert (report.released, report.composed) == (1000, 400)
    ledger = vault.ledger()
    assert ledger.epsilon_per_record == 1.0 + mechanism.epsilon * draws
    assert [part.records for part in ledger.spent] == [400, 600]
    assert ledger.private == (seed is None)
    assert (vault.noisy_labels(laplace(1.0), ALL[:400]).draws[0] == given).all()
    assert vault.release(mechanism, draws=draws, seed=seed).released == 0
    assert vault.release(laplace(1.0), ids=ALL[:400]).released == 0
    assert vault.verify() == []


def test_disjoint_records_do_not_add_up(vault: Vault) -> None:
    vault.release(laplace(1.0), ids=ALL[::2])
    vault.release(randomized_response(2.0), ids=ALL[1::2])
    vault.add([(["late"], [1], None)])
    assert vault.release(laplace(1.0), ids=["late", "late", 0]).released == 1
    ledger = vault.ledger()
    assert (ledger.epsilon_per_record, ledger.released_records) == (2.0, 1001)
    assert [(part.records, part.epsilon) for part in ledger.spent] == [(500, 2.0), (501, 1.0)]


def test_deltas_add_up_too(vault: Vault) -> None:
    mechanism = gaussian(2.0, 1e-5)
    vault.release(mechanism, draws=2)
    vault.release(laplace(0.5), compose=True)
    ledger = vault.ledger()
    assert ledger.epsilon_per_record >= 2 * mechanism.epsilon + laplace(0.5).epsilon
    assert ledger.delta_per_record == 2e-5


def test_the_delta_that_counts_is_that_of_all_releases_of_a_record(vault: Vault) -> None:
    small = gaussian(2.0, 6e-4)
    vault.release(small, ids=ALL[:10])
    with pytest.raises(VaultError, match=r"a record would have δ = 0\.0012 in all, more than 1/records = 0\.001"):
        vault.release(small, draws=2, ids=ALL[10:])
    with pytest.raises(VaultError, match=r"a record would have δ = 0\.0011 in all"):
        vault.release(gaussian(2.0, 5e-4), ids=ALL[5:], compose=True)
    assert vault.release(gaussian(2.0, 5e-4), ids=ALL[10:]).released == 990
    assert vault.release(small, ids=ALL[:10]).released == 0  # nothing is drawn, so nothing is asked
    assert (
        vault.release(gaussian(3.0, 5e-4), ids=[1], policy=ReleasePolicy(compose=True, max_delta=0.0011)).released == 1
    )
    assert vault.ledger().delta_per_record == 0.0011


def test_unknown_and_unreleased_records_are_counted_and_named(vault: Vault) -> None:
    with pytest.raises(VaultError, match=r"does not know 2 of the 3 records \(the first is '1000'\)"):
        vault.release(laplace(1.0), ids=[5, 1000, "x"])
    vault.release(laplace(1.0), ids=[5])
    with pytest.raises(VaultError, match=r"1 of the 2 records are not released under laplace .*first is '6'"):
        vault.noisy_labels(laplace(1.0), [5, 6])
    with pytest.raises(VaultError, match="does not know 1 of the 1"):
        vault.noisy_labels(laplace(1.0), ["05"])
    for draws in (0, -1, 1.5, True):
        with pytest.raises(VaultError, match="draws must be"):
            vault.release(laplace(1.0), draws=draws)
    with pytest.raises(VaultError, match="seed must be"):
        vault.release(laplace(1.0), seed="x")


def test_seeded_noise_depends_on_seed_and_position_only(tmp_path: Path, labels: np.ndarray) -> None:
    given = []
    for name, parts in {"once": [ALL], "in parts": [ALL[::3], ALL]}.items():
        with Vault.create(tmp_path / name, batches=[(ALL, labels, None)], apart="other people") as vault:
            for part in parts:
                assert not vault.release(laplace(1.0), ids=part, seed=3).private
            noisy = vault.noisy_labels(laplace(1.0), ALL, seed=3)
            assert not noisy.private
            given.append(noisy.draws[0])
            assert vault.verify() == []
            vault.release(laplace(1.0), seed=4, compose=True)
            assert (vault.noisy_labels(laplace(1.0), ALL, seed=4).draws[0] != noisy.draws[0]).any()
    assert (given[0] == given[1]).all()


def test_an_interrupted_release_is_undone(vault: Vault) -> None:
    def interrupt(done: int, total: int, note: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vault.release(laplace(1.0), progress=interrupt)
    assert vault.ledger().released_records == 0
    assert vault.verify() == []


def test_processes_that_release_at_once_draw_once(
    vault: Vault, folder: Path, fork: Callable[..., Any], tmp_path: Path
) -> None:
    code = (
        "from tpsl.vault import Vault; from tpsl.mechanisms import laplace; v = Vault.open(place);"
        "released = v.release(laplace(1.0)).released; given = v.noisy_labels(laplace(1.0), range(1000)).draws[0];"
        "print(released, given.tobytes().hex())"
    )
    running = [fork(code, tmp_path, place=str(folder)) for _ in range(4)]
    assert [process.status(60) for process in running] == [0] * 4
    answers = [process.stdout.read_text().split() for process in running]
    assert sorted(int(released) for released, _ in answers) == [0, 0, 0, 1000]
    assert len({given for _, given in answers}) == 1
    assert [entry.kind for entry in vault.ledger().entries] == ["created", "added", "released"]


def bytes_read(vault: Vault, ask: Callable[[], object]) -> int:
    """How many bytes of rows the database gives for a request."""
    count = 0

    def counted(cursor: sqlite3.Cursor, row: tuple) -> tuple:
        nonlocal count
        count += sum(len(value) if isinstance(value, (bytes, str)) else 8 for value in row)
        return row

    vault._store.connection.row_factory = counted
    try:
        ask()
    finally:
        vault._store.connection.row_factory = None
    return count


def test_a_release_reads_as_little_after_many_others_as_after_one(tmp_path: Path) -> None:
    ids, more, mechanism = np.arange(70_100), np.arange(70_000, 70_100), laplace(1.0)
    read = {}
    for releases in (1, 1000):
        with Vault.create(tmp_path / str(releases), batches=[(ids, ids % 2, None)], scratch=True) as vault:
            vault._store.connection.execute("PRAGMA synchronous = OFF")
            for some in np.split(ids[:70_000], releases):
                vault.release(mechanism, ids=some)
            given = vault.noisy_labels(mechanism, ids[:70_000]).draws[0]
            read[releases] = bytes_read(vault, lambda vault=vault: vault.release(mechanism, ids=more))
            assert (vault.noisy_labels(mechanism, ids[:70_000]).draws[0] == given).all()
            assert vault.total(ids).records == 70_100
    assert read[1000] < 1.1 * read[1]
    with Vault.open(tmp_path / "1000") as vault:
        assert (len(vault.ledger().entries), vault.verify()) == (1003, [])


def test_outcomes_without_a_ledger_entry_are_a_sentence_and_nothing_is_drawn(vault: Vault) -> None:
    vault.release(laplace(1.0))
    vault._store.execute("DROP TRIGGER ledger_stay")
    vault._store.execute("DELETE FROM ledger WHERE sequence = 3")
    for ask in (lambda: vault.release(laplace(1.0)), lambda: vault.noisy_labels(laplace(1.0), [5]), vault.ledger):
        with pytest.raises(VaultError, match="ledger entry 3 is missing"):
            ask()
