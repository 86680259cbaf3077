"""One party of a search as a program of its own: every configuration is a run, one after the other, on one release.

All parties make the same configurations from the same job and space, and go through them in the same order; who is
ahead waits. What a party has finished it does not repeat. When all are trained, the label party weights the ensemble
by noisy labels; true labels are evaluated in another process (`tpsl.select.after_search`). The feature parties need no
weights: what they send to predict are the shares of all members.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tpsl.data.dataset import load_label_party
from tpsl.data.sides import LabelRecords
from tpsl.files import write_atomically
from tpsl.model.trained import TUNE
from tpsl.net.failures import NOT_FINITE, BadMessage, JobStopped
from tpsl.net.messages import LABEL_PARTY
from tpsl.progress import no_notice
from tpsl.run.job import Job, SearchStep
from tpsl.run.local import Local, LocalError, listen_address, own_data
from tpsl.run.observer import Watching
from tpsl.run.over_network import join, serve
from tpsl.run.releases import release_labels
from tpsl.run.vaults import ReleasedLabels
from tpsl.select.candidates import Trial, TuneResult, check_release, compare, read_result, trials_of, write_result
from tpsl.select.space import default_space, jobs_of, refuse_start
from tpsl.vault import Vault

Watched = Callable[[Trial], AbstractContextManager[Watching]]
"""Shows what is done with a configuration until the block ends."""


@dataclass(frozen=True)
class JointSearch:
    """A search as one party knows it."""

    party: str
    base: Job
    local: Local
    trials: tuple[Trial, ...]
    out: Path
    insecure_loopback: bool = False

    @classmethod
    def of(
        cls,
        job: Job,
        party: str,
        local: Local,
        out: Path,
        space: Sequence[Mapping[str, Any]] | None = None,
        *,
        insecure_loopback: bool = False,
    ) -> JointSearch:
        """Return the search of a space (changes to the job; None: ours), whose runs are in a folder.

        Ours depends on whether this party brings a network of its own: others, who cannot know, then need a file.
        """
        if job.hands_over:
            raise ValueError("with training.exchange 'labels' the feature party trains alone; there is nothing to join")
        refuse_start(local)
        jobs = jobs_of(job, default_space(job.classes, local.bottom is not None) if space is None else space)
        return cls(party, job, local, tuple(trials_of(jobs, out)), out, insecure_loopback)

    def train(self, watched: Watched, run: Callable[..., object], *party: str) -> None:
        """Train the configurations that have not diverged, by `serve` or `join`, each on what earlier ones computed."""
        own = {self.party: self.local.own_parts()}
        for trial, step in zip(self.trials, SearchStep.all([trial.job for trial in self.trials]), strict=True):
            if trial.has_diverged:
                continue
            with trial.run.started(trial.job, [self.party], moved=True, own=own):
                trial.copy_shared(self.trials, [self.party])
            given = trial.job, *party, self.local, trial.run.path
            try:
                with watched(trial) as watching:
                    run(*given, watching=watching, insecure_loopback=self.insecure_loopback, search=step)
            except (BadMessage, JobStopped) as error:  # whichever side has noticed it
                if error.code != NOT_FINITE:
                    raise
                trial.mark_diverged(str(error))


def tune_as_label(search: JointSearch, watched: Watched) -> TuneResult:
    """Be the label party of a search: train every configuration with the feature parties, then compare them.

    Guarantee: that of `serve` for all of them together: labels are released once, and nothing is computed from true
    labels but that release, and that they are stored. With what `evaluate_search` adds, the result is that of
    `tpsl.select.search.tune`, to the last bit.
    """
    local, out = search.local, search.out
    if listen_address(local).endswith(":0"):
        raise LocalError("a search opens its port once for each configuration: name one, not port 0")
    records = _records(search)  # before the first port is opened: reading its file takes longer for some labels
    search.train(watched, serve)
    result = compare(search.base, search.trials, records, _released(search, records), out)
    if not (out / TUNE).exists() or read_result(out).untested().as_dict() != result.as_dict():
        write_result(out, result)
    return result


def tune_as_feature(search: JointSearch, watched: Watched) -> list[dict[str, Any]]:
    """Be a feature party of a search; return the members of the ensemble, in the order of their shares.

    Members are every epoch that was kept; `tune.json` has them without weights.
    """
    search.train(watched, join, search.party)
    members = [
        {"number": number, "configuration": trial.name, "epoch": epoch, "run": trial.run.path.name}
        for number, trial in enumerate(search.trials)
        if not trial.has_diverged
        for epoch in trial.run.kept_epochs(search.party)
    ]
    content = {"party": search.party, "candidates": members}
    write_atomically(search.out / TUNE, json.dumps(content, indent=1).encode())
    return members


def _records(search: JointSearch) -> LabelRecords:
    """Return the label party's records, without features: only their ids are needed."""
    local = search.local
    data = own_data(search.base, LABEL_PARTY, local.data, local.alignment).data
    side = load_label_party(data, source=local.own_parts().source(LABEL_PARTY))
    return replace(side.records, features=None)


def _released(search: JointSearch, records: LabelRecords) -> ReleasedLabels:
    """Return the release that all runs share; nothing is drawn again."""
    released = None
    for trial in search.trials:
        if trial.has_diverged:
            continue
        path = trial.run.vault()
        noisy = release_labels(trial.job, records, path, no_notice, search.local.release_policy())
        check_release(search.out, noisy)
        with Vault.open(path) as vault:
            released = ReleasedLabels(noisy, vault.total(records.training_ids), path)
    if released is None:
        raise ValueError("every configuration of the space diverged: try smaller learning rates")
    return released
