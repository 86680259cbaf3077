"""Free model selection: train a small space of configurations on one release, and let noisy labels choose.

Every epoch of every configuration is a candidate. Candidates are compared by the noisy labels of held-out records
alone, which are released already: however many are tried, the vault's ledger does not change, and what is chosen may
cross the border. There are two answers: the `best` candidate, and the `committee` of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tpsl.data.dataset import Dataset
from tpsl.files import make_private_folder
from tpsl.net.failures import BadMessage
from tpsl.net.peers import LABEL_PARTY
from tpsl.progress import Notice, no_notice, said_once
from tpsl.training.alone import train_alone
from tpsl.training.job import Job, SearchStep
from tpsl.training.observer import Observer, Watching
from tpsl.training.one_process import train_together
from tpsl.training.own_parts import OwnParts
from tpsl.training.releases import noisy_labels_for
from tpsl.training.setup import RunSetup
from tpsl.training.vaults import ReleasedLabels, VaultChoice, choose_vault
from tpsl.tuning.after_search import with_test_metrics
from tpsl.tuning.candidates import Trial, TuneResult, compare, trials_of
from tpsl.tuning.pool import Task, load_once, run_tasks
from tpsl.tuning.search_folder import check_release, write_result
from tpsl.tuning.shared_parts import (
    copy_pretrained,
    copy_wide_parts,
    fit_wide_once,
    pretrain_once,
    pretraining_key,
)
from tpsl.tuning.shared_records import SharedRecords
from tpsl.tuning.space import default_space, jobs_of


def tune(
    setup: RunSetup,
    space: Sequence[Mapping[str, Any]] | None = None,
    *,
    vault: VaultChoice | ReleasedLabels | None = None,
    data: Dataset | None = None,
    workers: int = 1,
) -> TuneResult:
    """Train every configuration of the space (changes to the set-up's job; None: ours) on one release; compare them.

    Guarantee: labels are released once, and everything else is post-processing of that release. The vault is found as
    `one_process.train` finds it; if nothing is said of it, it is a scratch vault in the set-up's folder. Test
    metrics depend on true labels and choose nothing. A job without a hold-out gets one of a tenth. Runs that are done
    in the folder are not repeated. `data` must be what the job's data part loads: other workers load true labels by
    themselves.
    A feature party that is alone gives labels that it was handed over for the vault, and its data (`Dataset.of_one`).

    Writes `tune.json` and `best.yaml`, the job of the best candidate, into the folder.
    """
    base, out, watching = setup.job, setup.run.path, setup.watching
    jobs = None if space is None else jobs_of(base, space)  # a fault in the space is found before data are loaded
    data = load_once(base, setup.own) if data is None else data
    own_networks = any(parts.bottom is not None for parts in setup.own.values())
    jobs = jobs or jobs_of(base, default_space(data.classes, own_networks))
    make_private_folder(out)
    if isinstance(vault, ReleasedLabels):
        released = vault
    else:
        released = _released(replace(setup, job=jobs[0]), data, vault or VaultChoice(scratch=True))
    check_release(out, released.labels)
    trials = trials_of(jobs, out)
    handed = vault if isinstance(vault, ReleasedLabels) else None
    records = SharedRecords(base, setup.own, data)
    notice = said_once(watching.notice) if workers == 1 else no_notice
    tasks = SearchTasks(out, records, released, setup.own, setup.device, handed, notice).of(trials)
    watching.progress(0, len(tasks), "")
    for done, name in enumerate(run_tasks(tasks, workers), 1):
        watching.progress(done, len(tasks), name)
    result = with_test_metrics(compare(base, trials, data.label_side.records, released, out), out, data.label_side)
    write_result(out, result)
    return result


def _released(setup: RunSetup, data: Dataset, choice: VaultChoice) -> ReleasedLabels:
    """Return the one release of a search, from the vault that is found for it."""
    own = setup.run.path / "vault"
    if choice.scratch and choice.named is None:
        choice = replace(choice, named=own)
    chosen = choose_vault(setup, data.label_side, choice)
    chosen.store()
    noisy, total = noisy_labels_for(setup.job, data.label_side, chosen.path, setup.watching.notice, chosen.policy)
    return ReleasedLabels(noisy, total, chosen.path)


@dataclass(frozen=True)
class SearchTasks:
    """What all tasks of a search share; it goes to the processes that do them."""

    out: Path
    records: SharedRecords
    released: ReleasedLabels
    own: Mapping[str, OwnParts]
    device: torch.device | None
    handed: ReleasedLabels | None = None
    """What a feature party that is alone was handed over; it then has no vault."""
    notice: Notice = no_notice
    """Told what runs have to say, where they are in this process."""

    def of(self, trials: Sequence[Trial]) -> list[Task]:
        """Return the trials, after what several of them share."""
        jobs = [trial.job for trial in trials]
        tasks = []
        for key, job in {pretraining_key(job): job for job in jobs}.items():
            if key is not None:
                tasks.append(Task(_pretraining(job), partial(self.pretrain, job)))
        for job in {job.training.wire: job for job in jobs if job.model.wide}.values():
            tasks.append(Task(_wide_part(job), partial(self.fit_wide, job)))
        for trial, step in zip(trials, SearchStep.all(jobs), strict=True):
            needs = {_pretraining(trial.job)} | ({_wide_part(trial.job)} if trial.job.model.wide else set())
            tasks.append(Task(trial.name, partial(self.train, trial, step), frozenset(needs)))
        return tasks

    def pretrain(self, job: Job) -> None:
        """Pre-train the feature parties' halves of a job."""
        pretrain_once(job, self.records.dataset, self.out / "pretrained", self.device)

    def fit_wide(self, job: Job) -> None:
        """Fit the wide parts of a job."""
        fit_wide_once(job, self.records.dataset, self.released.labels, self.out / "wide")

    def train(self, trial: Trial, step: SearchStep) -> None:
        """Train one configuration, unless it is finished; numbers that are not finite end it."""
        if trial.has_diverged:
            return
        job, run, data = trial.job, trial.run, self.records.dataset
        setup = RunSetup(job, run, self.own, self.device, watching=Watching(notice=self.notice), search=step)
        with run.started(job, [*data.feature_parties, LABEL_PARTY], own=self.own):
            copy_pretrained(job, self.out / "pretrained", run)
            copy_wide_parts(job, self.out / "wide", run)
        try:
            if self.handed is not None:
                self._train_alone(setup, data, self.handed)
            else:
                train_together(setup, self.released, data)
        except BadMessage as error:  # The learning rate is too large for this much noise.
            trial.mark_diverged(str(error))

    def _train_alone(self, setup: RunSetup, data: Dataset, handed: ReleasedLabels) -> None:
        (side,) = data.feature_sides.values()
        with setup.run.started(setup.job, [side.party, LABEL_PARTY], own=self.own):
            train_alone(setup, side, handed, at_top=Observer())


def _pretraining(job: Job) -> str:
    return f"pre-training {pretraining_key(job)}"


def _wide_part(job: Job) -> str:
    return f"wide part, estimates in {job.training.wire}"
