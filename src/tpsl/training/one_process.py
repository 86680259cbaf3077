"""Split training in one process: all roles of a job take turns in one thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import torch

from tpsl.data.dataset import Dataset, feature_party_names, load
from tpsl.data.encoder import EncoderState
from tpsl.data.sides import Relabelling
from tpsl.progress import Progress, no_progress
from tpsl.tables import DataError
from tpsl.training.after_training import AfterTraining, is_complete
from tpsl.training.agreement import limits
from tpsl.training.arrivals import vault_for
from tpsl.training.build import LabelPartyBuilder, build_label_party
from tpsl.training.handed_labels import HAND_OVER, HandedLabels
from tpsl.training.job import Job
from tpsl.training.joint_steps import joint_steps
from tpsl.training.method import settled
from tpsl.training.observer import UNWATCHED, Fact, NullObserver, Watching
from tpsl.training.own_parts import OwnParts, sources_of
from tpsl.training.released import Released
from tpsl.training.result import TrainResult
from tpsl.training.role import FeatureRole, LabelRole, LabelSource
from tpsl.training.run_folder import RunFolder
from tpsl.training.setup import RunSetup
from tpsl.training.stages import attend_as_feature, attend_as_label
from tpsl.training.stages.hand_over import handed_over
from tpsl.training.vaults import RunVault, VaultChoice, for_public_labels
from tpsl.training.worker_labels import VaultOfFirst
from tpsl.transport.channel import Channel
from tpsl.transport.frames import Limits
from tpsl.transport.in_process import InProcessMeeting, pair, run_together
from tpsl.transport.messages import WireType
from tpsl.transport.peers import LABEL_PARTY
from tpsl.transport.rounding import wire_bytes

Couple = Callable[[tuple[str, str], WireType, Limits], tuple[Channel, Channel]]
"""Makes the two ends of the channel between two parties, named in that order."""


def in_memory(names: tuple[str, str], dtype: WireType, limits: Limits) -> tuple[Channel, Channel]:
    """Return the two ends of a channel within this process; nothing from outside reaches it, so it has no limits."""
    return pair(names, dtype)


def in_step(names: tuple[str, str], dtype: WireType, limits: Limits) -> tuple[Channel, Channel]:
    """Return the two ends of such a channel at one of several workers: all of them pause at the same messages.

    So the roles of all workers take turns in the same order, and with them what they do together.
    """
    return pair(names, dtype, counted=wire_bytes((limits.rows, limits.width), dtype))


ALL_STEPS = 1 << 62
"""For `record_steps`: record the whole run."""


def train(
    job: Job,
    run_path: Path,
    *,
    vault: Path | VaultChoice | None = None,
    data: Dataset | None = None,
    own: Mapping[str, OwnParts] = MappingProxyType({}),
    device: torch.device | None = None,
    record_steps: int = 0,
    watching: Watching = UNWATCHED,
) -> TrainResult:
    """Run a job in one process; a run that was interrupted goes on where it stopped, a finished one is only read.

    Guarantee: what the feature parties receive, and all weights, are post-processing of one release of the vault:
    (ε, δ)-transcript DP with the ε of the result. Resuming draws nothing and gives the weights of an unbroken run.
    The parties talk as they do over a network, so two processes with the same vault compute the same weights.
    `vault` is the vault, with the default limits, or what the label party says of its vault and permits. With neither
    it is a scratch run, for somebody who holds both tables: it has a vault of its own in its folder, without limits,
    which is counted in no total, and nothing of it may leave. What the label party does not permit is an error before
    anything is drawn. `own` is what each party brings itself, by its name. The networks of all parties are on `device`.
    `record_steps` is the number of steps, from the first, that are recorded in the transcript. `watching.observer`
    watches the label party.
    """
    setup = RunSetup(job, RunFolder(run_path), own, device, record_steps, watching)
    choice = vault if isinstance(vault, VaultChoice) else VaultChoice(vault, scratch=vault is None)
    return train_together(setup, choice, data)


def train_together(
    setup: RunSetup,
    choice: VaultChoice | Released,
    data: Dataset | None = None,
    make_label_party: LabelPartyBuilder = build_label_party,
    couple: Couple = in_memory,
) -> TrainResult:
    """Do what `train` does, with parts replaced.

    `choice` may be what was released already, for several runs on the same records.
    `make_label_party` replaces the label party, for experiments with other defences and for audits: the guarantee
    speaks of the default alone. `couple` replaces the channels, for an audit that looks at every byte.
    """

    def count() -> int:
        nonlocal data
        if data is None:
            data = load_records(setup.job, setup.own, setup.watching.progress)
            setup.say_what_is_loaded(setup.job.data, data)
        return len(data.train)

    setup = replace(setup, job=settled(setup.job, count, setup.watching.reason))
    job, run = setup.job, setup.run
    names = tuple(data.feature_parties) if data is not None else feature_party_names(job.data)
    with setup.held([*names, LABEL_PARTY]):
        finished = run.common_result(names)
        if finished is not None and is_complete(run, job):
            setup.say_finished()
            return finished
        setup = setup.begun([*names, LABEL_PARTY])
        encoders = setup.encoders()
        if data is None:
            data = load_records(job, setup.own, setup.watching.progress, encoders=encoders)
            setup.say_what_is_loaded(job.data, data)
        _require_encoders(data, encoders)
        at_label, side = setup.watched_by(LabelProgress(setup)), data.label_side
        if isinstance(choice, VaultChoice) and setup.workers.is_first:
            choice = for_public_labels(setup, choice)
        vault = vault_for(at_label, side, choice, releases=finished is None) if setup.workers.is_first else None
        after = None if vault is None else AfterTraining(at_label, side, vault)
        if finished is None:
            labels: LabelSource = VaultOfFirst() if vault is None else vault
            if job.hands_over:
                labels, couple = _hand_over(setup, data, vault, couple), in_memory
                setup, at_label = (replace(each, job=job.with_gradients()) for each in (setup, at_label))
            # Nobody can measure how long the evaluation of an epoch takes.
            evaluate = (lambda: None) if after is None else after.evaluate
            role = LabelRole(at_label, side.records, labels, make_label_party, after_epoch=evaluate)
            features = [
                FeatureRole(setup.watched_by(PreparationNotices(setup, name)), data.feature_sides[name])
                for name in names
            ]
            attend_together(role, features, couple)
        if after is not None:
            after.complete()
        setup.workers.barrier()
        result = run.result()
        assert result is not None  # the farewell has written it
        return result


def attend_together(label: LabelRole, features: Sequence[FeatureRole], couple: Couple = in_memory) -> None:
    """Have the roles of a job, all in this process, take turns until all have finished."""
    job, accepted = label.job, limits(label.job, label.schedule)
    if label.workers.are_several:
        couple = in_step
    ends = {role.name: couple((LABEL_PARTY, role.name), job.wire_type, accepted) for role in features}
    meeting = InProcessMeeting({name: end for name, (end, _) in ends.items()})
    others = (attend_as_feature(role, InProcessMeeting({LABEL_PARTY: ends[role.name][1]})) for role in features)
    with joint_steps(label, features) if couple in (in_memory, in_step) else nullcontext():
        run_together(attend_as_label(label, meeting), *others)


def _hand_over(setup: RunSetup, data: Dataset, vault: RunVault | None, couple: Couple) -> HandedLabels:
    """Have the noisy labels cross as they do over a network, and return what the feature party has received.

    Of several workers the first, which has the vault, does it for all.
    """
    exchange = replace(setup.watched_by(NullObserver()).of_first(), run=RunFolder(setup.run.path / HAND_OVER))
    (side,) = data.feature_sides.values()
    received = exchange.run.party(side.party)
    if vault is not None:
        with exchange.run.started(setup.job, [side.party, LABEL_PARTY]):
            if LABEL_PARTY not in exchange.run.confirmed_to(side.party):
                roles = LabelRole(exchange, data.label_side.records, vault), [FeatureRole(exchange, side)]
                attend_together(*roles, couple)
    setup.workers.barrier()
    labels = handed_over(setup.job, received)
    return HandedLabels.of(labels, received) if vault is None else HandedLabels(labels, vault.total(), received)


def load_records(
    job: Job,
    own: Mapping[str, OwnParts] = MappingProxyType({}),
    progress: Progress = no_progress,
    relabelling: Relabelling | None = None,
    encoders: Mapping[str, EncoderState] = MappingProxyType({}),
) -> Dataset:
    """Return the records of all parties of a job; `own` is what each brings itself, by its name.

    `encoders` are those of the run that training starts from, by party.
    """
    late, sources = job.has_late_labels, sources_of(own)
    return load(job.data, progress, late_labels=late, sources=sources, relabelling=relabelling, encoders=encoders)


def _require_encoders(data: Dataset, encoders: Mapping[str, EncoderState]) -> None:
    """Raise unless records were encoded as in the run that training starts from, whose halves read them."""
    used = {party: side.encoder for party, side in data.feature_sides.items()}
    used[LABEL_PARTY] = data.label_side.records.encoder
    for party, encoder in encoders.items():
        given = used[party]
        if given is None or given.digest() != encoder.digest():
            raise DataError(f"the records of {party!r} are encoded otherwise than in the run that training starts from")


class LabelProgress(NullObserver):
    """Shows how far the label party is, and tells the run's observer; all other parties are as far."""

    def __init__(self, setup: RunSetup) -> None:
        self._watching, self._epochs = setup.watching, setup.job.training.epochs
        self._parties, self._done, self._has_waited = feature_party_names(setup.job.data), (0, 0), False

    def waiting_for(self, peer: str | None) -> None:
        """Say that labels or the vault are waited for; other parties are not, in one process."""
        if peer is not None and peer not in self._parties:
            self._watching.progress(*self._done, f"waiting for {peer}")
            if not self._has_waited:  # where there is no progress bar
                self._watching.notice(f"waiting for {peer}")
                self._has_waited = True

    def at_step(self, done: int, total: int, records: int) -> None:
        """Show how many steps are done."""
        self._done = (done, total)
        self._watching.observer.at_step(done, total, records)
        self._watching.progress(done, total, f"epoch {-(-done * self._epochs // total)}")

    def event(self, name: str, **facts: Fact) -> None:
        """Say where a run goes on, and where it stops early."""
        self._watching.observer.event(name, **facts)
        if name == "resumed":
            self._watching.notice(f"resuming after step {facts['step']:,}")
        elif name == "stopped early":
            self._watching.notice(f"the noisy hold-out got no better: training stops after step {facts['step']:,}")


class PreparationNotices(NullObserver):
    """Says what a feature party does before the first step."""

    def __init__(self, setup: RunSetup, party: str) -> None:
        self._party, self._notice = party, setup.watching.notice

    def event(self, name: str, **facts: Fact) -> None:
        """Say what is prepared."""
        if name in ("pretraining", "wide part"):
            self._notice(f"{self._party}: {facts['text']}")
