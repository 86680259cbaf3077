"""A feature party as a program of its own: connects to the label party and trains with it."""

from __future__ import annotations

from pathlib import Path

import torch

from tpsl.data.dataset import load_feature_party, taken_on_trust
from tpsl.progress import Notice, Progress
from tpsl.training.agreement import agreement
from tpsl.training.allocator import keep_freed_memory
from tpsl.training.disk_space import is_for_want_of_space, with_space
from tpsl.training.feature_role import FeatureRole
from tpsl.training.job import Job
from tpsl.training.local import Local, LocalError, certificates_of, own_data
from tpsl.training.observer import Observer
from tpsl.training.result import FeatureResult
from tpsl.training.run_folder import RunFolder
from tpsl.transport import BadMessage, JobStopped, Limits, PeerMissing, Refused, run_alone
from tpsl.transport.feature_client import FeatureClient
from tpsl.transport.link import Patience, Watch
from tpsl.transport.peers import LABEL_PARTY


def join(
    job: Job,
    party: str,
    local: Local,
    run_path: Path,
    *,
    observer: Observer,
    watch: Watch,
    progress: Progress,
    notice: Notice,
    record_steps: int = 0,
    insecure_loopback: bool = False,
) -> FeatureResult:
    """Be a feature party of a job; an interrupted run goes on where it stopped.

    What leaves this process are embeddings of this party's records, step numbers and the numbers of its checkpoints.
    """
    credentials = None if insecure_loopback else certificates_of(local, party).channel()
    if local.connect is None:
        raise LocalError(
            "a feature party needs the label party's address: --connect HOST:PORT or `connect` in the local file"
        )
    run = RunFolder(run_path)
    with run.started(job, [party], moved=True):
        finished = run.party_result(party)
        if finished is not None and LABEL_PARTY in run.confirmed_to(party):
            notice(f"{run_path} is a finished run; nothing to do")
            return finished
        own = own_data(job, party, local.data).data
        if trusted := taken_on_trust(own):
            notice(trusted)
        side = load_feature_party(own, party, progress)
        keep_freed_memory()
        # A finished party is here only so that nobody waits for it: if nobody is there, nobody does.
        patience = Patience(local.silence, local.wait if finished is None else min(local.wait, local.silence))
        address = local.connect

        def train() -> FeatureResult:
            role = FeatureRole(
                job, side, run, record_steps=record_steps, observer=observer, device=torch.device(local.device)
            )
            with FeatureClient(
                address,
                party,
                agreement(job, side.ids, role.schedule),
                Limits(role.schedule.largest_part, job.widest_share),
                job.training.wire,
                credentials=credentials,
                patience=patience,
                watch=watch,
            ) as client:
                return _attend(role, client, notice)

        return with_space(train, [run.path], local.wait, notice)


def _attend(role: FeatureRole, client: FeatureClient, notice: Notice) -> FeatureResult:
    """Train with the label party until the run is finished."""
    try:
        return run_alone(role.attend(client))
    except PeerMissing as missing:
        result = role.run.party_result(role.side.party)
        if result is None:
            raise
        notice(f"the run is finished, but the label party has not confirmed it: {missing}")
        return result
    except (Refused, JobStopped):
        raise
    except BadMessage as error:
        client.stop(str(error))
        raise
    except Exception as error:
        if not is_for_want_of_space(error):
            client.stop(f"{role.side.party} has an error of its own")
        raise
