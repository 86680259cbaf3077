"""What ε buys: accuracy against ε for the paper's mechanisms, for ours, and for what a user would do instead.

In the part `private` a cell is a whole replicate of the procedure, tuning by noisy validation included; in the part
`local` it is one run with a local head, stopped by noisy validation. Each cell leaves one small row and no run; a cell
that has its row is not computed again. One that fails leaves a row with the reason, and is tried again the next time.
Networks and trees on noisy labels leave their scores beside their rows: `auto` is the ensemble of both.
Noise is seeded, because an experiment should be repeatable: none of these runs is private, and their rows say so.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path

import torch
from safetensors.torch import save

from tpsl.files import make_private_folder, shortened, write_atomically
from tpsl.progress import Progress, no_progress
from tpsl.run.build import pretrained_weights
from tpsl.run.job import Job
from tpsl.select.candidates import pretraining_key
from tpsl.select.parallel import Task, load_once, run_tasks
from tpsl_research.frontier_cells import Cell, Row
from tpsl_research.frontier_ensemble import ensemble_row, read_scores, scores_beside
from tpsl_research.frontier_runs import Workplace, as_one_result, compute, pretrained, tested_with_hold_out


def frontier(
    base: Job,
    out: Path,
    wanted: Sequence[Cell],
    *,
    workers: int = 1,
    device: torch.device | None = None,
    progress: Progress = no_progress,
) -> Iterator[list[Row]]:
    """Compute the wanted cells that have no row yet; yield all rows so far, in order, at the start and after each cell.

    `base` gives data, network and how long to train. Rows lie in `out/cells`; whatever ends the process, finished
    cells stay, and runs of an unfinished one that are complete are not repeated.
    """
    rows = out / "cells"
    make_private_folder(rows)
    paths = {cell: _row_path(cell, base, out) for cell in wanted}
    missing = [cell for cell in wanted if not _is_done(paths[cell])]
    waves = _waves(missing, base, out, device)
    done, total = len(wanted) - len(missing), len(wanted)
    progress(done, total, "")
    yield _read(paths)
    names = {cell.name for cell in missing}
    for name in chain.from_iterable(run_tasks(wave, workers) for wave in waves):
        done += name in names
        progress(done, total, name)
        if name in names:
            yield _read(paths)
    with suppress(OSError):  # it is not there, or another process has cells in it
        (out / "work").rmdir()


def _row_path(cell: Cell, base: Job, out: Path) -> Path:
    return out / "cells" / f"{cell.key(base)}.json"


def _is_done(path: Path) -> bool:
    return path.exists() and "failed" not in json.loads(path.read_text(encoding="utf-8"))


def _read(paths: dict[Cell, Path]) -> list[Row]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths.values() if path.exists()]


def _waves(missing: Sequence[Cell], base: Job, out: Path, device: torch.device | None) -> list[list[Task]]:
    """Return pre-training, which cells share, then the cells in order, then those that take rows of others over."""
    jobs = {pretraining_key(job): job for cell in missing if (job := _job_with_pretraining(cell, base)) is not None}
    folder = out / "pretrained"
    pretraining = [
        Task(f"pre-training {key}", partial(_pretrain, job, folder, device))
        for key, job in jobs.items()
        if not all(pretrained(job, folder, party).exists() for party in job.data.feature_parties)
    ]
    cells: tuple[list[Task], list[Task]] = ([], [])
    for cell in missing:
        cells[bool(_cells_before(cell, base))].append(Task(cell.name, partial(run_cell, cell, base, out, device)))
    return [pretraining, *cells]


def _cells_before(cell: Cell, base: Job) -> tuple[Cell, ...]:
    """Return the cells whose rows a cell can take over."""
    with suppress(ValueError):  # the cell's row says so
        return cell.stands_for(base)
    return ()


def _job_with_pretraining(cell: Cell, base: Job) -> Job | None:
    try:
        job = cell.job(base)
    except ValueError:  # the cell's row says so
        return None
    return None if job.training.pretrain is None else job


def _pretrain(job: Job, folder: Path, device: torch.device | None) -> None:
    with suppress(Exception):  # the cells that need it find the same error, and say so in their rows
        for party, side in load_once(job).feature_sides.items():
            path = pretrained(job, folder, party)
            if not path.exists():
                make_private_folder(path.parent)
                write_atomically(path, save(pretrained_weights(job, side, device)))


def run_cell(cell: Cell, base: Job, out: Path, device: torch.device | None = None) -> None:
    """Compute one cell and write its row; its runs are deleted. What goes wrong becomes the row's reason."""
    begun, computed = time.perf_counter(), time.process_time()
    path, work = _row_path(cell, base, out), out / "work" / cell.key(base)
    place = Workplace(work, out / "pretrained", scores_beside(path), device)
    try:
        members = cell.stands_for(base)
        found = _combined(members, base, out, place) if members else compute(cell, base, place)
    except Exception as error:  # whatever it is: the other cells are to be computed all the same
        found = {"results": {}, "failed": shortened(" ".join(f"{error or type(error).__name__}".split()), 300)}
    took = {"seconds": time.perf_counter() - begun, "cpu_seconds": time.process_time() - computed}
    row = {**found, **asdict(cell), "private": False, **took}
    write_atomically(path, json.dumps(row).encode())
    shutil.rmtree(work, ignore_errors=True)


def _combined(members: Sequence[Cell], base: Job, out: Path, place: Workplace) -> Row:
    """Return what is found for `auto`, from the rows of the cells that it stands for; those not there are computed."""
    paths = [_row_path(member, base, out) for member in members]
    for member, path in zip(members, paths, strict=True):
        if not _is_done(path) or (len(members) > 1 and not scores_beside(path).exists()):
            run_cell(member, base, out, place.device)
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    for row in rows:
        if "failed" in row:
            raise ValueError(row["failed"])
    if len(rows) == 1:
        return as_one_result(rows[0])
    network, trees = (read_scores(scores_beside(path)) for path in paths)
    network = replace(network, test=tested_with_hold_out(members[0], base, rows[0], place))
    return ensemble_row(rows, [network, trees], load_once(base))
