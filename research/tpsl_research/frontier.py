"""What ε buys: accuracy against ε for the paper's mechanisms and for ours, each tuned with the same care.

A cell is an algorithm, an ε and a seed. In the part `private` it is a whole replicate of the procedure, tuning by
noisy validation included; in the part `local` it is one run with a local head, stopped by noisy validation. Each cell
leaves one small row and no run; a cell that has its row is not computed again. Noise is seeded, because an experiment
should be repeatable: none of these runs is private, and their rows say so.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from tpsl.files import for_json, make_private_folder, write_atomically
from tpsl.mechanisms import randomized_response
from tpsl.progress import Progress, no_progress
from tpsl.training.job import Job, make_job
from tpsl.training.one_process import train
from tpsl.training.run_folder import RunFolder
from tpsl.training.setup import RunSetup
from tpsl.transport.checks import BadMessage
from tpsl.transport.peers import LABEL_PARTY
from tpsl.tuning.pool import Task, load_once, run_tasks
from tpsl.tuning.search import tune
from tpsl.tuning.shared_parts import copy_pretrained, is_pretrained, pretrain_once, pretraining_key
from tpsl.tuning.space import RECOMMENDED_SPACE, configuration
from tpsl_research.paper import DISCRETE, GAUSSIAN, LAPLACE, NON_PRIVATE
from tpsl_research.sweep import gaussian_sigma_like_laplace

Part = Literal["private", "local"]
Row = dict[str, Any]

OURS = "tpsl"
EPSILONS = (0.1, 0.5, 1.0, 2.0)
BASELINES = (LAPLACE, DISCRETE, GAUSSIAN)
BASELINE_SPACE: tuple[dict[str, Any], ...] = tuple(
    configuration(learning_rate, weight_decay=weight_decay, averaging=0.995)
    for weight_decay in (1e-4, 0.0)
    for learning_rate in (1e-3, 3e-3, 5e-4)
)
"""As many configurations as ours, over what a baseline can be tuned by; Discrete and Gaussian get the first two."""

TRAINING: dict[str, Any] = {
    "epochs": 3,
    "batch_size": 1024,
    "validation": 0.1,
    "checkpoint_every": 1 << 30,  # at the end of an epoch alone
}
"""How every cell trains, besides what it is tuned over."""

MOST_EPOCHS_AT_SMALL_EPSILON = 2
"""Below ε = 2 a third epoch learns the recorded noise by heart, with every mechanism."""

ONE_EPOCH_BELOW = 0.25
"""With a wide part, whose deep part has little to add at such an ε and much to spoil."""

_LOCAL = configuration(1e-3, weight_decay=1e-4, averaging=0.995)["training"]
_MASKED = {"method": "masked"}


@dataclass(frozen=True)
class Cell:
    """One point of the frontier for one seed."""

    part: Part
    algorithm: str
    epsilon: float | None
    """None without noise, 0 where nothing is sent back."""
    seed: int

    @property
    def name(self) -> str:
        """What progress calls it."""
        level = "ε = ∞" if self.epsilon is None else f"ε = {self.epsilon:g}"
        return f"{self.algorithm}, {self.part} head, {level}, seed {self.seed}"

    def privacy(self) -> dict[str, Any]:
        """Return the job's privacy part."""
        if self.epsilon == 0:
            return {"gradients": "none"}
        if self.algorithm == NON_PRIVATE:
            return {"mechanism": "none", "estimator": "linear"}
        if self.algorithm == GAUSSIAN:
            sigma = gaussian_sigma_like_laplace(self.epsilon or math.nan)
            return {"mechanism": "gaussian", "sigma": sigma, "delta": 1e-5, "estimator": "linear"} | self._noise()
        if self.epsilon is None:
            return {"mechanism": "none", "estimator": "posterior"}
        mechanism, estimator = {
            LAPLACE: ("laplace", "linear"),
            DISCRETE: ("discrete", "linear"),
            OURS: ("auto", "posterior"),
        }[self.algorithm]
        return {"mechanism": mechanism, "epsilon": self.epsilon, "estimator": estimator} | self._noise()

    def _noise(self) -> dict[str, Any]:
        return {"noise_seed": self.seed}

    @property
    def space(self) -> tuple[dict[str, Any], ...]:
        """What the cell is tuned over, in the part `private`."""
        if self.algorithm == OURS:
            return RECOMMENDED_SPACE
        return BASELINE_SPACE if self.algorithm in (NON_PRIVATE, LAPLACE) else BASELINE_SPACE[:2]

    def training(self, base: Job) -> dict[str, Any]:
        """Return what the cell changes of the base job's training part, besides what it is tuned over."""
        changes: dict[str, Any] = {"seed": self.seed}
        if self.epsilon is not None and self.epsilon < 2:
            most = MOST_EPOCHS_AT_SMALL_EPSILON
            if (self.part, self.algorithm) == ("private", OURS) and self.epsilon < ONE_EPOCH_BELOW:
                most = 1
            changes["epochs"] = min(base.training.epochs, most)
        if self.part == "local":
            stopping = {"validation": 0.0} if self.epsilon == 0 else {"patience": 1}
            pretrain = _MASKED if self.algorithm == OURS else None
            changes |= {**_LOCAL, **stopping, "head": "local", "pretrain": pretrain}
        return changes

    def job(self, base: Job) -> Job:
        """Return the job that the cell is tuned from, or in the part `local` trains."""
        content = {**base.model_dump(mode="json", exclude_none=True), "privacy": self.privacy()}
        wide = self.part == "local" and self.algorithm == OURS and self.epsilon != 0
        changes = {"training": self.training(base), "model": {"wide": True} if wide else {}}
        return make_job(content, changes, self.name)

    def key(self, base: Job) -> str:
        """Return the name of this cell's files: a digest of all that decides its result."""
        space = self.space if self.part == "private" else None
        content = [self.job(base).agreed(), asdict(self), space]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]


