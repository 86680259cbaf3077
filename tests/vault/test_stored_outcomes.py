"""`verify` tests the noise: sound vaults of every mechanism pass, broken noise is told in a sentence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpsl.mechanisms import (
    Mechanism,
    RandomizedResponse,
    RandomWords,
    gaussian,
    identity,
    integer_weights,
    laplace,
    optimized_unary,
    randomized_response,
    subset_selection,
    table_mechanism,
)
from tpsl.vault import Vault
from tpsl.vault.blocks import CHUNK

RECORDS = 4000


def released(folder: Path, *mechanisms: Mechanism, draws: int = 1, records: int = RECORDS, **named: Any) -> Vault:
    classes = mechanisms[0].classes
    labels = np.random.default_rng(0).integers(0, classes, records)
    vault = Vault.create(folder, classes=classes, batches=[(np.arange(records), labels, None)])
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
    (table_mechanism("uneven", integer_weights([[0.6, 0.2, 0.2], [0.3, 0.5, 0.2], [0.3, 0.3, 0.4]], 1.0)), 2),
]


@pytest.mark.parametrize(("mechanism", "draws"), SOUND, ids=lambda value: getattr(value, "name", value))
def test_sound_noise_is_not_accused(folder: Path, mechanism: Mechanism, draws: int) -> None:
    with released(folder, mechanism, draws=draws) as vault:
        assert vault.verify() == []
        assert "one in a hundred" in vault.cannot_see()[0]


def test_releases_by_two_tables_of_a_user_are_not_accused_of_noise_in_common(folder: Path) -> None:
    """The own bit of such a table is drawn in part: for each release independently."""
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
    assert [text.split(":")[0] for text in problems] == ["release 3, chunks of 65,536 records"]


def test_half_the_noise_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = RandomizedResponse._draw
    monkeypatch.setattr(
        RandomizedResponse,
        "_draw",
        lambda self, labels, words: exact(randomized_response(2 * self.parameters["epsilon"]), labels, words),
    )
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
        labels = vault.true_labels_for_evaluation(np.arange(RECORDS))
        vault.add([(np.arange(800), 1 - labels[:800], None)])
        assert vault.verify() == []
        assert "800 labels were changed after their release" in vault.cannot_see()[1]


def test_a_small_vault_is_never_accused_by_chance_alone(folder: Path) -> None:
    """The tests are exact: also where a normal approximation would be far off, nobody is accused."""
    for number in range(20):
        with released(folder / str(number), randomized_response(4.0), records=1 + number % 7) as vault:
            assert vault.verify() == []
