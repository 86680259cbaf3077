"""The label party as a program of its own: listens, and trains with the feature parties that connect."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from tpsl.data.dataset import feature_party_names, load_label_party
from tpsl.training.agreement import agreement
from tpsl.training.allocator import keep_freed_memory
from tpsl.training.arrivals import LabelsMissing, arrivals_for
from tpsl.training.build import build_label_party
from tpsl.training.job import Job
from tpsl.training.label_role import LabelRole
from tpsl.training.local import Local, LocalError, certificates_of, own_data
from tpsl.training.observer import Observer
from tpsl.training.result import TrainResult
from tpsl.training.run_folder import RunFolder
from tpsl.training.vaults import choose_vault
from tpsl.training.wide import label_features
from tpsl.transport import BadMessage, JobStopped, Limits, PeerMissing, run_alone
from tpsl.transport.label_server import LabelServer
from tpsl.transport.link import Patience, Watch
from tpsl.transport.peers import LABEL_PARTY

Progress = Callable[[int, int, str], None]
Notice = Callable[[str], None]


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
    numbers and sentences that do not depend on labels. A job that asks for more than the local file permits
    (`max_epsilon`, `not_private`, `compose`) is refused before the port is opened.
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
        if finished is not None and confirmed and not run.lacks_local_head(job):
            notice(f"{run_path} is a finished run; nothing to do")
            return finished
        side = load_label_party(
            own_data(job, LABEL_PARTY, local.data).data,
            lambda what, done, total: progress(done, total, what),
            late_labels=job.has_late_labels,
        )
        keep_freed_memory()
        device = torch.device(local.device)
        choice, arrivals = local.vault_choice(), None
        if finished is None:
            arrivals = arrivals_for(job, side, run, choice, wait=local.wait, observer=observer, notice=notice)
        # Before the port is opened: what the label party does not permit, no peer ever hears of.
        vault = arrivals.vault if arrivals else choose_vault(job, side, run, choice)
        role = LabelRole(
            job,
            side,
            run,
            partial(vault.release, notice),
            lambda noisy: build_label_party(
                job, len(names), side.classes, noisy, label_features(job, side, noisy, run.label), device
            ),
            record_steps=record_steps,
            observer=observer,
            device=device,
            arrivals=arrivals,
            spent=arrivals.spent if arrivals else vault.total,
        )
        if finished is not None and confirmed:
            role.train_local_head(progress)
            return finished
        terms = agreement(job, side.ids, role.schedule)
        limits = Limits(role.schedule.largest_part, job.head_width)
        patience = Patience(local.silence, local.wait)
        with LabelServer(
            local.listen,
            names,
            terms,
            limits,
            job.training.wire,
            credentials=credentials,
            patience=patience,
            watch=watch,
        ) as server:
            observer.event("listening", address=f"{local.listen.rpartition(':')[0]}:{server.port}")
            try:
                return run_alone(role.attend(server))
            except PeerMissing as missing:
                result = run.result()
                if result is not None:
                    notice(f"the run is finished, but not every feature party has confirmed it: {missing}")
                    role.train_local_head(progress)
                    return result
                server.stop(str(missing))
                raise
            except LabelsMissing:
                server.stop("labels did not arrive in time")
                raise
            except (BadMessage, JobStopped) as error:
                server.stop(str(error))
                raise
            except Exception:
                # The reason may speak of labels, so the others are not told.
                server.stop("the label party has an error of its own")
                raise