def cells(seeds: Sequence[int], epsilons: Sequence[float], parts: Sequence[Part]) -> list[Cell]:
    """Return all cells, seed after seed, so that unfinished results are whole frontiers of fewer seeds.

    An ε that no mechanism can have is an error, before anything is computed.
    """
    for epsilon in epsilons:
        randomized_response(epsilon)
    found = []
    for seed in seeds:
        if "private" in parts:
            found += [Cell("private", NON_PRIVATE, None, seed), Cell("private", OURS, None, seed)]
            found += [Cell("private", name, epsilon, seed) for epsilon in epsilons for name in (*BASELINES, OURS)]
        if "local" in parts:
            found.append(Cell("local", OURS, 0.0, seed))
            found += [Cell("local", name, epsilon, seed) for epsilon in epsilons for name in (*BASELINES, OURS)]
    return found


def frontier(
    base: Job,
    out: Path,
    *,
    seeds: Sequence[int],
    epsilons: Sequence[float] = EPSILONS,
    parts: Sequence[Part] = ("private", "local"),
    workers: int = 1,
    device: torch.device | None = None,
    progress: Progress = no_progress,
) -> Iterator[list[Row]]:
    """Compute the cells that have no row yet; yield all rows so far, in order, at the start and after each cell.

    `base` gives data, network and how long to train. Rows lie in `out/cells`; whatever ends the process, finished
    cells stay, and runs of an unfinished one that are complete are not repeated.
    """
    wanted = cells(seeds, epsilons, parts)
    rows = out / "cells"
    make_private_folder(rows)
    paths = {cell: rows / f"{cell.key(base)}.json" for cell in wanted}
    missing = [cell for cell in wanted if not paths[cell].exists()]
    tasks = _tasks(missing, base, out, device)
    done, total = len(wanted) - len(missing), len(wanted)
    progress(done, total, "")
    yield _read(paths)
    names = {cell.name for cell in missing}
    for name in run_tasks(tasks, workers):
        done += name in names
        progress(done, total, name)
        if name in names:
            yield _read(paths)
    with suppress(OSError):  # it is not there, or another process has cells in it
        (out / "work").rmdir()


