"""Train, attack and plot in a few lines: what `import tpsl` offers to a notebook or a script.

It is the label party's view, with every party in one process: results depend on true labels and stay with it.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel

from tpsl.attacks import AttackReport, AttackResult, run_attacks
from tpsl.data.config import DataConfig
from tpsl.data.dataset import Dataset
from tpsl.files import write_atomically
from tpsl.model.trained import TrainedModel
from tpsl.models.model_config import ModelConfig
from tpsl.progress import Progress
from tpsl.report import charts
from tpsl.report.chart import Chart
from tpsl.report.html_parts import document, pictures
from tpsl.report.ledgers import result_now
from tpsl.report.run_reading import read_run
from tpsl.report.run_view import Attacks as Attacked
from tpsl.report.words import auc_text, bound_text, guarantee_text, measured_text
from tpsl.run.job import Job, make_job
from tpsl.run.job_sections import PrivacyConfig, TrainingConfig
from tpsl.run.local import Local
from tpsl.run.observer import Watching
from tpsl.run.one_process import load_records, train_together
from tpsl.run.own_parts import OwnParts
from tpsl.run.result import TrainResult
from tpsl.run.run_folder import RunError, RunFolder
from tpsl.run.setup import RunSetup
from tpsl.run.transcript import RECORDED_STEPS
from tpsl.run.warm_start import StartingPoint


def job(data: str | DataConfig | Mapping[str, Any] = "flights", *, epsilon: float | None = None, **keys: Any) -> Job:
    """Return a job: the agreement that parties train under. A wrong value is a `ValueError` that names it.

    `data` is a source with its defaults, or the whole data part of a job. `epsilon` is 1 where it is not given, and
    `float("inf")` is training without noise. Every other key of the job's parts goes by its own name, as `epochs=3`,
    `mechanism="laplace"` or `members=4`, or in a whole part, as `training={"epochs": 3}` or
    `statistic={"share_codes": True}`; `rows` is the data's, and `learning_rate` that of both optimisers. `seed` fixes
    batches and initial weights, never the noise; `noise_seed` fixes the noise, and the run is then NOT private.
    """
    given = {name: value for name, value in keys.items() if value is not None}
    content: dict[str, Any] = {part: dict(given.pop(part, {})) for part in _PARTS}
    content |= {name: given.pop(name) for name in _WHOLE if name in given}
    source = {"source": data} if isinstance(data, str) else data
    content["data"] = source.model_dump(mode="json") if isinstance(source, BaseModel) else dict(source)
    if "rows" in given:
        content["data"]["rows"] = given.pop("rows")
    if "learning_rate" in given:
        rate = given.pop("learning_rate")
        optimizers = {name: {"learning_rate": rate} for name in ("feature_optimizer", "label_optimizer")}
        content["training"] = {**optimizers, **content["training"]}
    for name, value in given.items():
        content[_part_with(name)][name] = value
    privacy = content["privacy"]
    if epsilon == math.inf and privacy.get("mechanism") in (None, "auto", "none"):
        privacy["mechanism"] = "none"
    elif epsilon is not None:
        privacy["epsilon"] = epsilon
    elif privacy.get("mechanism") not in ("none", "gaussian") and privacy.get("gradients") != "none":
        privacy.setdefault("epsilon", 1.0)
    return make_job(content, {}, "job")


_WHOLE = ("method", "statistic")
_PARTS: dict[str, type[BaseModel]] = {"privacy": PrivacyConfig, "model": ModelConfig, "training": TrainingConfig}


def _part_with(key: str) -> str:
    """Return the part of a job that has this key; no two parts have the same."""
    for part, schema in _PARTS.items():
        if key in schema.model_fields:
            return part
    known = [name for schema in _PARTS.values() for name in schema.model_fields]
    raise ValueError(f"job: there is no key {key!r}; known are rows, learning_rate, {', '.join((*_WHOLE, *known))}")


def train(
    job: Job,
    path: str | os.PathLike[str] | None = None,
    *,
    vault: str | os.PathLike[str] | None = None,
    own: Mapping[str, OwnParts] = MappingProxyType({}),
    record_steps: int = RECORDED_STEPS,
    scratch: bool = False,
    progress: bool = True,
    data: Dataset | None = None,
    **local: Any,
) -> Run:
    """Run a job in this process and return the run, with its folder; an interrupted one goes on where it stopped.

    Guarantee: that of `one_process.train`. `path` is the run's folder, a new one under `runs` if None. Labels and
    releases are kept in the label party's one vault, or in `vault`, which is apart from it: a second run on the same
    labels costs no more. What the label party permits goes by the names of its local file: ε up
    to `max_epsilon` in all, `not_private` no noise and seeded noise, `compose` a second release of the same labels.
    `start_from` is a finished run that training starts from.
    `own` is what parties bring themselves, by their names. The transcript of the first `record_steps` steps is
    recorded, so that the run can be attacked. A `scratch` run is for its owner alone: any ε, also none, with its own
    vault, which counts in no total; nothing of it may leave. Runs on data that come with tpsl, whose labels are public,
    are scratch runs unless `vault` is given.
    """
    if job.privacy.noise_seed is not None:
        warnings.warn("the noise is seeded: this run is NOT private", stacklevel=2)
    folder = _new_folder(job) if path is None else Path(path)
    side = Local().overridden(vault=None if vault is None else Path(vault), **local)
    start = side.starting_point()
    if data is None and own:
        data = load_records(job, own, encoders=start.encoders() if start else {})
    with _progress_bar(shown=progress) as show:
        device, watching = torch.device(side.device), Watching(progress=show)
        setup = RunSetup(job, RunFolder(folder), own, device, record_steps, watching, start=start)
        train_together(setup, side.vault_choice(scratch=scratch), data)
    run = Run(folder, own)
    if data is not None:
        run.data = data
    return run


class Run:
    """A finished run, as the label party sees it: `tpsl.Run(folder)` opens it again.

    `own` is needed for parties that gave Python objects: a run notes only what it can make again. A folder without a
    finished run is a `ValueError` that says why.
    """

    def __init__(self, path: str | os.PathLike[str], own: Mapping[str, OwnParts] = MappingProxyType({})) -> None:
        self.path, self._own = Path(path), own
        folder = RunFolder(self.path)
        self.job: Job = folder.job()
        result = folder.result()
        if result is None:
            raise RunError(f"{path}: the run is not finished; train the same job in the same folder to go on")
        self.result: TrainResult = result_now(folder, result)[0]
        self.metrics: list[dict[str, Any]] = folder.metrics()
        """The test metrics after each epoch."""
        self.attacks: Attacks | None = None
        """What the last `attack` found."""

    @cached_property
    def data(self) -> Dataset:
        """All parties' data, loaded when it is first needed."""
        own, begun = RunFolder(self.path).all_own_parts(), StartingPoint.of_run(self.path)
        return load_records(self.job, {**own, **self._own}, encoders=begun.encoders())

    @cached_property
    def model(self) -> TrainedModel:
        """What the run has learned: predicts and embeds new records, and is exported."""
        return TrainedModel.open(self.path, self._own)

    def predict(self, rows: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.float32]:
        """Return the probabilities of these rows of `data`, of the test rows if None; they depend on no true label."""
        return self.model.predict_rows(self.data, self.data.test if rows is None else rows)

    def attack(self, *names: str, skip: int = 0, progress: bool = True) -> Attacks:
        """Attack what was recorded, by all attacks or by those named; the true labels only score the guesses."""
        with _progress_bar(shown=progress) as show:
            report = run_attacks(
                self.path,
                self.data.labels,
                which=names or None,
                features=self.data.feature_parties,
                skip=skip,
                progress=show,
            )
        self.attacks = Attacks(report)
        return self.attacks

    def plot(self) -> Picture:
        """Return the report's charts of the run: test AUC by epoch and, after `attack`, what each attack reached."""
        view = read_run(self.path)
        attacks = self.attacks.report.as_dict() if self.attacks else None
        view = replace(view, attacks=Attacked.of(attacks, seeded=view.promise.seeded) if attacks else None)
        shown = filter(None, [charts.curves([view], "test_auc"), charts.attack_areas(view)])
        return Picture(list(shown), f"{self.result.data}, {self.guarantee}")

    @property
    def guarantee(self) -> str:
        """What is promised about each label, in short: spent in all, and by this run where that is less."""
        return guarantee_text(self.result)

    def __repr__(self) -> str:
        result, noted = self.result, RunFolder(self.path).noted_ledger()
        facts = {
            "run": self.path,
            **({"vault": noted.vault} if noted else {}),
            "data": f"{result.data}, {result.train_records:,} training and {result.test_records:,} test records",
            "guarantee": self.guarantee,
            "mechanism": f"{result.mechanism}, estimator {result.estimator}",
            "test AUC": _measured(result.test_auc, result.test_auc_low, result.test_auc_high),
            "trained": f"{result.epochs} epochs, {result.steps:,} steps, {result.seconds:.1f} s",
        }
        return "\n".join(f"{name:<10} {value}" for name, value in facts.items())


