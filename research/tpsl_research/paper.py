"""The paper's experiments (section 5): three tables and the trade-off figure, with the printed values beside ours."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, mean, stdev
from typing import Any

from tpsl_research.defences import Defence
from tpsl_research.sweep import Setting, gaussian_sigma_like_laplace
from tpsl_research.text_table import Table

EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0, 10.0)
LEVELS = {"Low": 0.1, "Medium": 1.0, "High": 10.0}
"""The rows of the paper's tables 2 and 3, by the ε of Laplace and Discrete."""

SKIPPED_BATCHES = 20
"""Attack AUCs are means over the batches of a run; the first ones, of an untrained network, say little."""

NON_PRIVATE, LAPLACE, DISCRETE, GAUSSIAN = "non-private", "Laplace", "Discrete", "Gaussian"
OURS, GAUSSIAN_CUT, MAX_NORM, MARVELL = "Discrete, posterior", "Gaussian at the cut", "max norm", "Marvell"

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {
        "batch_size": 8192,
        "epochs": 1,
        "feature_optimizer": {"name": "sgd", "learning_rate": 0.1},
        "label_optimizer": {"name": "sgd", "learning_rate": 0.1},
    },
    "small": {
        "batch_size": 512,
        "epochs": 1,
        "feature_optimizer": {"name": "sgd", "learning_rate": 0.05},
        "label_optimizer": {"name": "sgd", "learning_rate": 0.05},
    },
    "adam": {
        "batch_size": 512,
        "epochs": 1,
        "feature_optimizer": {"name": "adam", "learning_rate": 1e-3},
        "label_optimizer": {"name": "adam", "learning_rate": 1e-3},
    },
}
"""`paper`: batch 8192, SGD, each record once. `small`: batch 512, for data with few batches of 8192; how it was chosen
stands in docs/experiments.md. `adam`: `small` with an optimiser that does not mind how large gradients are."""


@dataclass(frozen=True)
class Printed:
    """One row of the paper's tables."""

    sda: float
    test: float
    na: float
    sa: float


PRINTED: dict[str, dict[tuple[str, str], Printed]] = {
    "avazu": {
        (NON_PRIVATE, ""): Printed(sda=1.0, test=0.7523, na=0.9897, sa=0.9890),
        (LAPLACE, "Low"): Printed(sda=0.5237, test=0.6689, na=0.4932, sa=0.4847),
        (DISCRETE, "Low"): Printed(sda=0.5274, test=0.6293, na=0.4997, sa=0.4997),
        (GAUSSIAN, "Low"): Printed(sda=0.5252, test=0.6657, na=0.5117, sa=0.4999),
        (LAPLACE, "Medium"): Printed(sda=0.6961, test=0.7416, na=0.5784, sa=0.5743),
        (DISCRETE, "Medium"): Printed(sda=0.7789, test=0.7342, na=0.4806, sa=0.4796),
        (GAUSSIAN, "Medium"): Printed(sda=0.6455, test=0.7384, na=0.5440, sa=0.5363),
        # The paper prints the SDA and SA values of this row in each other's column.
        (LAPLACE, "High"): Printed(sda=0.9966, test=0.7518, na=0.9640, sa=0.9622),
        (DISCRETE, "High"): Printed(sda=0.9999, test=0.7523, na=0.9898, sa=0.9893),
        (GAUSSIAN, "High"): Printed(sda=1.0, test=0.7522, na=0.9902, sa=0.9899),
    },
    "criteo": {
        (LAPLACE, "Low"): Printed(sda=0.5236, test=0.7095, na=0.5011, sa=0.5011),
        (DISCRETE, "Low"): Printed(sda=0.5258, test=0.6037, na=0.5138, sa=0.5215),
        (GAUSSIAN, "Low"): Printed(sda=0.5264, test=0.6614, na=0.4985, sa=0.5017),
        (LAPLACE, "Medium"): Printed(sda=0.6964, test=0.7639, na=0.5525, sa=0.5525),
        (DISCRETE, "Medium"): Printed(sda=0.7310, test=0.7497, na=0.7317, sa=0.7284),
        (GAUSSIAN, "Medium"): Printed(sda=0.6409, test=0.7550, na=0.5017, sa=0.5031),
        (LAPLACE, "High"): Printed(sda=0.9965, test=0.7784, na=0.8761, sa=0.8766),
        (DISCRETE, "High"): Printed(sda=0.9999, test=0.7792, na=0.9202, sa=0.9204),
        (GAUSSIAN, "High"): Printed(sda=1.0, test=0.7786, na=0.9038, sa=0.9159),
    },
}
"""Tables 1, 2 (Avazu) and 3 (Criteo) as printed."""


def paper_settings(seeds: Sequence[int], *, defences: bool = False) -> list[Setting]:
    """Return the grid of the paper's section 5, with our recommended setting beside; on request other defences too."""
    settings = []
    for seed in seeds:
        none = {"mechanism": "none", "estimator": "linear"}
        settings.append(Setting(NON_PRIVATE, none, seed))
        for epsilon in EPSILONS:
            sigma = gaussian_sigma_like_laplace(epsilon)
            settings += [
                Setting(LAPLACE, {"mechanism": "laplace", "epsilon": epsilon, "estimator": "linear"}, seed),
                Setting(DISCRETE, {"mechanism": "discrete", "epsilon": epsilon, "estimator": "linear"}, seed),
                Setting(
                    GAUSSIAN, {"mechanism": "gaussian", "sigma": sigma, "delta": 1e-5, "estimator": "linear"}, seed
                ),
                Setting(OURS, {"mechanism": "discrete", "epsilon": epsilon, "estimator": "posterior"}, seed),
            ]
            if defences:
                settings.append(Setting(GAUSSIAN_CUT, none, seed, Defence("gaussian-cut", sigma)))
        if defences:
            settings.append(Setting(MAX_NORM, none, seed, Defence("max-norm")))
            settings += [Setting(MARVELL, none, seed, Defence("marvell", power)) for power in (1.0, 4.0, 16.0)]
    return settings


