"""A party as a program of its own: the label party listens, feature parties connect to it, and they train together."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tpsl.files import is_disk_full
from tpsl.net.asking import Label
from tpsl.net.certificates import Certificates
from tpsl.net.client import LabelClient
from tpsl.net.connection import Patience, Terms
from tpsl.net.desk import Desk
from tpsl.net.failures import BadMessage, JobStopped, PeerMissing, Refused
from tpsl.net.messages import LABEL_PARTY
from tpsl.net.server import LabelServer
from tpsl.run.alone import parts_of_both, receive_labels, require_alone, train_alone
from tpsl.run.evaluation import TEST_METRICS
from tpsl.run.job import Job, SearchStep
from tpsl.run.job_agreement import agreement, limits
from tpsl.run.local import Local, certificates_of, connect_address, listen_address
from tpsl.run.observer import Observer, Watching
from tpsl.run.ranks import SharedDesk, SharedLabel
from tpsl.run.result import FeatureResult, TrainResult
from tpsl.run.role import FeatureRole, FeatureRun, LabelRole, Role
from tpsl.run.run_folder import RunFolder
from tpsl.run.setup import RunSetup
from tpsl.run.stages import METHODS, attend_as_features, attend_as_label
from tpsl.run.vaults import LabelSource, choose_vault
from tpsl.workers import ALONE, WorkerLost, Workers


def serve(
    job: Job,
    local: Local,
    run_path: Path,
    *,
    watching: Watching,
    record_steps: int = 0,
    insecure_loopback: bool = False,
    search: SearchStep | None = None,
) -> TrainResult:
    """Be the label party of a job; an interrupted run goes on where it stopped.

    Guarantee: that of `one_process.train`; what leaves this process are gradients computed from noisy labels, step
    numbers and sentences that do not depend on labels. Nor does time depend on them, up to the end of the process: on
    every path true labels are stored before the port is opened, and read for one purpose from then on, the release,
    which does the same for each label whatever it is. The result has no test metrics: a second command computes them
    (`tpsl.run.after_training`). A job that asks for more than the local file permits (`max_epsilon`,
    `not_private`, `compose`) is refused before the port is opened.
    """
    setup = replace(
        _setup(job, LABEL_PARTY, local, run_path), watching=watching, record_steps=record_steps, search=search
    )
    certificates = None if insecure_loopback else certificates_of(local, LABEL_PARTY)
    alone = setup.job.hands_over  # the first worker hands the labels over, and nothing is left to do for the others
    if setup.workers.is_first or not alone:
        _release_and_train(replace(setup, workers=ALONE) if alone else setup, local, certificates)
    setup.workers.barrier()
    untested: dict[str, Any] = dict.fromkeys(TEST_METRICS, math.nan)  # also if the run was evaluated before
    return replace(setup.run.finished_result(), **untested)


def join(
    job: Job,
    party: str,
    local: Local,
    run_path: Path,
    *,
    watching: Watching,
    record_steps: int = 0,
    insecure_loopback: bool = False,
    search: SearchStep | None = None,
) -> FeatureResult:
    """Be a feature party of a job; an interrupted run goes on where it stopped.

    What leaves this process are embeddings of this party's records, step numbers and the numbers of its checkpoints;
    where the job says `exchange: labels` no embeddings.
    """
    setup = _setup(job, party, local, run_path)
    setup = replace(setup, watching=watching, record_steps=record_steps, search=search)
    certificates = None if insecure_loopback else certificates_of(local, party)
    run, hands_over = setup.run, setup.job.hands_over
    if hands_over:
        require_alone(setup.job, setup.start)
        setup = replace(setup, own=parts_of_both(party, local.own_parts()))

    def train(role: FeatureRole) -> None:
        with _connected(role, local, certificates) as label:
            attend_as_features(FeatureRun([role], label))

    with setup.opened(
        list(setup.own),
        lambda: run.party_result(party) is not None and LABEL_PARTY in run.confirmed_to(party),
        lambda setup: setup.load_features(party, local),
        moved=True,
    ) as opened:
        if opened is not None and hands_over:
            labels = receive_labels(*opened, [party], train)
            say = setup.watching.notice
            say(f"{len(labels.labels):,} noisy labels received; training goes on without the label party")
            train_alone(*opened, labels, at_top=Observer())
        elif opened is not None:
            train(FeatureRole(*opened))
        result = run.party_result(party)
        assert result is not None  # the farewell has written it
        return result


def _setup(job: Job, party: str, local: Local, run_path: Path) -> RunSetup:
    """Return the run of a party that has a process of its own."""
    run, workers = RunFolder(run_path), Workers.of_this_process(local.device)
    run.refuse_scratch()
    own, device = {party: local.own_parts()}, workers.device(local.device)
    return RunSetup(job, run, own, device, start=local.starting_point(), workers=workers)


def _release_and_train(setup: RunSetup, local: Local, certificates: Certificates | None) -> None:
    """Be a worker of the label party. All read its table; the others than the first forget the true labels at once."""
    run, workers, names = setup.run, setup.workers, setup.job.data.feature_parties
    with setup.opened(
        [LABEL_PARTY],
        lambda: run.result() is not None and set(names) <= set(run.confirmed_to(LABEL_PARTY)),
        lambda setup: setup.load_labels(local),
        moved=True,
    ) as opened:
        if opened is None:
            return
        setup, side = opened
        # Before the port is opened: what the label party does not permit, no peer ever hears of.
        vault = choose_vault(setup, side, local.vault_choice()) if workers.is_first else None
        records = side.records
        del side, opened
        if vault is not None and run.result() is None and setup.job.releases:
            vault.store()  # before anybody could measure how long it takes
        workers.barrier()
        role = LabelRole(setup, records, LabelSource() if vault is None else vault)
        with _open_desk(role, local, certificates) as desk:
            attend_as_label(role, desk)
        workers.barrier()
        setup.watching.observer.event("finished")


def _terms(role: Role, local: Local) -> Terms:
    """Return what connections of a party accept, and for how long it bears with the others."""
    device, watching = role.setup.device or torch.device("cpu"), role.setup.watching
    patience = Patience(local.silence, local.wait)
    return Terms(limits(role.job, role.schedule), role.job.wire_type, patience, watching.connections, device)


def _comes_back(error: Exception) -> bool:
    """Whether this party is started again after the error, or by its user: the others wait for it."""
    return isinstance(error, WorkerLost) or is_disk_full(error)


@contextmanager
def _open_desk(role: LabelRole, local: Local, certificates: Certificates | None) -> Iterator[Desk | SharedDesk]:
    """Open the port, and close it at the end; an error is told to the feature parties, unless it speaks of labels.

    Nothing in this block may depend on true labels. Of several workers the first has the port. Whatever a feature
    party does once the run is finished, it is: nobody can keep the label party from its result.
    """
    job, watching, workers = role.job, role.setup.watching, role.workers
    if not workers.is_first:
        try:
            yield SharedDesk(workers, None)
        except (PeerMissing, BadMessage, JobStopped):
            if role.run.result() is None:
                raise
        return
    agreed = agreement(job, role.records.ids, role.schedule, role.run.origin(LABEL_PARTY), role.setup.search)
    desk = Desk(job.data.feature_parties, agreed, _terms(role, local))
    desk.waiting_for = role.observer.waiting_for
    address = listen_address(local)
    with LabelServer(address, desk, METHODS, certificates=certificates) as server:
        watching.observer.event("listening", address=f"{address.rpartition(':')[0]}:{server.port}")
        try:
            yield SharedDesk(workers, desk) if workers.are_several else desk
        except (PeerMissing, BadMessage, JobStopped) as error:
            if role.run.result() is None:
                server.stop(error)
                raise
            watching.notice(f"the run is finished, but not every feature party has confirmed it: {error}")
        except Exception as error:
            if not _comes_back(error):
                # The reason may speak of labels, so the others are not told.
                server.stop(JobStopped("the label party has an error that is not the feature parties'"))
            raise


@contextmanager
def _connected(role: FeatureRole, local: Local, certificates: Certificates | None) -> Iterator[Label]:
    """Give the way to the label party; an error of this party is told to it. Of several workers the first has it."""
    workers, name = role.workers, role.name
    if not workers.is_first:
        try:
            yield SharedLabel(workers, None)
        except (PeerMissing, JobStopped):
            if role.run.party_result(name) is None:
                raise
        return
    agreed = agreement(role.job, role.side.ids, role.schedule, role.run.origin(name), role.setup.search)
    address = connect_address(local)
    with LabelClient(
        address,
        name,
        agreed.with_party(name),
        _terms(role, local),
        certificates=certificates,
        is_finished=lambda: role.run.party_result(name) is not None,
    ) as client:
        role.observer.gathered({LABEL_PARTY: client.traffic})
        try:
            yield SharedLabel(workers, client) if workers.are_several else client
        except (PeerMissing, JobStopped) as error:
            if role.run.party_result(name) is None:
                raise
            role.setup.watching.notice(f"the run is finished, but the label party has not confirmed it: {error}")
        except Exception as error:
            if isinstance(error, BadMessage):
                client.stop(error)
            elif not isinstance(error, Refused) and not _comes_back(error):
                client.stop(f"{name} has an error that is not the label party's")
            raise