@dataclass(frozen=True)
class Picture:
    """Charts of a run, which a notebook shows as they are."""

    charts: Sequence[Chart]
    title: str

    def _repr_html_(self) -> str:
        return pictures(self.charts, self.title)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the charts as one HTML file that loads nothing."""
        write_atomically(Path(path), document(self.title, pictures(self.charts, self.title)).encode())


class Attacks:
    """What attacks on one run reached: `attacks["likelihood"].auc`, or a table to look at."""

    def __init__(self, report: AttackReport) -> None:
        self.report = report

    def __getitem__(self, name: str) -> AttackResult:
        return self.report[name]

    def __iter__(self) -> Iterator[AttackResult]:
        return iter(self.report.attacks)

    def __len__(self) -> int:
        return len(self.report.attacks)

    def as_dicts(self) -> list[dict[str, Any]]:
        """Return a row for each attack, as a data frame takes them."""
        return [asdict(result) for result in self]

    def __repr__(self) -> str:
        rows = [["attack", "the attacker has", "AUC", "theory", "bound"]]
        for one in self:
            area, bound = (one.auc, one.auc_low, one.auc_high), (one.ceiling, one.ceiling_low, one.ceiling_high)
            needs = one.needs.replace("+", " + ")
            rows.append([one.name, needs, _measured(*area), auc_text(one.closed_form), bound_text(*bound)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(line.rstrip() for line in lines)


def _measured(area: float, low: float, high: float) -> str:
    """Return an AUC with its interval; what does not exist (in runs and reports NaN) is a dash."""
    return measured_text(*(None if math.isnan(value) else value for value in (area, low, high)))


def _new_folder(job: Job) -> Path:
    """Return a folder that does not exist yet: a finished run there would be taken for this one."""
    name = f"{job.data.source}-{job.privacy.mechanism}-{time.strftime('%Y%m%d-%H%M%S')}"
    candidates = (Path("runs") / (name + suffix) for suffix in ("", *(f"-{number}" for number in range(2, 10_000))))
    return next(folder for folder in candidates if not folder.exists())


@contextmanager
def _progress_bar(*, shown: bool) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import Progress as Bars

    with Bars(console=Console(stderr=True), transient=True, disable=not shown) as bars:
        task = bars.add_task("", total=None)
        yield lambda done, total, note: bars.update(task, completed=done, total=total, description=note)