def _read(paths: dict[Cell, Path]) -> list[Row]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths.values() if path.exists()]


def _tasks(missing: Sequence[Cell], base: Job, out: Path, device: torch.device | None) -> list[Task]:
    """Return the cells in order; pre-training comes one seed ahead, so that no cell waits for it."""
    by_seed: dict[int, list[Task]] = {}
    pretraining: dict[int, list[Task]] = {}
    known: set[str] = set()
    folder = out / "pretrained"
    for cell in missing:
        needs = set()
        job = cell.job(base)
        if job.training.pretrain is not None:
            name = f"pre-training {pretraining_key(job)}"
            needs.add(name)
            if name not in known and not is_pretrained(job, folder):
                task = Task(name, partial(_pretrain, job, folder, device))
                pretraining.setdefault(cell.seed, []).append(task)
            known.add(name)
        by_seed.setdefault(cell.seed, []).append(
            Task(cell.name, partial(run_cell, cell, base, out, device), frozenset(needs))
        )
    seeds = list(by_seed)
    tasks = [task for seed in seeds[:1] for task in pretraining.get(seed, [])]
    for at, seed in enumerate(seeds):
        ahead = [task for following in seeds[at + 1 : at + 2] for task in pretraining.get(following, [])]
        tasks += [*ahead, *by_seed[seed]]
    return tasks


def _pretrain(job: Job, folder: Path, device: torch.device | None) -> None:
    pretrain_once(job, load_once(job), folder, device)


def run_cell(cell: Cell, base: Job, out: Path, device: torch.device | None = None) -> None:
    """Compute one cell and write its row; its runs are deleted."""
    begun = time.perf_counter()
    work = out / "work" / cell.key(base)
    job = cell.job(base)
    found = _tuned(cell, job, work, device) if cell.part == "private" else _local(job, out, work, device)
    row = {**asdict(cell), "private": False, **found, "seconds": time.perf_counter() - begun}
    write_atomically(out / "cells" / f"{cell.key(base)}.json", json.dumps(row).encode())
    shutil.rmtree(work)


def _tuned(cell: Cell, job: Job, work: Path, device: torch.device | None) -> Row:
    result = tune(RunSetup(job, RunFolder(work), device=device), cell.space)
    # Chosen by the test set: what a selection rule could reach at most. Not a selection rule.
    oracle = max(result.candidates, key=lambda candidate: candidate.test.test_auc)
    return {
        "mechanism": result.mechanism,
        "exact_epsilon": for_json(result.epsilon),
        "delta": result.delta,
        "results": {
            "best": {
                "configuration": result.best.configuration,
                "epoch": result.best.epoch,
                **asdict(result.best.test),
            },
            "committee": asdict(result.committee),
            "oracle": {"configuration": oracle.configuration, "epoch": oracle.epoch, **asdict(oracle.test)},
        },
        "candidates": [candidate.as_dict() for candidate in result.candidates],
        "diverged": list(result.diverged),
    }


def _local(job: Job, out: Path, work: Path, device: torch.device | None) -> Row:
    data, run = load_once(job), RunFolder(work)
    with run.started(job, [*data.feature_parties, LABEL_PARTY]):
        copy_pretrained(job, out / "pretrained", run)
    try:
        result = train(job, work, data=data, device=device)
    except BadMessage as error:
        return {"results": {}, "diverged": [str(error)]}
    head = run.local_head()
    return {
        "mechanism": result.mechanism,
        "exact_epsilon": for_json(result.epsilon),
        "delta": result.delta,
        "results": {"local": {"epoch": result.kept_epoch, **(head or {})}},
        "private_head_auc": for_json(result.test_auc),
        "diverged": [],
    }
