"""A feature party as a program of its own: connects to the label party and trains with it."""

from __future__ import annotations

from pathlib import Path

import torch

from tpsl.data.dataset import load_feature_party
from tpsl.progress import Notice
from tpsl.training.agreement import agreement, limits
from tpsl.training.disk_space import is_for_want_of_space, with_space
from tpsl.training.job import Job
from tpsl.training.method import settled
from tpsl.training.local import Local, certificates_of, connect_address, own_data
from tpsl.training.observer import Watching
from tpsl.training.result import FeatureResult
from tpsl.training.role import FeatureRole
from tpsl.training.run_folder import RunFolder
from tpsl.training.setup import RunSetup
from tpsl.training.stages import attend_as_feature
from tpsl.transport.channel import JobStopped, PeerMissing, Refused, run_alone
from tpsl.transport.checks import BadMessage
from tpsl.transport.feature_client import FeatureClient
from tpsl.transport.link import Patience, Terms
from tpsl.transport.peers import LABEL_PARTY


def join(
    job: Job,
    party: str,
    local: Local,
    run_path: Path,
    *,
    watching: Watching,
    record_steps: int = 0,
    insecure_loopback: bool = False,
) -> FeatureResult:
    """Be a feature party of a job; an interrupted run goes on where it stopped.

    What leaves this process are embeddings of this party's records, step numbers and the numbers of its checkpoints.
    """
    credentials = None if insecure_loopback else certificates_of(local, party).channel()
    address, own = connect_address(local), {party: local.own_parts()}
    if job.method == "auto":
        data = own_data(job, party, local.data, local.alignment).data
        side = load_feature_party(data, party, watching.progress, source=own[party].source(party))
        job = settled(job, len(side.train), watching.notice)
    device, start = torch.device(local.device), local.starting_point()
    setup = RunSetup(job, RunFolder(run_path), own, device, record_steps, watching, start=start)
    with setup.run.started(job, [party], moved=True, own=own):
        finished = setup.run.party_result(party)
        if finished is not None and LABEL_PARTY in setup.run.confirmed_to(party):
            setup.say_finished()
            return finished
        setup = setup.begun([party])
        data = own_data(job, party, local.data, local.alignment).data
        encoder = setup.encoders().get(party)
        side = load_feature_party(data, party, watching.progress, source=setup.source(party), encoder=encoder)
        setup.say_what_is_loaded(data, side)
        # A finished party is here only so that nobody waits for it: if nobody is there, nobody does.
        patience = Patience(local.silence, local.wait if finished is None else min(local.wait, local.silence))

        def train() -> FeatureResult:
            role = FeatureRole(setup, side)
            terms = Terms(limits(job, role.schedule), job.training.wire, patience, watching.connections)
            agreed = agreement(job, side.ids, role.schedule, setup.run.origin(party)).with_party(party)
            with FeatureClient(address, party, agreed, terms, credentials=credentials) as client:
                return _attend(role, client, watching.notice)

        return with_space(train, [setup.run.path], local.wait, watching.notice)


def _attend(role: FeatureRole, client: FeatureClient, notice: Notice) -> FeatureResult:
    """Train with the label party until the run is finished."""
    try:
        return run_alone(attend_as_feature(role, client))
    except PeerMissing as missing:
        result = role.run.party_result(role.name)
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
            client.stop(f"{role.name} has an error of its own")
        raise
