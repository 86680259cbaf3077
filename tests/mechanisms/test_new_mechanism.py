"""A new mechanism is one class and one line in the registry: release, ledger, verification and prediction take it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpsl.attacks.auc_prediction import predicted_auc
from tpsl.mechanisms import TOTAL, Mechanism, from_spec, mechanism_registry
from tpsl.vault import Vault


@dataclass(frozen=True, eq=False)
class PairOfClasses(Mechanism):
    """Two of k classes, the true one with probability ¾, as k bits: an outcome shape of its own."""

    name = "pair_of_classes"
    _definition = "pair of classes"
    values = np.array([0.0, 1.0])
    weights = np.array([[TOTAL // 4, TOTAL // 4 * 3]], np.uint64)

    @property
    def outcome_shape(self) -> tuple[int, ...]:
        return (self.classes,)

    @property
    def _others(self) -> float:
        """The probability of another class to be among the two."""
        return 1.25 / (self.classes - 1)

    @property
    def coordinate(self) -> Any:
        return np.array([[1 - self._others, self._others], [0.25, 0.75]])

    def pairs(self) -> Iterator[Any]:
        true_alone = 0.75 * (self.classes - 2) / (self.classes - 1)
        other_alone = 0.25 * 2 / (self.classes - 1)
        said = np.array([true_alone, 1 - true_alone - other_alone, other_alone])
        yield said, said[::-1]

    def mean(self, y: int) -> Any:
        return self._by_class(y, self._others, 0.75)

    def variance(self, y: int) -> Any:
        return self.mean(y) * (1 - self.mean(y))

    def log_likelihood(self, outcomes: Any) -> Any:
        holds, lacks = 0.75 / (self.classes - 1), 0.25 / math.comb(self.classes - 1, 2)
        return np.where(np.asarray(outcomes) == 1, math.log(holds), math.log(lacks))

    def _draw(self, labels: Any, words: Any) -> Any:
        bits = np.zeros((len(labels), self.classes), np.uint8)
        for row, label, own in zip(bits, labels, words.reshape(bits.shape), strict=True):
            held = own[label] < np.uint64(TOTAL // 4 * 3)
            others = [other for other in np.argsort(own) if other != label]
            row[others[: 1 if held else 2]] = 1
            row[label] = held
        return bits


def build(classes: int) -> PairOfClasses:
    ratio = 0.75 / (classes - 1) / (0.25 / math.comb(classes - 1, 2))
    return PairOfClasses(classes, math.log(ratio), 0.0, {})


@pytest.fixture(autouse=True)
def _line_in_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(mechanism_registry._BUILT_IN, "pair_of_classes", build)


def test_a_vault_releases_and_verifies_it(tmp_path: Path) -> None:
    labels = np.arange(3000) % 5
    with Vault.create(tmp_path / "vault", classes=5, batches=[(np.arange(3000), labels, None)]) as vault:
        vault.release(build(5), draws=2)
        assert vault.verify() == []
    assert from_spec(build(5).spec()).digest == build(5).digest


def test_a_fault_in_its_noise_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = PairOfClasses._draw
    monkeypatch.setattr(PairOfClasses, "_draw", lambda self, labels, words: exact(self, labels, np.sort(words)))
    with Vault.create(tmp_path / "vault", classes=5, batches=[(np.arange(3000), np.arange(3000) % 5, None)]) as vault:
        vault.release(build(5))
        assert any(problem.startswith("release 3: the noise") for problem in vault.verify())


def test_its_attack_aucs_are_predicted() -> None:
    mechanism = build(5)
    sets = np.array([np.isin(np.arange(5), pair) for pair in np.argwhere(np.triu(np.ones((5, 5)), 1))])
    under_a, under_b = np.exp(mechanism.log_likelihood(sets))[:, :2].T
    assert (under_a.sum(), under_b.sum()) == pytest.approx((1, 1))
    found, ratio = predicted_auc(mechanism), np.log(under_a / under_b)
    wins = (ratio[:, None] > ratio) + 0.5 * np.isclose(ratio[:, None], ratio)
    assert found.best_score == pytest.approx(under_a @ wins @ under_b)
    assert found.likelier_class == pytest.approx((1 + np.abs(under_a - under_b).sum() / 2) / 2)
