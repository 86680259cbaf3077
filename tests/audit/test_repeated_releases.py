"""Repeated releases: sound mechanisms of every kind pass, and the plan has enough releases to see a bare record."""

import os
import random
from pathlib import Path

import numpy as np
import pytest

from tpsl.audit import AuditError, repeat_releases
from tpsl.audit.repeated_releases import _plan, examine_draws
from tpsl.mechanisms import (
    Mechanism,
    gaussian,
    integer_weights,
    laplace,
    optimized_unary,
    randomized_response,
    seeded_words,
    subset_selection,
    table_mechanism,
)
from tpsl.vault.noise_tests import Expected, accusations

TABLE = table_mechanism("uneven", integer_weights([[0.6, 0.2, 0.2], [0.3, 0.5, 0.2], [0.3, 0.3, 0.4]], 1.0))
"""Of a user's own: no two labels are treated alike."""
SOUND = [
    (randomized_response(1.0), 1),
    (laplace(1.0), 2),
    (gaussian(1.0, 1e-5), 1),
    (randomized_response(2.0, 5), 1),
    (laplace(2.0, 5), 1),
    (optimized_unary(1.0, 5), 1),
    (subset_selection(0.5, 10), 2),
    (TABLE, 2),
]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr("tpsl.audit.repeated_releases._FEWEST", 6)
    monkeypatch.setattr("tpsl.audit.repeated_releases._MOST", 6)
    monkeypatch.setattr("tpsl.audit.repeated_releases._RECORDS", 1000)
    monkeypatch.setattr(os, "urandom", random.Random(request.node.name).randbytes)


@pytest.mark.parametrize(("mechanism", "draws"), SOUND, ids=lambda value: getattr(value, "name", value))
def test_sound_mechanisms_pass(tmp_path: Path, mechanism: Mechanism, draws: int) -> None:
    seen: list[tuple[int, int]] = []
    result = repeat_releases(
        mechanism, tmp_path / "r", draws=draws, progress=lambda done, total, note: seen.append((done, total))
    )
    assert result.passed, result.accusations
    assert (result.releases, result.records, result.draws) == (6, 1000, draws)
    assert seen == [(number, 6) for number in range(1, 7)]
    assert not (tmp_path / "r" / "copy").exists()


@pytest.mark.parametrize("mechanism", [laplace(1.0), TABLE], ids=str)
def test_two_draws_of_one_release_with_the_same_noise_are_found(mechanism: Mechanism) -> None:
    labels = np.arange(1000) % mechanism.classes
    draws = [mechanism.release(labels, seeded_words(4, max(1, number))).outcomes for number in range(6)]
    tested, _ = examine_draws(Expected(mechanism), labels, draws, "here")
    assert [text.split(",")[0] for text in accusations(tested, 1e-6)] == ["here: two have noise in common"]


@pytest.mark.parametrize("mechanism", [randomized_response(1.0), TABLE], ids=str)
def test_records_without_noise_are_counted(mechanism: Mechanism) -> None:
    labels = np.arange(4000) % mechanism.classes
    draws = [mechanism.release(labels, seeded_words(5, number)).outcomes.copy() for number in range(40)]
    for outcomes in draws:
        outcomes[1000:1400:10] = labels[1000:1400:10]  # apart, so that only their constancy shows
    tested, constant = examine_draws(Expected(mechanism), labels, draws, "here")
    assert constant == 40
    assert [text.split(" records")[0] for text in accusations(tested, 1e-6)] == ["here: 40"]


def test_the_plan_has_more_releases_of_fewer_records_where_there_is_less_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    assert _plan(Expected(randomized_response(1.0)), 1) == (64, 16384)
    releases, records = _plan(Expected(randomized_response(4.0)), 1)
    kept = randomized_response(4.0).keep / 2**64
    assert kept**releases <= 1e-3 < kept ** (releases - 1)
    assert releases * records <= 1 << 20
    assert _plan(Expected(randomized_response(20.0)), 1)[0] == 512
    assert _plan(Expected(laplace(1.0, 100)), 1) == (64, 5242)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AuditError, match="exists already"):
        repeat_releases(randomized_response(1.0), tmp_path)
