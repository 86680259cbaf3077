"""The label party as a program of its own: listens, and trains with the feature parties that connect."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tpsl.data.dataset import feature_party_names, load_label_party
from tpsl.files import is_disk_full
from tpsl.progress import Notice
from tpsl.training.agreement import agreement, limits, place_of
from tpsl.training.arrivals import LabelsMissing, vault_for
from tpsl.training.evaluation import TEST_METRICS
from tpsl.training.job import Job
from tpsl.training.local import Local, certificates_of, own_data, worker_address
from tpsl.training.method import settled
from tpsl.training.observer import Watching
from tpsl.training.result import TrainResult
from tpsl.training.role import LabelRole
from tpsl.training.run_folder import RunFolder
from tpsl.training.search_step import SearchStep
from tpsl.training.setup import RunSetup
from tpsl.training.stages import attend_as_label
from tpsl.training.worker_labels import VaultOfFirst
from tpsl.transport.channel import JobStopped, PeerMissing, run_alone
from tpsl.transport.checks import BadMessage
from tpsl.transport.label_server import LabelServer
from tpsl.transport.link import Patience, Terms
from tpsl.transport.peers import LABEL_PARTY, MOST_WORKERS
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

    job = settled(job, count, watching.reason)
    device, start, run = workers.device(local.device), local.starting_point(), RunFolder(run_path)
    run.refuse_scratch()
    setup = RunSetup(job, run, own, device, record_steps, watching, search, start, workers=workers)
    if not job.hands_over:
        return _serve(setup, local, _Port(setup, local, insecure_loopback))
    if workers.is_first:  # it hands the labels over, and nothing is left to do for the others
        alone = setup.of_first()
        _serve(alone, local, _Port(alone, local, insecure_loopback))
    workers.barrier()
    return _result(run)


def _serve(setup: RunSetup, local: Local, port: _Port) -> TrainResult:
    """Be a worker of the label party. All read its table; the others than the first forget the true labels at once."""
    job, run, workers = setup.job, setup.run, setup.workers
    with setup.held([LABEL_PARTY], moved=True):
        finished = run.result()
        if finished is not None and set(port.names) <= set(run.confirmed_to(LABEL_PARTY)):
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
        labels = VaultOfFirst() if vault is None else vault
        port.train(LabelRole(setup, records, labels), records.ids)
        _leave_together(workers, local.wait)
        setup.watching.observer.event("finished")
        return _result(run)


def _leave_together(workers: Workers, wait: float) -> None:
    """Return when every worker of the party has closed its port; raise if one does not within `wait` seconds.

    A feature party may have said goodbye to one worker, and something else to another one, whose part has ended so.
    """
    until = time.monotonic() + wait

    def look() -> None:
        if time.monotonic() > until:
            raise PartyInterrupted(f"the other workers of this party have not closed their ports within {wait:g} s")

    workers.leave_together(look)


def _result(run: RunFolder) -> TrainResult:
    """Return the result without test metrics, also if the run was evaluated before."""
    result = run.result()
    assert result is not None  # the farewell has written it
    nothing: dict[str, Any] = dict.fromkeys(TEST_METRICS, math.nan)
    return replace(result, **nothing)


class _Port:
    """Where a worker of the label party listens."""

    def __init__(self, setup: RunSetup, local: Local, insecure_loopback: bool) -> None:
        self._credentials = None if insecure_loopback else certificates_of(local, LABEL_PARTY).server()
        self.names = feature_party_names(setup.job.data)
        self._setup, self._address = setup, worker_address(local, setup.workers)
        self._patience = Patience(local.silence, local.wait)

    def train(self, role: LabelRole, ids: object) -> None:
        """Open the port, train with the feature parties until the run is finished, and close it."""
        job, watching, device = self._setup.job, self._setup.watching, self._setup.device or torch.device("cpu")
        tensors, watch, place = limits(job, role.schedule), watching.connections, place_of(role.workers)
        terms = Terms(tensors, job.wire_type, self._patience, watch, device, place, MOST_WORKERS)
        agreed = agreement(job, ids, role.schedule, role.run.origin(LABEL_PARTY), role.setup.search)
        with LabelServer(self._address, self.names, agreed, terms, credentials=self._credentials) as server:
            watching.observer.event("listening", address=f"{self._address.rpartition(':')[0]}:{server.port}")
            _attend(role, server, watching.notice)


def _attend(role: LabelRole, server: LabelServer, notice: Notice) -> None:
    """Train with the feature parties until the run is finished; nothing in here may depend on true labels.

    Whatever a feature party does once the run is finished, it is: nobody can keep the label party from its result.
    """
    try:
        run_alone(attend_as_label(role, server))
    except LabelsMissing:
        server.stop("labels did not arrive in time")
        raise
    except PartyInterrupted:  # the others wait for the return of this party
        raise
    except (PeerMissing, BadMessage, JobStopped) as error:
        if role.run.result() is None:
            server.stop(str(error))
            raise
        notice(f"the run is finished, but not every feature party has confirmed it: {error}")
    except Exception as error:
        if not is_disk_full(error):  # else the others wait for the return of this party
            # The reason may speak of labels, so the others are not told.
            server.stop("the label party has an error of its own")
        raise
