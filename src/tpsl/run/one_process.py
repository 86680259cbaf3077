"""Split training in one process: all roles of a job take turns in one thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

import torch

from tpsl.data.dataset import Dataset, load
from tpsl.data.encoder import EncoderState
from tpsl.data.sides import Relabelling
from tpsl.net.asking import AtHome
from tpsl.net.messages import LABEL_PARTY
from tpsl.progress import Progress, no_progress
from tpsl.run.after_training import AfterTraining, is_complete
from tpsl.run.alone import AskLabel, all_parties, receive_labels
from tpsl.run.build import LabelPartyBuilder, build_label_party
from tpsl.run.job import Job
from tpsl.run.observer import UNWATCHED, Observer, ProgressBar, Watching
from tpsl.run.own_parts import OwnParts
from tpsl.run.result import TrainResult
from tpsl.run.role import FeatureRole, LabelRole
from tpsl.run.run_folder import RunFolder
from tpsl.run.setup import RunSetup
from tpsl.run.stages import attend_as_features
from tpsl.run.vaults import LabelSource, ReleasedLabels, VaultChoice, choose_vault, for_public_labels
from tpsl.run.warm_start import StartingPoint
from tpsl.tables import DataError

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
    choice: VaultChoice | ReleasedLabels,
    data: Dataset | None = None,
    make_label_party: LabelPartyBuilder = build_label_party,
    ask_label: AskLabel = AtHome,
) -> TrainResult:
    """Do what `train` does, with parts replaced.

    `choice` may be what was released already, for several runs on the same records.
    `make_label_party` replaces the label party, for experiments with other defences and for audits: the guarantee
    speaks of the default alone. `ask_label` replaces what brings questions to the label party, for an audit that looks
    at every byte.
    """
    run, names = setup.run, tuple(data.feature_parties) if data is not None else setup.job.data.feature_parties
    read = _reader(setup) if data is None else lambda setup: data
    with setup.opened(
        [*names, LABEL_PARTY], lambda: run.common_result(names) is not None and is_complete(run, setup.job), read
    ) as opened:
        if opened is None:
            return run.finished_result()
        setup, data = opened
        for party, encoder in setup.encoders().items():  # of the run that training starts from, whose halves read them
            used = data.label_side.records.encoder if party == LABEL_PARTY else data.feature_sides[party].encoder
            if used is None or used.digest() != encoder.digest():
                raise DataError(
                    f"the records of {party!r} are encoded otherwise than in the run that training starts from"
                )
        at_label, side = setup.watched_by(ProgressBar(setup.watching, setup.job.training.epochs)), data.label_side
        is_first, vault = setup.workers.is_first, LabelSource()
        if run.common_result(names) is None:
            if is_first:  # it has the vault and the true labels
                choice = for_public_labels(setup, choice) if isinstance(choice, VaultChoice) else choice
                vault = choose_vault(at_label, side, choice)
            if setup.job.hands_over:
                vault, ask_label = _handed_over(setup, data, vault, ask_label), AtHome
                setup, at_label = (replace(each, job=setup.job.with_gradients()) for each in (setup, at_label))
            # Nobody can measure how long the evaluation of an epoch takes.
            evaluate = AfterTraining(at_label, side).evaluate if is_first else lambda: None
            role = LabelRole(at_label, side.records, vault, make_label_party, after_epoch=evaluate)
            at_features = setup.watched_by(Observer())
            features = [FeatureRole(at_features, side) for side in data.feature_sides.values()]
            with all_parties(role, features, ask_label) as parties:
                attend_as_features(parties)
        if is_first:
            AfterTraining(at_label, side).complete()
        setup.workers.barrier()
        return run.finished_result()


def _reader(setup: RunSetup) -> Callable[[RunSetup], Dataset]:
    """Return what reads the records, once for what training starts from: the method may depend on their number."""

    @cache
    def loaded(start: StartingPoint | None) -> Dataset:
        encoders = {} if start is None else start.encoders()
        return load_records(setup.job, setup.own, setup.watching.progress, encoders=encoders)

    def read(setup: RunSetup) -> Dataset:
        records = loaded(setup.start)
        setup.say_what_is_loaded(setup.job.data, records)
        return records

    return read


def _handed_over(setup: RunSetup, data: Dataset, vault: LabelSource, ask_label: AskLabel) -> ReleasedLabels:
    """Have the noisy labels cross as they do over a network, and return what the feature party has received."""

    def exchange(feature: FeatureRole) -> None:
        with all_parties(LabelRole(feature.setup, data.label_side.records, vault), [feature], ask_label) as parties:
            attend_as_features(parties)

    (side,) = data.feature_sides.values()
    received = receive_labels(setup.watched_by(Observer()), side, [side.party, LABEL_PARTY], exchange)
    return replace(received, spent=vault.total()) if setup.workers.is_first else received


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
    sources = {party: parts.source(party) for party, parts in own.items()}
    return load(job.data, progress, sources=sources, relabelling=relabelling, encoders=encoders)
