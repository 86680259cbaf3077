"""Split training in one process: all roles of a job take turns in one thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from tpsl.data.dataset import Dataset, feature_party_names, load, taken_on_trust
from tpsl.progress import Notice, Progress, no_notice, no_progress
from tpsl.training.after_training import AfterTraining, is_complete
from tpsl.training.allocator import keep_freed_memory
from tpsl.training.arrivals import arrivals_for
from tpsl.training.build import NO_PARTS, LabelPartyBuilder, build_label_party
from tpsl.training.feature_role import FeatureRole
from tpsl.training.job import Job
from tpsl.training.label_role import LabelRole
from tpsl.training.observer import Fact, Observer, Silent
from tpsl.training.result import TrainResult
from tpsl.training.run_folder import RunFolder
from tpsl.training.vaults import VaultChoice, choose_vault
from tpsl.training.wide import label_features
from tpsl.transport import Channel, InProcessMeeting, Limits, WireDtype, pair, run_together
from tpsl.vault import NO_LIMITS, ReleasePolicy

Couple = Callable[[tuple[str, str], WireDtype, Limits], tuple[Channel, Channel]]
"""Makes the two ends of the channel between two parties, named in that order."""

ALL_STEPS = 1 << 62
"""For `record_steps`: record the whole run."""


def train(
    job: Job,
    run_path: Path,
    *,
    vault: Path | None = None,
    place: Path | None = None,
    policy: ReleasePolicy = NO_LIMITS,
    wait: float = 3600.0,
    record_steps: int = 0,
    progress: Progress = no_progress,
    notice: Notice = no_notice,
    observer: Observer | None = None,
    data: Dataset | None = None,
    device: torch.device | None = None,
    make_label_party: LabelPartyBuilder = build_label_party,
    couple: Couple = lambda names, dtype, limits: pair(names, dtype),
) -> TrainResult:
    """Run a job in one process; a run that was interrupted goes on where it stopped, a finished one is only read.

    Guarantee: what the feature parties receive, and all weights, are post-processing of one release of the vault:
    (ε, δ)-transcript DP with the ε of the result. Resuming draws nothing anew and gives the weights of an unbroken run.
    The parties talk as they do over a network, so two processes with the same vault compute the same weights.
    The vault is `vault`, or with `place` the one there that holds the training records, or a new one there. With
    neither the run has a vault of its own in its folder: for experiments, because every such run releases the labels
    anew, and nobody adds that up. What the label party's `policy` does not permit is an error before anything is drawn.
    Where labels arrive while the job runs they come from `vault`; `wait` is how many seconds to wait for the next one.
    `record_steps` is how many steps, from the first, are recorded in the transcript. `make_label_party` replaces the
    label party, for experiments with other defences and for audits; the guarantee speaks of the default alone. The
    networks of all parties are on `device`, which the builder gets too. `observer` watches the label party. `couple`
    replaces the channels between the parties, for an audit that looks at every byte.
    """
    run = RunFolder(run_path)
    names = tuple(data.feature_parties) if data is not None else feature_party_names(job.data)
    with run.started(job, [*names, "label"]):
        finished = run.result()
        if finished is not None and is_complete(run, job):
            notice(f"{run_path} is a finished run; nothing to do")
            return finished
        if data is None:
            if trusted := taken_on_trust(job.data):
                notice(trusted)
            data = load(
                job.data,
                progress,
                late_labels=job.has_late_labels,
            )
        keep_freed_memory()
        side = data.label_side
        told, choice = _Progress(progress, notice, job, observer or Silent()), VaultChoice(vault, place, policy)
        arrivals = arrivals_for(job, side, run, choice, wait=wait, observer=told, notice=notice)
        after = AfterTraining(job, side, run, arrivals=arrivals, observer=told, device=device)
        if finished is not None:
            return after.complete(progress)
        chosen = arrivals.vault if arrivals else choose_vault(job, side, run, choice)
        label = LabelRole(
            job,
            side.records,
            run,
            partial(chosen.release, notice),
            lambda noisy: make_label_party(
                job,
                names,
                side.records.classes,
                noisy,
                label_features(job, side.records, noisy, run.label),
                NO_PARTS,
                device,
            ),
            record_steps=record_steps,
            observer=told,
            device=device,
            arrivals=arrivals,
            after_epoch=after.evaluate,  # nobody can measure how long that takes
            spent=arrivals.spent if arrivals else chosen.total,
        )
        limits = Limits(label.schedule.largest_part, job.widest_share)
        ends = {name: couple(("label", name), job.training.wire, limits) for name in names}
        features = [
            FeatureRole(
                job,
                data.feature_sides[name],
                run,
                record_steps=record_steps,
                observer=_Preparation(name, notice),
                device=device,
            ).attend(InProcessMeeting({"label": ends[name][1]}))
            for name in names
        ]
        run_together(label.attend(InProcessMeeting({name: end for name, (end, _) in ends.items()})), *features)
        return after.complete(progress)


class _Progress(Silent):
    """Shows how far the label party is, and tells another observer; all other parties are as far."""

    def __init__(self, progress: Progress, notice: Notice, job: Job, beside: Observer) -> None:
        self._progress, self._notice, self._epochs, self._beside = progress, notice, job.training.epochs, beside
        self._parties, self._done, self._told = feature_party_names(job.data), (0, 0), False

    def waiting_for(self, peer: str | None) -> None:
        """Say that labels or the vault are waited for; other parties are not, in one process."""
        if peer is not None and peer not in self._parties:
            self._progress(*self._done, f"waiting for {peer}")
            if not self._told:  # where there is no progress bar
                self._notice(f"waiting for {peer}")
                self._told = True

    def at_step(self, done: int, total: int, records: int) -> None:
        self._done = (done, total)
        self._beside.at_step(done, total, records)
        self._progress(done, total, f"epoch {-(-done * self._epochs // total)}")

    def event(self, name: str, **facts: Fact) -> None:
        self._beside.event(name, **facts)
        if name == "resumed":
            self._notice(f"resuming after step {facts['step']:,}")
        elif name == "stopped early":
            self._notice(f"the noisy hold-out got no better: training stops after step {facts['step']:,}")


class _Preparation(Silent):
    """Says what a feature party does before the first step."""

    def __init__(self, party: str, notice: Notice) -> None:
        self._party, self._notice = party, notice

    def event(self, name: str, **facts: Fact) -> None:
        if name in ("pretraining", "wide part"):
            self._notice(f"{self._party}: {facts['text']}")
