"""Real runs, small enough to train in a moment: what a report shows is what trainings, attacks and audits wrote.

Imports are where they are needed: a process that only finds no browser should not wait for PyTorch.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tpsl.report.run_view import RunView

HOSTILE = "<script>alert(1)</script>\"'&[bold]$title<b>"

SMALL: dict[str, Any] = {
    "data": {
        "source": "synthetic",
        "rows": 1200,
        "numeric_fields": 3,
        "categorical_fields": 2,
        "largest_vocabulary": 8,
    },
    "model": {"embedding_dim": 4, "bottom": [8], "top": [8]},
    "training": {"batch_size": 96, "epochs": 3},
}
PRIVACY: dict[str, dict[str, Any]] = {
    "non-private": {"mechanism": "none", "estimator": "linear"},
    "laplace": {"mechanism": "laplace", "epsilon": 2.0, "estimator": "linear"},
    "discrete": {"mechanism": "discrete", "epsilon": 0.5},
    "seeded": {"mechanism": "gaussian", "sigma": 2.0, "delta": 1e-6, "noise_seed": 5},
}


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with finished runs by the names in PRIVACY, and `stopped`, which was killed before its end.

    All but `seeded` were attacked, and `laplace` was audited.
    """
    from tpsl.attacks import run_attacks
    from tpsl.audit import audit
    from tpsl.data.dataset import load
    from tpsl.report.findings import keep_finding
    from tpsl.training import make_job, train

    folder = tmp_path_factory.mktemp("runs")
    for name, privacy in PRIVACY.items():
        job = make_job({**SMALL, "privacy": privacy}, {}, "test")
        data = load(job.data)
        attacked = name != "seeded"
        train(job, folder / name, record_steps=20 if attacked else 0, data=data)
        if attacked:
            found = run_attacks(folder / name, data.labels, features=data.feature_parties)
            keep_finding(folder / name, "attacks", found.as_dict())
        if name == "laplace":
            found_bound = audit(job, folder / "audit", data=data, confidence=0.999999, seed=1)
            keep_finding(folder / name, "audit", found_bound.as_dict())
    shutil.copytree(folder / "discrete", folder / "stopped")
    (folder / "stopped" / "result.json").unlink()
    metrics = folder / "stopped" / "label" / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:1]))
    return folder


@pytest.fixture(scope="session")
def views(runs: Path) -> list[RunView]:
    """The views of all runs; the name of the last one tries to break out of the page."""
    from tpsl.report.reading import read_run

    return [
        *(read_run(runs / name) for name in ("non-private", "laplace", "discrete", "seeded")),
        read_run(runs / "stopped", HOSTILE),
    ]


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory, views: list[RunView]) -> Path:
    from tpsl.report.page import write_page

    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(path, views, title=f"A report {HOSTILE}", about="About the runs.")
    return path


@pytest.fixture
def copied(runs: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Copy a run, to change it."""

    def copy(name: str) -> Path:
        shutil.copytree(runs / name, tmp_path / name)
        return tmp_path / name

    return copy
