"""Done when: at ε = 0.1 and a 128-wide cut the textbook formula gives labels away, ours keeps what ε promises."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tpsl.attacks import fingerprint_attack, fingerprint_experiment, generated_gradients, run_attacks
from tpsl.attacks.fingerprint import UNDECIDED, _neighbours, textbook_gradient
from tpsl.attacks.white_box import WhiteBox

SIGMAS = 4.9  # α = 1e-6


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_textbook_formula_gives_labels_away_and_ours_does_not(epsilon: float) -> None:
    result = fingerprint_experiment(*generated_gradients(5000, width=128, seed=1), epsilon, seed=2)
    assert result.textbook_accuracy >= 0.99
    assert result.textbook_decided >= 0.99
    assert result.our_accuracy <= result.ceiling + SIGMAS * result.sampling_error
    assert result.our_decided < 0.05
    assert result.as_dict()["sampling_error"] == result.sampling_error


def test_on_recorded_gradients(recorded: Callable[..., Any]) -> None:
    """The same experiment where g_0 and g_1 are those of a network in training, at a 128-wide cut."""
    run = recorded({"mechanism": "none"}, model={"embedding_dim": 4, "bottom": [128], "top": [128]})
    white_box = WhiteBox(run.job, ["feature"], 2, run.trajectory)
    pairs = [white_box.both_gradients(seen) for seen in run.transcript]
    g_0, g_1 = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    result = fingerprint_experiment(g_0, g_1, 0.1, seed=3)
    assert result.records == 6000
    assert result.textbook_accuracy >= 0.99
    assert result.our_accuracy <= result.ceiling + SIGMAS * result.sampling_error


@pytest.mark.parametrize("estimator", ["linear", "posterior"])
def test_on_our_transcript(recorded: Callable[..., Any], estimator: str) -> None:
    run = recorded(
        {"mechanism": "laplace", "epsilon": 0.1, "estimator": estimator},
        model={"embedding_dim": 4, "bottom": [128], "top": [128]},
    )
    found = run_attacks(run.path, run.data.labels, which=["fingerprint"])["fingerprint"]
    deviation = (found.auc_high - found.auc_low) / (2 * 1.96)
    assert found.auc <= found.ceiling + SIGMAS * deviation


def test_small_noise_is_found_too_and_none_is_exact() -> None:
    g_0, g_1 = generated_gradients(2000, width=128, seed=4)
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 2, 2000)
    noise = (rng.choice([-1, 1], 2000) * 10.0 ** rng.uniform(-2.5, 3, 2000)).astype(np.float32)
    noise[:100] = 0.0
    guesses = fingerprint_attack(textbook_gradient(labels, noise, g_0, g_1), g_0, g_1)
    assert (guesses == labels).mean() > 0.99
    assert not ((guesses != labels) & (guesses != UNDECIDED)).any()


def test_neighbours_are_all_float32_numbers_around_a_value() -> None:
    values = np.array([1.0, -1.0, 1e-38, 0.0], dtype=np.float32)
    found = _neighbours(values, 2)
    for value, row in zip(values, found, strict=True):
        below = np.nextafter(value, np.float32(-np.inf))
        above = np.nextafter(value, np.float32(np.inf))
        expected = [np.nextafter(below, np.float32(-np.inf)), below, value, above, np.nextafter(above, np.float32(9))]
        assert row.tolist() == [float(x) for x in expected]