def level_of(row: dict[str, Any]) -> float | None:
    """Return the ε that places a row in the tables: its own, or that of the Laplace noise it is matched to."""
    for epsilon in EPSILONS:
        sigma = gaussian_sigma_like_laplace(epsilon)
        matched = row["sigma"] if row["defence"] is None else row["strength"]
        if row["mechanism"] == "gaussian" or row["defence"] == "gaussian-cut":
            if matched is not None and abs(matched - sigma) < 1e-9:
                return epsilon
        elif row["requested_epsilon"] == epsilon:
            return epsilon
    return None


@dataclass(frozen=True)
class Measured:
    """A quantity over seeds."""

    mean: float
    spread: float
    seeds: int

    def __str__(self) -> str:
        if not self.seeds:
            return "diverged"
        return f"{self.mean:.4f} ± {self.spread:.4f}" if self.seeds > 1 else f"{self.mean:.4f}"


def over_seeds(rows: Sequence[dict[str, Any]], column: str) -> Measured:
    """Return mean and standard deviation of a column over the runs that did not diverge."""
    values = [row[column] for row in rows if not row["diverged"]]
    if not values:
        return Measured(math.nan, math.nan, 0)
    return Measured(mean(values), stdev(values) if len(values) > 1 else 0.0, len(values))


COLUMNS: dict[str, tuple[str, Callable[[Printed], float]]] = {
    "SDA AUC": ("shortest_distance_auc", lambda printed: printed.sda),
    "Test AUC": ("test_auc", lambda printed: printed.test),
    "NA AUC": ("norm_auc", lambda printed: printed.na),
    "SA AUC": ("spectral_auc", lambda printed: printed.sa),
}


def leakage_table(data: str, rows: Sequence[dict[str, Any]]) -> Table:
    """Return table 1: attacks on non-private split learning."""
    chosen = [row for row in rows if row["algorithm"] == NON_PRIVATE]
    printed = PRINTED.get(data, {}).get((NON_PRIVATE, ""))
    head, ours, theirs = ["", *COLUMNS], ["measured"], ["the paper"]
    for column, value in COLUMNS.values():
        ours.append(str(over_seeds(chosen, column)))
        theirs.append(f"{value(printed):.4f}" if printed else "–")
    lines = [head, ours] + ([theirs] if printed else [])
    return Table(f"Table 1 ({data}): attacks on non-private split learning", tuple(map(tuple, lines)))


def results_table(data: str, rows: Sequence[dict[str, Any]]) -> Table:
    """Return table 2 or 3: transcript-DP split learning, low, medium and high attack AUC."""
    number = {"avazu": "Table 2", "criteo": "Table 3"}.get(data, "As tables 2 and 3")
    printed = PRINTED.get(data, {})
    head = ["SDA level", "Algorithm", "ε"]
    for column in COLUMNS:
        head += [column, "paper"] if printed else [column]
    lines: list[tuple[str, ...]] = [(*head, "closed form (SDA)")]
    for level, epsilon in LEVELS.items():
        for algorithm in (LAPLACE, DISCRETE, GAUSSIAN, OURS, GAUSSIAN_CUT):
            chosen = [row for row in rows if row["algorithm"] == algorithm and level_of(row) == epsilon]
            if not chosen:
                continue
            budget = f"{epsilon:g}" if algorithm in (LAPLACE, DISCRETE, OURS) else f"(σ = {_sigma(chosen[0]):.3g})"
            cells = [level, algorithm, budget]
            for column, value in COLUMNS.values():
                cells.append(str(over_seeds(chosen, column)))
                if printed:
                    beside = printed.get((algorithm, level))
                    cells.append(f"{value(beside):.4f}" if beside else "–")
            lines.append((*cells, f"{closed_form(chosen[0]):.4f}"))
    for algorithm in (MAX_NORM, MARVELL):
        for strength in sorted({row["strength"] for row in rows if row["algorithm"] == algorithm}):
            chosen = [row for row in rows if row["algorithm"] == algorithm and row["strength"] == strength]
            cells = ["no ε", algorithm, f"(s = {strength:g})" if algorithm == MARVELL else "–"]
            for column, _ in COLUMNS.values():
                cells += [str(over_seeds(chosen, column)), *(["–"] if printed else [])]
            lines.append((*cells, "–"))
    return Table(f"{number} ({data}): transcript-DP split learning", tuple(lines))


def _sigma(row: dict[str, Any]) -> float:
    return float(row["sigma"] if row["defence"] is None else row["strength"])


def closed_form(row: dict[str, Any]) -> float:
    """Return the shortest-distance AUC that theory predicts for a row."""
    if row["defence"] == "gaussian-cut":
        return NormalDist().cdf(1 / (2 * row["strength"]))
    return float(row["closed_form"])


def tables_csv(tables: Sequence[Table]) -> str:
    """Return all tables as one CSV file, an empty line after each."""
    lines = io.StringIO(newline="")
    for table in tables:
        csv.writer(lines).writerows([(table.title,), *table.rows, ()])
    return lines.getvalue()
