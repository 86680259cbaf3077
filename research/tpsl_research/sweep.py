"""Many runs of one job, each with its own mechanism and seed: in parallel, resumable, one tidy table out.

Each cell is trained, attacked and reduced to one row; its transcript is deleted. A cell that has its row
is not run again, so an interrupted sweep goes on where it stopped. Noise is seeded, because an experiment should be
repeatable: the runs of a sweep are not private, and their rows say so.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from tpsl.attacks import AttackReport, run_attacks
from tpsl.attacks.auc_prediction import predicted_auc
from tpsl.files import for_json, make_private_folder, write_atomically
from tpsl.net.failures import BadMessage
from tpsl.progress import Progress, no_progress
from tpsl.run.build import build_label_party
from tpsl.run.job import Job, make_job
from tpsl.run.one_process import ALL_STEPS, train_together
from tpsl.run.result import TrainResult
from tpsl.run.run_folder import RunFolder
from tpsl.run.setup import RunSetup
from tpsl.run.vaults import VaultChoice
from tpsl.select.parallel import SharedRecords, Task, load_once, run_tasks
from tpsl_research.defences import Defence, defended

ATTACKS = ("norm", "spectral", "shortest_distance", "likelihood")


@dataclass(frozen=True)
class Setting:
    """One cell of a grid."""

    algorithm: str
    """The name in tables and figures."""
    privacy: dict[str, Any]
    """The job's privacy part."""
    seed: int
    defence: Defence | None = None

    def key(self, base: Job) -> str:
        """Return the name of this cell's files: a digest of all that decides its result."""
        content = {"base": base.digest(), **asdict(self)}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]

    def job(self, base: Job) -> Job:
        """Return the base job with this cell's privacy and seed."""
        privacy = {**self.privacy, "noise_seed": None if self.privacy["mechanism"] == "none" else self.seed}
        content = {**base.model_dump(mode="json"), "privacy": privacy}
        return make_job(content, {"training": {"seed": self.seed}}, f"{self.algorithm}, seed {self.seed}")


def gaussian_sigma_like_laplace(epsilon: float) -> float:
    """Return the σ at which shortest distance has the AUC that Laplace at ε gives it: `Φ(1/(2σ)) = 1 - ½e^{-ε/2}`."""
    return 1 / (2 * NormalDist().inv_cdf(1 - math.exp(-epsilon / 2) / 2))


def sweep(
    settings: Sequence[Setting],
    base: Job,
    out: Path,
    *,
    workers: int | None = None,
    skip_batches: int = 0,
    progress: Progress = no_progress,
) -> list[dict[str, Any]]:
    """Run the cells that have no row yet; return all rows in the order of the settings, and write them to files.

    `out/results.csv` and `out/results.parquet` hold one row for each cell. `skip_batches` leaves the first batches
    out of the attack AUCs, of a short run the first half.
    """
    cells = out / "cells"
    make_private_folder(cells)
    missing = [setting for setting in settings if not _row_path(cells, setting, base).exists()]
    done = len(settings) - len(missing)
    progress(done, len(settings), "")
    workers = workers or min(os.cpu_count() or 1, max(1, len(missing)))
    if missing:
        records = SharedRecords(base, {}, load_once(base))
        tasks = [
            Task(f"{cell.algorithm}, seed {cell.seed}", partial(_run_cell, cell, base, records, cells, skip_batches))
            for cell in missing
        ]
        for name in run_tasks(tasks, workers):
            done += 1
            progress(done, len(settings), name)
    rows = [json.loads(_row_path(cells, setting, base).read_text(encoding="utf-8")) for setting in settings]
    columns = dict.fromkeys(name for row in rows for name in row)
    table = pa.table({name: [row.get(name) for row in rows] for name in columns})
    for path, write in ((out / "results.parquet", pa.parquet.write_table), (out / "results.csv", pa.csv.write_csv)):
        content = pa.BufferOutputStream()
        write(table, content)
        write_atomically(path, content.getvalue().to_pybytes())
    return rows


def _row_path(cells: Path, setting: Setting, base: Job) -> Path:
    return cells / f"{setting.key(base)}.json"


def _run_cell(setting: Setting, base: Job, records: SharedRecords, cells: Path, skip_batches: int) -> None:
    """Train and attack one cell and write its row."""
    data, job = records.dataset, setting.job(base)
    run = cells / setting.key(base)
    shutil.rmtree(run, ignore_errors=True)
    make = build_label_party if setting.defence is None else defended(setting.defence, setting.seed)
    try:
        result = train_together(
            RunSetup(job, RunFolder(run), record_steps=ALL_STEPS), VaultChoice(scratch=True), data, make
        )
        skip = min(skip_batches, result.steps // 2)
        report = run_attacks(run, data.labels, which=ATTACKS, skip=skip, ceilings=False)
        row = {**_description(setting, job, data.classes), "diverged": False, **_results(result, report)}
    except BadMessage:
        # Numbers that are not finite: the learning rate is too large for this much noise. That is a result too.
        row = {**_description(setting, job, data.classes), "diverged": True}
    write_atomically(_row_path(cells, setting, base), json.dumps(row).encode())
    shutil.rmtree(run)


def _description(setting: Setting, job: Job, classes: int) -> dict[str, Any]:
    mechanism = job.privacy.build(classes)
    defence = setting.defence
    return {
        "algorithm": setting.algorithm,
        "mechanism": mechanism.name,
        "estimator": job.privacy.estimator,
        "requested_epsilon": job.privacy.epsilon,
        "epsilon": for_json(mechanism.epsilon),
        "delta": mechanism.delta,
        "sigma": job.privacy.sigma,
        "defence": defence.name if defence else None,
        "strength": defence.strength if defence else None,
        "seed": setting.seed,
        "private": False,
        "closed_form": predicted_auc(mechanism).shortest_distance,
        "ceiling": predicted_auc(mechanism).ceiling,
    }


_RESULTS = ("test_auc", "test_log_loss", "test_calibration_error", "epochs", "steps", "samples_per_second")


def _results(result: TrainResult, report: AttackReport) -> dict[str, Any]:
    found: dict[str, Any] = {name: getattr(result, name) for name in _RESULTS}
    for attack in report.attacks:
        found[f"{attack.name}_auc"] = attack.auc
        found[f"{attack.name}_low"] = attack.auc_low
        found[f"{attack.name}_high"] = attack.auc_high
    return found
