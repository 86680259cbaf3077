"""One party of a search as a program of its own: every configuration is a run, one after the other, on one release.

All parties make the same configurations from the same job and space, and go through them in the same order; who is
ahead waits. What a party has finished it does not repeat. When all are trained, the label party weights the committee
by noisy labels; true labels are evaluated in another process (`tpsl.tuning.after_search`). The feature parties need no
weights: what they send to predict are the shares of all members.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from tpsl.data.dataset import load_label_party
from tpsl.data.sides import LabelSide
from tpsl.model.trained import TUNE
from tpsl.net.failures import NOT_FINITE, BadMessage, JobStopped
from tpsl.net.peers import LABEL_PARTY
from tpsl.progress import no_notice
from tpsl.training.job import Job, SearchStep
from tpsl.training.local import Local, LocalError, listen_address, own_data
from tpsl.training.observer import Watching
from tpsl.training.over_network import join, serve
from tpsl.training.releases import release_labels
from tpsl.training.vaults import ReleasedLabels
from tpsl.tuning.candidates import Trial, TuneResult, compare, trials_of
from tpsl.tuning.search_folder import check_release, read_result, write_members, write_result
from tpsl.tuning.shared_parts import copy_from_earlier
from tpsl.tuning.space import default_space, jobs_of, refuse_start
from tpsl.vault import Vault


class Watched(Protocol):
    """Shows what is done with a configuration."""

    def __call__(self, trial: Trial) -> AbstractContextManager[Watching]:
        """Show it until the block ends."""


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

    def steps(self) -> Iterator[tuple[Trial, SearchStep]]:
        """Yield the configurations that have not diverged, each with what the parties compare of it.

        What an earlier one has computed and this one would compute again is in the folder of its run.
        """
        own = {self.party: self.local.own_parts()}
        steps = SearchStep.all([trial.job for trial in self.trials])
        for number, (trial, step) in enumerate(zip(self.trials, steps, strict=True)):
            if trial.has_diverged:
                continue
            with trial.run.started(trial.job, [self.party], moved=True, own=own):
                for earlier in self.trials[:number]:
                    copy_from_earlier(earlier.job, earlier.run, trial.job, trial.run, self.party)
            yield trial, step


def tune_as_label(search: JointSearch, watched: Watched) -> TuneResult:
    """Be the label party of a search: train every configuration with the feature parties, then compare them.

    Guarantee: that of `serve` for all of them together: labels are released once, and nothing is computed from true
    labels but that release, and that they are stored. With what `evaluate_search` adds, the result is that of
    `tpsl.tuning.search.tune`, to the last bit.
    """
    local = search.local
    if listen_address(local).endswith(":0"):
        raise LocalError("a search opens its port once for each configuration: name one, not port 0")
    side = _loaded(search)  # before the first port is opened: reading its file takes longer for some labels
    for trial, step in search.steps():
        with watched(trial) as watching, _noted_if_diverged(trial):
            path, loopback = trial.run.path, search.insecure_loopback
            serve(trial.job, local, path, watching=watching, insecure_loopback=loopback, search=step)
    released = _released(search, side)
    result = compare(search.base, search.trials, side.records, released, search.out)
    if not (search.out / TUNE).exists() or read_result(search.out).untested().as_dict() != result.as_dict():
        write_result(search.out, result)
    return result


def tune_as_feature(search: JointSearch, watched: Watched) -> list[dict[str, Any]]:
    """Be a feature party of a search; return the members of the committee, in the order of their shares."""
    for trial, step in search.steps():
        with watched(trial) as watching, _noted_if_diverged(trial):
            path, loopback = trial.run.path, search.insecure_loopback
            join(
                trial.job,
                search.party,
                search.local,
                path,
                watching=watching,
                insecure_loopback=loopback,
                search=step,
            )
    return write_members(search.out, search.party, search.trials)


def _loaded(search: JointSearch) -> LabelSide:
    """Return the label party's records, without features: only their ids are needed."""
    local = search.local
    side = load_label_party(
        own_data(search.base, LABEL_PARTY, local.data, local.alignment).data,
        late_labels=search.base.has_late_labels,
        source=local.own_parts().source(LABEL_PARTY),
    )
    return replace(side, records=replace(side.records, features=None))


def _released(search: JointSearch, side: LabelSide) -> ReleasedLabels:
    """Return the release that all runs share; nothing is drawn again."""
    policy, released = search.local.release_policy(), None
    for trial in search.trials:
        if trial.has_diverged:
            continue
        path = trial.run.vault()
        records = side.records
        noisy = release_labels(trial.job, records, path, no_notice, policy)
        check_release(search.out, noisy)
        with Vault.open(path) as vault:
            released = ReleasedLabels(noisy, vault.total(records.training_ids), path)
    if released is None:
        raise ValueError("every configuration of the space diverged: try smaller learning rates")
    return released


@contextmanager
def _noted_if_diverged(trial: Trial) -> Iterator[None]:
    """Go on after a configuration whose numbers are not finite any more, whichever side has noticed it."""
    try:
        yield
    except (BadMessage, JobStopped) as error:
        if error.code != NOT_FINITE:
            raise
        trial.mark_diverged(str(error))
