"""Where canaries are planted: at random places and side by side, between all classes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpsl.audit import AuditError, audit
from tpsl.audit.canaries import plant_canaries
from tpsl.audit.canary_bound import Claim, guess_coins
from tpsl.data.dataset import load
from tpsl.data.true_labels import reveal
from tpsl.mechanisms import randomized_response, seeded_words
from tpsl.run.job import Job

FIVE = {"source": "synthetic", "rows": 5000, "numeric_fields": 2, "categorical_fields": 2, "classes": 5}


@pytest.mark.parametrize("canaries", [1, 3, 400, 4000, 20_000])
def test_half_of_them_are_pairs_of_neighbours(job: Callable[..., Job], canaries: int) -> None:
    data = load(job({"mechanism": "discrete", "epsilon": 1.0}).data)
    planted = plant_canaries(data, canaries, seeded_words(1))
    places = np.searchsorted(data.train, planted.rows)
    assert len(np.unique(planted.rows)) == min(canaries, 4000)
    assert (np.diff(places[planted.neighbours], axis=1) == 1).all()
    assert len(np.unique(planted.neighbours)) == planted.neighbours.size  # no canary in two pairs
    assert len(planted.neighbours) == min(canaries, 4000) // 4
    if len(planted.neighbours) > 50:  # two of three pairs begin at even positions, the others at odd ones
        assert 0.15 < (places[planted.neighbours[:, 0]] % 2).mean() < 0.55


def test_coins_of_many_classes_fall_between_all_pairs_of_classes(job: Callable[..., Job]) -> None:
    data = load(job({"mechanism": "discrete", "epsilon": 1.0}, data=FIVE).data)
    planted = plant_canaries(data, 2000, seeded_words(2))
    assert (planted.sides[:, 0] != planted.sides[:, 1]).all()
    assert (reveal(planted.data.labels)[planted.rows] == planted.sides[np.arange(2000), planted.coins]).all()
    # The first side is each class equally often; every ordered pair occurs.
    assert (np.bincount(planted.sides[:, 0]) == 400).all()
    assert len(np.unique(planted.sides, axis=0)) == 20
    # The coin says nothing about which class is on which side: within 4.9 standard deviations.
    assert abs(planted.coins.mean() - 0.5) < 4.9 * 0.5 / np.sqrt(2000)
    assert abs(np.corrcoef(planted.coins, planted.sides[:, 0])[0, 1]) < 4.9 / np.sqrt(2000)


def test_a_bound_above_the_claim_is_no_accusation_yet(job: Callable[..., Job], tmp_path: Path) -> None:
    """At a confidence of one half every other sound audit has a bound above its claim; none is accused for it."""
    jobs = [job({"mechanism": "discrete", "epsilon": 1.0, "noise_seed": seed}, epochs=1) for seed in range(4)]
    data = load(jobs[0].data)
    found = [audit(agreed, tmp_path / agreed.digest(), confidence=0.5, seed=0, data=data) for agreed in jobs]
    assert any(result.lower_bound > result.claimed for result in found)
    assert all(result.passed and result.accusations == () for result in found)
    assert all(900 < result.neighbours <= 1000 for result in found)


def test_records_that_cannot_be_read_accuse_nobody(job: Callable[..., Job]) -> None:
    """Records with features alike may all be unreadable: that neighbours are says nothing about their noise."""
    words, data = seeded_words(4), load(job({"mechanism": "discrete", "epsilon": 1.0}).data)
    planted = plant_canaries(data, 4000, words)
    mechanism = randomized_response(1.0)
    outcomes = mechanism.release(planted.coins, words).outcomes
    evidence = np.where(outcomes == 1, 1.0, -1.0)
    evidence[:1000] = 0.0
    found = guess_coins(evidence, planted, Claim(mechanism.epsilon, 0.0), 0.95, words)
    assert 700 < found["neighbours"] < 800
    assert found["neighbours_p_value"] > 1e-6
    shared = np.where(outcomes == planted.coins, 1, -1)
    shared[planted.neighbours[:, 1]] = shared[planted.neighbours[:, 0]]
    alike = np.where(planted.coins == 1, shared, -shared).astype(float)
    found = guess_coins(alike, planted, Claim(mechanism.epsilon, 0.0), 0.95, words)
    assert found["neighbours_p_value"] < 1e-100


def test_a_job_that_releases_nothing_has_no_coins_to_guess(job: Callable[..., Job], tmp_path: Path) -> None:
    pretrain: dict[str, Any] = {"method": "masked", "epochs": 1}
    agreed = job({"gradients": "none", "noise_seed": None}, head="local", pretrain=pretrain)
    with pytest.raises(AuditError, match="releases no labels"):
        audit(agreed, tmp_path / "audit")
