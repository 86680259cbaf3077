"""Done when: at ε = 0.1 and a 128-wide cut the textbook formula gives labels away, ours keeps what ε promises."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tests.attacks.fingerprint import UNDECIDED, Float32s, Guesses, fingerprint_attack, neighbours

from tpsl.attacks.auc_prediction import auc_ceiling
from tpsl.attacks.evidence import NoisyLabelReader
from tpsl.attacks.transcript_walk import PreparedAttack, evaluate_attacks
from tpsl.attacks.white_box import WhiteBox
from tpsl.data.true_labels import reveal
from tpsl.mechanisms import laplace
from tpsl.perturb import grad_perturb
from tpsl.run.build import build_top
from tpsl.run.transcript import TranscriptStep

SIGMAS = 4.9  # α = 1e-6


def textbook_gradient(y: npt.NDArray[np.integer[Any]], u: Float32s, g_0: Float32s, g_1: Float32s) -> Float32s:
    """Return Algorithm 2 as it is printed, `g_y + u·(g_{1-y} - g_y)`, in float32. Not private: for the attack only."""
    is_one = (y == 1)[:, None]
    own, other = np.where(is_one, g_1, g_0), np.where(is_one, g_0, g_1)
    result: Float32s = own + u[:, None] * (other - own)
    return result


@dataclass(frozen=True)
class FingerprintResult:
    """What the fingerprint attack recovers from the textbook formula and from ours, on the same gradients."""

    records: int
    width: int
    epsilon: float
    ceiling: float
    """What ε allows: how often a guess of a fair-coin label may be right, `e^ε/(1+e^ε)`."""
    textbook_accuracy: float
    textbook_decided: float
    """The share of records for which exactly one label reproduces the bits; else the nearer one is guessed."""
    our_accuracy: float
    our_decided: float

    @property
    def sampling_error(self) -> float:
        """One standard deviation of an accuracy at the ceiling."""
        return math.sqrt(self.ceiling * (1 - self.ceiling) / self.records)


def generated_gradients(records: int, width: int = 128, seed: int = 0) -> tuple[Float32s, Float32s]:
    """Return `g_0 = σ(z)·s` and `g_1 = (σ(z)-1)·s` for random z and s, in float32."""
    generator = np.random.default_rng(seed)
    slope = torch.from_numpy(generator.normal(size=(records, width)).astype(np.float32))
    probability = torch.sigmoid(torch.from_numpy(generator.normal(size=records).astype(np.float32)))[:, None]
    return (probability * slope).numpy(), ((probability - 1) * slope).numpy()


def fingerprint_experiment(g_0: Float32s, g_1: Float32s, epsilon: float = 0.1, seed: int = 0) -> FingerprintResult:
    """Give each pair of gradients (generated or recorded) a fair-coin label, perturb it both ways, attack both.

    Both ways draw Laplace noise for ε. The textbook way computes `g_y + u·(g_{1-y} - g_y)` in float32. Ours draws t
    from the exact table and computes `(1-t)·g_0 + t·g_1`, the same for both labels.
    """
    generator = np.random.default_rng(seed)
    records, width = len(g_0), g_0.shape[1]
    labels = generator.integers(0, 2, size=(records,))
    noise = generator.laplace(0.0, 1 / epsilon, size=(records,)).astype(np.float32)
    textbook = textbook_gradient(labels, noise, g_0, g_1)
    mechanism = laplace(epsilon)
    noisy = torch.from_numpy(mechanism.release(labels, seed).noisy.astype(np.float32))
    ours = grad_perturb(noisy, torch.from_numpy(np.stack([g_0, g_1]))).numpy()
    found = {}
    for name, received in (("textbook", textbook), ("ours", ours)):
        guesses = fingerprint_attack(received, g_0, g_1)
        decided = guesses != UNDECIDED
        guesses = np.where(decided, guesses, nearer_label(received, g_0, g_1))
        found[name] = float((guesses == labels).mean()), float(decided.mean())
    return FingerprintResult(
        records, width, epsilon, auc_ceiling(mechanism.epsilon), *found["textbook"], *found["ours"]
    )


def nearer_label(received: Float32s, g_0: Float32s, g_1: Float32s) -> Guesses:
    """Return the shortest-distance guess (section 3.1): 0 if `‖g̃ - g_0‖ ≤ ‖g̃ - g_1‖`, else 1."""
    distance_0, distance_1 = (np.linalg.norm(received.astype(np.float64) - g, axis=1) for g in (g_0, g_1))
    guesses: Guesses = np.asarray(distance_0 > distance_1, dtype=np.int64)
    return guesses


def both_gradients(run: Any, seen: TranscriptStep) -> tuple[Float32s, Float32s]:
    """Return `g_0` and `g_1` of one step, to the last bit as back-propagation computes them."""
    top = build_top(run.job, ["feature"], 2).members[0].train().requires_grad_(False)
    run.trajectory.load_into(top, seen.step)
    embeddings = torch.from_numpy(seen.embeddings).requires_grad_()
    z = top(embeddings)
    p = torch.sigmoid(z.detach())
    g_0, g_1 = (torch.autograd.grad(z, embeddings, p - label, retain_graph=True)[0].numpy() for label in (0, 1))
    return g_0, g_1


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_textbook_formula_gives_labels_away_and_ours_does_not(epsilon: float) -> None:
    result = fingerprint_experiment(*generated_gradients(5000, width=128, seed=1), epsilon, seed=2)
    assert result.textbook_accuracy >= 0.99
    assert result.textbook_decided >= 0.99
    assert result.our_accuracy <= result.ceiling + SIGMAS * result.sampling_error
    assert result.our_decided < 0.05


def test_on_recorded_gradients(recorded: Callable[..., Any]) -> None:
    """The same experiment where g_0 and g_1 are those of a network in training, at a 128-wide cut."""
    run = recorded({"mechanism": "none"}, model={"embedding_dim": 4, "bottom": [128], "top": [128]})
    pairs = [both_gradients(run, seen) for seen in run.transcript]
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
    mechanism = run.job.privacy.build(2)
    reader = NoisyLabelReader(WhiteBox(run.job, ["feature"], 2, run.trajectory), mechanism, estimator)

    def scores(seen: TranscriptStep) -> npt.NDArray[np.float64]:
        """Guess by the bits where they decide, by the recovered noisy label elsewhere."""
        guesses = fingerprint_attack(seen.gradients, *both_gradients(run, seen))
        return np.where(guesses == UNDECIDED, reader.guesses(seen), guesses).astype(np.float64)

    attack = PreparedAttack("fingerprint", "transcript+weights", scores)
    (found,) = evaluate_attacks(run.transcript, [attack], reveal(run.data.labels))
    deviation = (found.auc_high - found.auc_low) / (2 * 1.96)
    assert found.auc <= auc_ceiling(mechanism.epsilon) + SIGMAS * deviation


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
    found = neighbours(values, 2)
    for value, row in zip(values, found, strict=True):
        below = np.nextafter(value, np.float32(-np.inf))
        above = np.nextafter(value, np.float32(np.inf))
        expected = [np.nextafter(below, np.float32(-np.inf)), below, value, above, np.nextafter(above, np.float32(9))]
        assert row.tolist() == [float(x) for x in expected]
