"""Canaries in a statistic: sound noise passes with tight bounds, and each fault of the vault is named."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tpsl.audit import AuditError, audit_statistic
from tpsl.mechanisms import (
    DEFAULT_BOUND,
    DiscreteGaussian,
    DiscreteLaplace,
    RandomWords,
    StatisticNoise,
    fit_noise,
    seeded_words,
)
from tpsl.vault import StatisticPlan, releasing

DELTA = 1e-6
CANARIES = 3000


@pytest.fixture(autouse=True)
def _repeatable(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr("tpsl.audit.statistic_canaries._MOST_WIDE", 500)
    monkeypatch.setattr(os, "urandom", random.Random(request.node.name).randbytes)


def plan(kind: str, epsilon: float, classes: int = 2, seed: int | None = None) -> StatisticPlan:
    return StatisticPlan(fit_noise(kind, epsilon, DELTA, DEFAULT_BOUND, classes), DEFAULT_BOUND, 1, seed)


@pytest.mark.parametrize("classes", [2, 7])
@pytest.mark.parametrize(("kind", "epsilon"), [("gaussian", 0.1), ("gaussian", 4.0), ("laplace", 1.0)])
def test_sound_statistics_pass(tmp_path: Path, kind: str, epsilon: float, classes: int) -> None:
    found = audit_statistic(
        plan(kind, epsilon, classes), classes, tmp_path / "audit", canaries=CANARIES, confidence=0.999
    )
    assert found.passed, found.accusations
    assert (found.releases, found.canaries) == (6, CANARIES)
    assert 0.999 * epsilon <= found.claimed <= epsilon
    assert found.lower_bound <= epsilon
    assert abs(found.right - found.expected) < 5 * CANARIES**0.5 / 2
    if kind == "laplace":
        assert found.rho is None
        assert found.lower_bound > 0.7 * epsilon, "nearly tight"
    elif epsilon == 4.0:
        assert found.rho is not None
        assert 0.3 * found.rho < found.rho_lower_bound < found.rho


SOUND: dict[type[StatisticNoise], Callable[..., np.ndarray]] = {
    noise: noise.sample for noise in (DiscreteGaussian, DiscreteLaplace)
}


def halved(noise: StatisticNoise, count: int, words: RandomWords) -> np.ndarray:
    return SOUND[type(noise)](noise, count, words) // 2


def constant_key(noise: StatisticNoise, count: int, words: RandomWords) -> np.ndarray:
    return SOUND[type(noise)](noise, count, seeded_words(1))


def shared_by_neighbours(noise: StatisticNoise, count: int, words: RandomWords) -> np.ndarray:
    return np.repeat(SOUND[type(noise)](noise, -(-count // 2), words), 2)[:count]


def one_sided(noise: StatisticNoise, count: int, words: RandomWords) -> np.ndarray:
    return np.abs(SOUND[type(noise)](noise, count, words))


FAULTS: dict[Callable[..., np.ndarray], str] = {
    halved: "the noise is not",
    constant_key: "two have noise in common",
    shared_by_neighbours: "the noise of neighbouring numbers is not independent",
    one_sided: "the noise is not centred",
}


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_broken_noise_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[..., np.ndarray], kind: str
) -> None:
    for noise in SOUND:
        monkeypatch.setattr(noise, "sample", fault)
    found = audit_statistic(plan(kind, 1.0), 2, tmp_path / "audit", canaries=CANARIES)
    assert not found.passed
    assert any(FAULTS[fault] in text for text in found.accusations), found.accusations


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_vectors_that_are_not_cut_to_the_bound_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def twice_the_bound(rows: np.ndarray, bound: int, norm: str) -> np.ndarray:
        return np.clip(rows, -2 * bound, 2 * bound).astype(np.int32)

    monkeypatch.setattr(releasing, "clip_rows", twice_the_bound)
    found = audit_statistic(plan(kind, 4.0), 2, tmp_path / "audit", canaries=CANARIES)
    assert any("a label moves the sum by more than the bound" in text for text in found.accusations)


def test_a_folder_that_is_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "mine").touch()
    with pytest.raises(AuditError):
        audit_statistic(plan("laplace", 1.0), 2, tmp_path / "audit")
