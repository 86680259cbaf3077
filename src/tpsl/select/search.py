"""Free model selection: train a small space of configurations on one release, and let noisy labels choose.

Every epoch of every configuration is a candidate. Candidates are compared by the noisy labels of held-out records
alone, which are released already: however many are tried, the vault's ledger does not change, and what is chosen may
cross the border. There are two answers: the `best` candidate, and the `ensemble` of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from tpsl.data.dataset import Dataset
from tpsl.files import make_private_folder
from tpsl.net.failures import BadMessage
from tpsl.net.messages import LABEL_PARTY
from tpsl.progress import Notice, Progress, no_notice, said_once
from tpsl.run.alone import train_alone
from tpsl.run.job import SearchStep
from tpsl.run.observer import Observer, Watching
from tpsl.run.one_process import train_together
from tpsl.run.own_parts import OwnParts
from tpsl.run.releases import noisy_labels_for
from tpsl.run.setup import RunSetup
from tpsl.run.vaults import ReleasedLabels, VaultChoice, choose_vault
from tpsl.select.after_search import with_test_metrics
from tpsl.select.candidates import Trial, TuneResult, check_release, compare, trials_of, write_result
from tpsl.select.parallel import SharedRecords, Task, load_once, run_tasks
from tpsl.select.space import default_space, jobs_of


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
    in the folder are not repeated. `data` must be what the job's data part loads: other workers load true labels
    themselves.
    A feature party that is alone gives labels that it was handed over for the vault, and its data (`Dataset.of_one`).

    Writes `tune.json` and `best.yaml`, the job of the best candidate, into the folder.
    """
    base, out, watching = setup.job, setup.run.path, setup.watching
    jobs = None if space is None else jobs_of(base, space)  # a fault in the space is found before data are loaded
    data = load_once(base, setup.own) if data is None else data
    jobs = jobs or jobs_of(base, default_space(data.classes, any(own.bottom is not None for own in setup.own.values())))
    make_private_folder(out)
    choice = vault or VaultChoice(scratch=True)
    handed = isinstance(choice, ReleasedLabels)
    released = choice if isinstance(choice, ReleasedLabels) else _released(replace(setup, job=jobs[0]), data, choice)
    check_release(out, released.labels)
    trials, records = tuple(trials_of(jobs, out)), SharedRecords(base, setup.own, data)
    notice = said_once(watching.notice) if workers == 1 else no_notice
    _Runs(trials, records, released, setup.own, setup.device, handed, notice).train_all(workers, watching.progress)
    result = with_test_metrics(compare(base, trials, data.label_side.records, released, out), out, data.label_side)
    write_result(out, result)
    return result


def _released(setup: RunSetup, data: Dataset, choice: VaultChoice) -> ReleasedLabels:
    """Return the one release of a search, from the vault that is found for it."""
    if choice.scratch and choice.named is None:
        choice = replace(choice, named=setup.run.path / "vault")
    chosen = choose_vault(setup, data.label_side, choice)
    chosen.store()
    noisy, total = noisy_labels_for(setup.job, data.label_side, chosen.path, setup.watching.notice, chosen.policy)
    return ReleasedLabels(noisy, total, chosen.path)


@dataclass(frozen=True)
class _Runs:
    """The runs of a search, which share records and a release; it goes to the processes that train them."""

    trials: tuple[Trial, ...]
    records: SharedRecords
    released: ReleasedLabels
    own: Mapping[str, OwnParts]
    device: torch.device | None
    alone: bool
    """Whether this is a feature party that was handed the labels over; it then has no vault."""
    notice: Notice

    def train_all(self, workers: int, progress: Progress) -> None:
        """Train all, in this process in their order; of several workers each has one at a time."""
        steps = SearchStep.all([trial.job for trial in self.trials])
        tasks = [
            Task(trial.name, partial(self.train, trial, step)) for trial, step in zip(self.trials, steps, strict=True)
        ]
        progress(0, len(tasks), "")
        for done, name in enumerate(run_tasks(tasks, workers), 1):
            progress(done, len(tasks), name)

    def train(self, trial: Trial, step: SearchStep) -> None:
        """Train one configuration, unless it is finished; numbers that are not finite end it."""
        if trial.has_diverged:
            return
        data, watching = self.records.dataset, Watching(notice=self.notice)
        setup = RunSetup(trial.job, trial.run, self.own, self.device, watching=watching, search=step)
        parties = [*data.feature_parties, LABEL_PARTY]
        try:
            with trial.run.started(trial.job, parties, own=self.own):
                trial.copy_shared(self.trials, parties)
                if self.alone:
                    (side,) = data.feature_sides.values()
                    train_alone(setup, side, self.released, at_top=Observer())
            if not self.alone:
                train_together(setup, self.released, data)
        except BadMessage as error:  # The learning rate is too large for this much noise.
            trial.mark_diverged(str(error))
