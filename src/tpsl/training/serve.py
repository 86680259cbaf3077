"""The label party as a program of its own: listens, and trains with the feature parties that connect."""

from __future__ import annotations

from pathlib import Path

import torch

from tpsl.data.dataset import feature_party_names, load_label_party
from tpsl.progress import Notice
from tpsl.training.after_training import AfterTraining, is_complete
from tpsl.training.agreement import agreement, limits
from tpsl.training.arrivals import LabelsMissing, vault_for
from tpsl.training.disk_space import is_for_want_of_space, with_space
from tpsl.training.job import Job
from tpsl.training.local import Local, certificates_of, listen_address, own_data
from tpsl.training.method import settled
from tpsl.training.observer import Watching
from tpsl.training.result import TrainResult
from tpsl.training.role import LabelRole
from tpsl.training.run_folder import RunFolder
from tpsl.training.search_step import SearchStep
from tpsl.training.setup import RunSetup
from tpsl.training.stages import attend_as_label
from tpsl.transport.channel import JobStopped, PeerMissing, run_alone
from tpsl.transport.checks import BadMessage
from tpsl.transport.label_server import LabelServer
from tpsl.transport.link import Patience, Terms
from tpsl.transport.peers import LABEL_PARTY


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
    numbers and sentences that do not depend on labels. Nor does time depend on them: on every path true labels are
    stored before the port is opened, and evaluated and learned from after it is closed. Between the two they are read
    for one purpose, the release, which does the same for each label whatever it is. A job that asks for more than the
    local file permits (`max_epsilon`, `not_private`, `compose`) is refused before the port is opened. A run of a search
    is left without what is computed from true labels: a peer waits for the next one, and could measure it.
    """
    own = {LABEL_PARTY: local.own_parts()}
    if job.method == "auto":
        data = own_data(job, LABEL_PARTY, local.data, local.alignment).data
        records = load_label_party(data, watching.progress, source=own[LABEL_PARTY].source(LABEL_PARTY)).records
        job = settled(job, len(records.train), watching.notice)
    server = _Port(job, local, insecure_loopback, watching)
    device, start = torch.device(local.device), local.starting_point()
    setup = RunSetup(job, RunFolder(run_path), own, device, record_steps, watching, search, start)
    run, notice = setup.run, watching.notice
    with run.started(job, [LABEL_PARTY], moved=True, own=own):
        finished = run.result()
        confirmed = finished is not None and set(server.names) <= set(run.confirmed_to(LABEL_PARTY))
        if finished is not None and confirmed and (search is not None or is_complete(run, job)):
            setup.say_finished()
            return finished
        setup = setup.begun([LABEL_PARTY])
        data = own_data(job, LABEL_PARTY, local.data, local.alignment).data
        late, source = job.has_late_labels, setup.source(LABEL_PARTY)
        encoder = setup.encoders().get(LABEL_PARTY)
        side = load_label_party(data, watching.progress, late_labels=late, source=source, encoder=encoder)
        setup.say_what_is_loaded(data, side)
        # Before the port is opened: what the label party does not permit, no peer ever hears of.
        vault = vault_for(setup, side, local.vault_choice(), releases=not confirmed)

        def train() -> None:
            if finished is None and job.releases:
                vault.store()  # before anybody could measure how long it takes
            server.train(LabelRole(setup, side.records, vault), side.records.ids)

        places = [run.path, vault.path.parent]
        if not confirmed:
            with_space(train, places, local.wait, notice)
        if search is not None and (trained := run.result()) is not None:
            return trained
        # The port is closed and every connection has ended: nobody can measure how long this takes.
        return with_space(AfterTraining(setup, side, vault).complete, places, local.wait, notice)


class _Port:
    """Where the label party listens, the same address each time that it is opened."""

    def __init__(self, job: Job, local: Local, insecure_loopback: bool, watching: Watching) -> None:
        self._credentials = None if insecure_loopback else certificates_of(local, LABEL_PARTY).server()
        self.names = feature_party_names(job.data)
        self._job, self._address, self._watching = job, listen_address(local), watching
        self._patience, self._device = Patience(local.silence, local.wait), torch.device(local.device)
        self._streams = local.streams

    def train(self, role: LabelRole, ids: object) -> None:
        """Open the port, train with the feature parties until the run is finished, and close it."""
        tensors, watch = limits(self._job, role.schedule), self._watching.connections
        terms = Terms(tensors, self._job.wire_type, self._patience, watch, self._device, self._streams)
        agreed = agreement(self._job, ids, role.schedule, role.run.origin(LABEL_PARTY), role.setup.search)
        with LabelServer(self._address, self.names, agreed, terms, credentials=self._credentials) as server:
            self._address = f"{self._address.rpartition(':')[0]}:{server.port}"
            self._watching.observer.event("listening", address=self._address)
            _attend(role, server, self._watching.notice)


def _attend(role: LabelRole, server: LabelServer, notice: Notice) -> None:
    """Train with the feature parties until the run is finished; nothing in here may depend on true labels.

    Whatever a feature party does once the run is finished, it is: nobody can keep the label party from its metrics.
    """
    try:
        run_alone(attend_as_label(role, server))
    except LabelsMissing:
        server.stop("labels did not arrive in time")
        raise
    except (PeerMissing, BadMessage, JobStopped) as error:
        if role.run.result() is None:
            server.stop(str(error))
            raise
        notice(f"the run is finished, but not every feature party has confirmed it: {error}")
    except Exception as error:
        if not is_for_want_of_space(error):
            # The reason may speak of labels, so the others are not told.
            server.stop("the label party has an error of its own")
        raise
