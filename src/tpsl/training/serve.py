"""The label party as a program of its own: listens, and trains with the feature parties that connect."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from tpsl.data.dataset import feature_party_names, load_label_party, taken_on_trust
from tpsl.progress import Notice, Progress
from tpsl.training.after_training import AfterTraining, is_complete
from tpsl.training.agreement import agreement
from tpsl.training.allocator import keep_freed_memory
from tpsl.training.arrivals import LabelsMissing, arrivals_for
from tpsl.training.build import build_label_party
from tpsl.training.disk_space import is_for_want_of_space, with_space
from tpsl.training.job import Job
from tpsl.training.label_role import LabelRole
from tpsl.training.local import Local, LocalError, certificates_of, own_data
from tpsl.training.observer import Observer
from tpsl.training.result import TrainResult
from tpsl.training.run_folder import RunFolder
from tpsl.training.vaults import RunVault, choose_vault
from tpsl.training.wide import label_features
from tpsl.transport import BadMessage, JobStopped, Limits, PeerMissing, run_alone
from tpsl.transport.label_server import LabelServer
from tpsl.transport.link import Patience, Watch
from tpsl.transport.peers import LABEL_PARTY


def serve(
    job: Job,
    local: Local,
    run_path: Path,
    *,
    observer: Observer,
    watch: Watch,
    progress: Progress,
    notice: Notice,
    record_steps: int = 0,
    insecure_loopback: bool = False,
) -> TrainResult:
    """Be the label party of a job; an interrupted run goes on where it stopped.

    Guarantee: that of `tpsl.training.train`; what leaves this process are gradients computed from noisy labels, step
    numbers and sentences that do not depend on labels. Nor does time depend on them: on every path true labels are
    stored before the port is opened, and evaluated and learned from after it is closed. Between the two they are read
    for one purpose, the release, which does the same for each label whatever it is. A job that asks for more than the
    local file permits (`max_epsilon`, `not_private`, `compose`) is refused before the port is opened.
    """
    credentials = None if insecure_loopback else certificates_of(local, LABEL_PARTY).server()
    if local.listen is None:
        raise LocalError(
            "the label party needs an address to listen at: --listen HOST:PORT or `listen` in the local file"
        )
    names = feature_party_names(job.data)
    run = RunFolder(run_path)
    with run.started(job, [LABEL_PARTY], moved=True):
        finished = run.result()
        confirmed = finished is not None and set(names) <= set(run.confirmed_to(LABEL_PARTY))
        if finished is not None and confirmed and is_complete(run, job):
            notice(f"{run_path} is a finished run; nothing to do")
            return finished
        own = own_data(job, LABEL_PARTY, local.data).data
        if trusted := taken_on_trust(own):
            notice(trusted)
        side = load_label_party(
            own,
            progress,
            late_labels=job.has_late_labels,
        )
        keep_freed_memory()
        device = torch.device(local.device)
        choice = local.vault_choice()
        arrivals = arrivals_for(job, side, run, choice, wait=local.wait, observer=observer, notice=notice)
        # Before the port is opened: what the label party does not permit, no peer ever hears of.
        if arrivals is not None:
            vault = arrivals.vault
        elif confirmed:
            vault = RunVault(job, side, run, run.label / "vault", choice.policy)  # nobody is sent anything any more
        else:
            vault = choose_vault(job, side, run, choice)
        after = AfterTraining(job, side, run, arrivals=arrivals, observer=observer, device=device)
        patience, address = Patience(local.silence, local.wait), local.listen

        def train() -> None:
            nonlocal address
            if finished is None and job.trains and arrivals is None:
                vault.store(notice)  # before anybody could measure how long it takes
            role = LabelRole(
                job,
                side.records,
                run,
                partial(vault.release, notice),
                lambda noisy: build_label_party(
                    job,
                    names,
                    side.records.classes,
                    noisy,
                    label_features(job, side.records, noisy, run.label),
                    device=device,
                ),
                record_steps=record_steps,
                observer=observer,
                device=device,
                arrivals=arrivals,
                spent=arrivals.spent if arrivals else vault.total,
            )
            with LabelServer(
                address,
                names,
                agreement(job, side.records.ids, role.schedule),
                Limits(role.schedule.largest_part, job.widest_share),
                job.training.wire,
                credentials=credentials,
                patience=patience,
                watch=watch,
            ) as server:
                address = f"{address.rpartition(':')[0]}:{server.port}"  # the same one if it is opened again
                observer.event("listening", address=address)
                _attend(role, server, notice)

        places = [run.path, vault.path.parent]
        if not confirmed:
            with_space(train, places, local.wait, notice)
        # The port is closed and every connection has ended: nobody can measure how long this takes.
        return with_space(lambda: after.complete(progress), places, local.wait, notice)


def _attend(role: LabelRole, server: LabelServer, notice: Notice) -> None:
    """Train with the feature parties until the run is finished; nothing in here may depend on true labels.

    Whatever a feature party does once the run is finished, it is: nobody can keep the label party from its metrics.
    """
    try:
        run_alone(role.attend(server))
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
