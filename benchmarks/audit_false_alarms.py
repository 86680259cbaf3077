"""How often the audit accuses sound code: its decision rules on simulated draws, and whole audits of a small job.

    python benchmarks/audit_false_alarms.py                       # 10,000 simulated audits of each kind
    python benchmarks/audit_false_alarms.py --simulated 0 --real 500

Simulated audits draw from the mechanisms' own tables and skip the training. Beside the accusations at the real level
(one in a million for each part) it says how many p-values lie below 1 %: at most 1 % of them may. With `--real` whole
audits are made, with training, vaults and bytes, each with new keys.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tpsl.attacks.auc_prediction import predicted_statistic_auc
from tpsl.audit import examine
from tpsl.audit.canaries import plant_canaries
from tpsl.audit.canary_bound import Claim, guess_coins
from tpsl.audit.repeated_releases import examine_draws
from tpsl.audit.statistic_canaries import OneHotCanaries, examine_releases
from tpsl.data.dataset import Dataset
from tpsl.data.sides import LabelRecords, LabelSide
from tpsl.data.true_labels import TrueLabels, reveal
from tpsl.mechanisms import (
    DEFAULT_BOUND,
    DiscreteGaussian,
    DiscreteLaplace,
    Mechanism,
    StatisticNoise,
    fit_noise,
    integer_weights,
    laplace,
    randomized_response,
    secure_words,
    subset_selection,
    table_mechanism,
)
from tpsl.run.job import make_job
from tpsl.vault.noise_tests import LEVEL, Expected

MECHANISMS = (
    randomized_response(0.5),
    randomized_response(1.0),
    randomized_response(4.0),
    laplace(1.0),
    randomized_response(2.0, 5),
    subset_selection(0.5, 10),
    table_mechanism("uneven", integer_weights([[0.6, 0.2, 0.2], [0.3, 0.5, 0.2], [0.3, 0.3, 0.4]], 1.0)),
)
STATISTICS: tuple[tuple[StatisticNoise, int, int], ...] = (
    (fit_noise("gaussian", 1.0, 1e-6, DEFAULT_BOUND, 2), DEFAULT_BOUND, 2),
    (fit_noise("laplace", 1.0, 1e-6, DEFAULT_BOUND, 2), DEFAULT_BOUND, 2),
    (fit_noise("gaussian", 4.0, 1e-6, DEFAULT_BOUND, 5), DEFAULT_BOUND, 5),
    (fit_noise("laplace", 4.0, 1e-6, DEFAULT_BOUND, 5), DEFAULT_BOUND, 5),
    (DiscreteGaussian(9, 1e-6), 4, 2),
    (DiscreteLaplace(2), 3, 4),
)
"""Noise, bound and classes; the last two so small that the grid shows."""
NOTICED = 0.01
RECORDS, DRAWS = 400, 12
CONFIDENCE = 0.95


def simulated_canaries(mechanism: Mechanism, data: Dataset) -> float:
    """Return the p-value of a simulated audit by canaries, all its tests counted."""
    words = secure_words()
    planted = plant_canaries(data, RECORDS, words)
    outcomes = mechanism.release(reveal(planted.data.labels)[planted.rows], words).outcomes
    likelihood = mechanism.log_likelihood(outcomes)
    against, towards = np.take_along_axis(likelihood, planted.sides, axis=1).T
    evidence = np.round(towards - against, 6)
    found = guess_coins(evidence, planted, Claim(mechanism.epsilon, mechanism.delta), CONFIDENCE, words)
    return 3.0 * min(float(found[name]) for name in ("p_value", "class_p_value", "neighbours_p_value"))


def simulated_releases(mechanism: Mechanism, expected: Expected) -> float:
    """Return the p-value of simulated releases of the same labels, all tests counted."""
    labels = np.arange(RECORDS) % mechanism.classes
    draws = (mechanism.release(labels).outcomes for _ in range(DRAWS))
    tested, _ = examine_draws(expected, labels, draws, "simulated")
    return sum(entry.tests for entry in tested) * min(entry.p_value for entry in tested)


@cache
def right_guesses(noise: StatisticNoise, bound: int, classes: int) -> float:
    """Return the share of coins that are guessed right on average."""
    return predicted_statistic_auc(noise, bound, classes).likelier_class


def simulated_statistic(noise: StatisticNoise, bound: int, classes: int) -> float:
    """Return the p-value of two simulated releases of a statistic, all tests counted."""
    words, found = secure_words(), []
    for _ in range(2):
        canaries = OneHotCanaries.draw(RECORDS // 2, classes, words)
        sums = canaries.sums(bound)
        found.append(canaries.read(sums + noise.sample(sums.size, words).reshape(sums.shape), noise, bound, words))
    tested = examine_releases(found, noise, right_guesses(noise, bound, classes), words)
    return sum(entry.tests for entry in tested) * min(entry.p_value for entry in tested)


def simulate(audits: int) -> dict[str, Any]:
    """Return, for each part, how many p-values are small, and how many accuse."""
    found: Counter[str] = Counter()
    labels = np.zeros(RECORDS + 10, np.int64)
    rows = np.arange(len(labels))
    of = {m: (_dataset(labels, rows, m.classes), Expected(m)) for m in MECHANISMS}
    for number in range(audits):
        mechanism = MECHANISMS[number % len(MECHANISMS)]
        data, expected = of[mechanism]
        for part, p_value in (
            ("canaries", simulated_canaries(mechanism, data)),
            ("releases", simulated_releases(mechanism, expected)),
            ("statistic", simulated_statistic(*STATISTICS[number % len(STATISTICS)])),
        ):
            found[f"{part}: p below {NOTICED:g}"] += p_value < NOTICED
            found[f"{part}: accused"] += p_value < LEVEL
    return {"simulated": audits, **found}


def _dataset(labels: np.ndarray, rows: np.ndarray, classes: int) -> Dataset:
    names = tuple(str(label) for label in range(classes))
    ids = pa.array([str(row) for row in rows])
    records = LabelRecords(ids, None, names, rows[:RECORDS], rows[RECORDS:])
    return Dataset({}, LabelSide(records, TrueLabels(labels, names)))


def audit_for_real(audits: int) -> dict[str, Any]:
    """Return how many whole audits of a small job accuse it."""
    content = {
        "data": {"source": "synthetic", "rows": 1000, "numeric_fields": 2, "categorical_fields": 2},
        "privacy": {"epsilon": 1.0},
        "model": {"embedding_dim": 4, "bottom": [8], "top": [8]},
        "training": {"batch_size": 200, "epochs": 2, "patience": 0},
    }
    job, accused = make_job(content, {}, "a small job"), []
    for _ in range(audits):
        with tempfile.TemporaryDirectory() as folder:
            accused += examine(job, Path(folder) / "audit").accusations
    return {"real": audits, "accusations": accused}


def main() -> None:
    """Simulate, audit, and say what was found."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--simulated", type=int, default=10_000)
    options.add_argument("--real", type=int, default=0)
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    found = simulate(chosen.simulated) | audit_for_real(chosen.real)
    print(json.dumps(found) if chosen.json else "\n".join(f"{name}: {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
