"""The label party as a program of its own: listens, and trains with the feature parties that connect."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tpsl.data.dataset import feature_party_names, load_label_party
from tpsl.files import is_disk_full
from tpsl.net.certificates import Certificates
from tpsl.net.connection import Patience, Terms
from tpsl.net.desk import Desk
from tpsl.net.failures import BadMessage, JobStopped, PeerMissing
from tpsl.net.peers import LABEL_PARTY
from tpsl.net.server import LabelServer
from tpsl.training.evaluation import TEST_METRICS
from tpsl.training.job import Job
from tpsl.training.job_agreement import agreement, limits
from tpsl.training.late_labels import LabelsMissing
from tpsl.training.local import Local, certificates_of, listen_address, own_data
from tpsl.training.method import resolve_method
from tpsl.training.observer import Watching
from tpsl.training.ranks import SharedDesk
from tpsl.training.result import TrainResult
from tpsl.training.role import LabelRole
from tpsl.training.run_folder import RunFolder
from tpsl.training.search_step import SearchStep
from tpsl.training.setup import RunSetup
from tpsl.training.stages import METHODS, attend_as_label
from tpsl.training.vaults import vault_for
from tpsl.training.worker_labels import VaultOfFirst
from tpsl.workers import PartyInterrupted, Workers


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
    (`tpsl.training.after_training`). A job that asks for more than the local file permits (`max_epsilon`,
    `not_private`, `compose`) is refused before the port is opened.
    """
    workers, own = Workers.of_this_process(local.device), {LABEL_PARTY: local.own_parts()}

    def count() -> int:
        data = own_data(job, LABEL_PARTY, local.data, local.alignment).data
        return len(load_label_party(data, watching.progress, source=own[LABEL_PARTY].source(LABEL_PARTY)).records.train)

    job = resolve_method(job, count, watching.reason)
    device, start, run = workers.device(local.device), local.starting_point(), RunFolder(run_path)
    run.refuse_scratch()
    setup = RunSetup(job, run, own, device, record_steps, watching, search, start, workers=workers)
    if not job.hands_over:
        return _serve(setup, local, insecure_loopback)
    if workers.is_first:  # it hands the labels over, and nothing is left to do for the others
        _serve(setup.of_first(), local, insecure_loopback)
    workers.barrier()
    return _result(run)


def _serve(setup: RunSetup, local: Local, insecure_loopback: bool) -> TrainResult:
    """Be a worker of the label party. All read its table; the others than the first forget the true labels at once."""
    job, run, workers, names = setup.job, setup.run, setup.workers, feature_party_names(setup.job.data)
    certificates = None if insecure_loopback else certificates_of(local, LABEL_PARTY)
    with setup.held([LABEL_PARTY], moved=True):
        finished = run.result()
        if finished is not None and set(names) <= set(run.confirmed_to(LABEL_PARTY)):
            setup.say_finished()
            return _result(run)
        setup = setup.begun([LABEL_PARTY])
        data = own_data(job, LABEL_PARTY, local.data, local.alignment).data
        late, source = job.has_late_labels, setup.source(LABEL_PARTY)
        encoder = setup.encoders().get(LABEL_PARTY)
        side = load_label_party(data, setup.watching.progress, late_labels=late, source=source, encoder=encoder)
        setup.say_what_is_loaded(data, side)
        # Before the port is opened: what the label party does not permit, no peer ever hears of.
        vault = vault_for(setup, side, local.vault_choice(), releases=True) if workers.is_first else None
        records = side.records
        del side
        if vault is not None and finished is None and job.releases:
            vault.store()  # before anybody could measure how long it takes
        workers.barrier()
        role = LabelRole(setup, records, VaultOfFirst() if vault is None else vault)
        with _open_desk(role, local, certificates) as desk:
            attend_as_label(role, desk)
        workers.barrier()
        setup.watching.observer.event("finished")
        return _result(run)


def _result(run: RunFolder) -> TrainResult:
    """Return the result without test metrics, also if the run was evaluated before."""
    result = run.result()
    assert result is not None  # the farewell has written it
    nothing: dict[str, Any] = dict.fromkeys(TEST_METRICS, math.nan)
    return replace(result, **nothing)


@contextmanager
def _open_desk(role: LabelRole, local: Local, certificates: Certificates | None) -> Iterator[Desk | SharedDesk]:
    """Open the port, and close it at the end; an error is told to the feature parties, unless it speaks of labels.

    Nothing in this block may depend on true labels. Of several workers the first has the port. Whatever a feature
    party does once the run is finished, it is: nobody can keep the label party from its result.
    """
    if not role.workers.is_first:
        yield SharedDesk(role.workers, None)
        return
    job, watching, address = role.job, role.setup.watching, listen_address(local)
    device, patience = role.setup.device or torch.device("cpu"), Patience(local.silence, local.wait)
    terms = Terms(limits(job, role.schedule), job.wire_type, patience, watching.connections, device)
    agreed = agreement(job, role.records.ids, role.schedule, role.run.origin(LABEL_PARTY), role.setup.search)
    desk = Desk(feature_party_names(job.data), agreed, terms)
    desk.waiting_for = role.observer.waiting_for
    with LabelServer(address, desk, METHODS, certificates=certificates) as server:
        watching.observer.event("listening", address=f"{address.rpartition(':')[0]}:{server.port}")
        try:
            yield SharedDesk(role.workers, desk) if role.workers.are_several else desk
        except LabelsMissing:
            server.stop(JobStopped("labels did not arrive in time"))
            raise
        except PartyInterrupted:  # the others wait for the return of this party
            raise
        except (PeerMissing, BadMessage, JobStopped) as error:
            if role.run.result() is None:
                server.stop(error)
                raise
            watching.notice(f"the run is finished, but not every feature party has confirmed it: {error}")
        except Exception as error:
            if not is_disk_full(error):  # else the others wait for the return of this party
                # The reason may speak of labels, so the others are not told.
                server.stop(JobStopped("the label party has an error that is not the feature parties'"))
            raise
