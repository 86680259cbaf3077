"""A feature party as a program of its own: connects to the label party and trains with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tpsl.data.dataset import load_feature_party
from tpsl.data.sides import FeatureSide
from tpsl.files import is_disk_full
from tpsl.net.client import LabelClient
from tpsl.net.desk import Patience, Terms
from tpsl.net.failures import BadMessage, JobStopped, PeerMissing, Refused
from tpsl.net.peers import LABEL_PARTY
from tpsl.progress import Notice
from tpsl.training.agreement import agreement, limits
from tpsl.training.alone import parts_of_both, require_alone, train_alone
from tpsl.training.job import Job
from tpsl.training.label_source import HAND_OVER, ReleasedLabels
from tpsl.training.local import Local, certificates_of, connect_address, own_data
from tpsl.training.method import settled
from tpsl.training.observer import NullObserver, PartOf, Watching
from tpsl.training.ranks import SharedLabel
from tpsl.training.result import FeatureResult
from tpsl.training.role import FeatureRole, FeatureRun
from tpsl.training.run_folder import RunFolder
from tpsl.training.search_step import SearchStep
from tpsl.training.setup import RunSetup
from tpsl.training.stages import attend_as_features
from tpsl.training.stages.hand_over import handed_over
from tpsl.workers import PartyInterrupted, Workers


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

    def count() -> int:
        source = local.own_parts().source(party)
        return len(
            load_feature_party(own_data(job, party, local.data, local.alignment).data, party, source=source).train
        )

    job = settled(job, count, watching.reason)
    exchange, workers = _Exchange(job, party, local, insecure_loopback), Workers.of_this_process(local.device)
    own, device, start = {party: local.own_parts()}, workers.device(local.device), local.starting_point()
    if job.hands_over:
        require_alone(job, start)
        own = parts_of_both(party, local.own_parts())
    run = RunFolder(run_path)
    run.refuse_scratch()
    setup = RunSetup(job, run, own, device, record_steps, watching, search, start, workers=workers)
    with setup.held(list(own), moved=True):
        finished = setup.run.party_result(party)
        if finished is not None and LABEL_PARTY in setup.run.confirmed_to(party):
            setup.say_finished()
            return finished
        setup = setup.begun(list(own))
        data = own_data(job, party, local.data, local.alignment).data
        encoder = setup.encoders().get(party)
        side = load_feature_party(data, party, watching.progress, source=setup.source(party), encoder=encoder)
        setup.say_what_is_loaded(data, side)
        act = exchange.learn if job.hands_over else exchange.train
        return act(setup, side)


class _Exchange:
    """What a feature party does with the label party, over a network."""

    def __init__(self, job: Job, party: str, local: Local, insecure_loopback: bool) -> None:
        self._certificates = None if insecure_loopback else certificates_of(local, party)
        self._job, self._party, self._local = job, party, local
        self._address = connect_address(local)

    def train(self, setup: RunSetup, side: FeatureSide) -> FeatureResult:
        """Do all that the job's parties do together."""
        job, local, watching = self._job, self._local, setup.watching
        # A finished party is here only so that nobody waits for it: if nobody is there, nobody does.
        has_finished = setup.run.party_result(self._party) is not None
        patience = Patience(local.silence, min(local.wait, local.silence) if has_finished else local.wait)
        role = FeatureRole(setup, side)
        if not role.workers.is_first:
            return _result(FeatureRun([role], SharedLabel(role.workers, None)))
        device = role.workers.device(local.device)
        terms = Terms(limits(job, role.schedule), job.wire_type, patience, watching.connections, device)
        origin = setup.run.origin(self._party)
        agreed = agreement(job, side.ids, role.schedule, origin, setup.search).with_party(self._party)
        with LabelClient(self._address, self._party, agreed, terms, certificates=self._certificates) as client:
            role.observer.gathered({LABEL_PARTY: client.label})
            return _attend(role, client, watching.notice)

    def learn(self, setup: RunSetup, side: FeatureSide) -> FeatureResult:
        """Receive the noisy labels, after which the label party is not needed any more, and train alone.

        Of several workers the first receives them; all train.
        """
        watched = setup.watched_by(PartOf(setup.watching.observer, steps=False, without=["finished"])).of_first()
        received = replace(watched, run=RunFolder(setup.run.path / HAND_OVER))
        if setup.workers.is_first:
            with received.run.started(self._job, [self._party], moved=True):
                if LABEL_PARTY not in received.run.confirmed_to(self._party):
                    self.train(received, side)
        setup.workers.wait_for_all()
        folder = received.run.party(self._party)
        labels = ReleasedLabels.of(handed_over(self._job, folder), folder)
        setup.watching.notice(f"{len(labels.labels):,} noisy labels received; training goes on without the label party")
        train_alone(setup, side, labels, at_top=NullObserver())
        result = setup.run.party_result(self._party)
        assert result is not None  # the farewell has written it
        return result


def _result(run: FeatureRun) -> FeatureResult:
    (result,) = attend_as_features(run)
    return result


def _attend(role: FeatureRole, client: LabelClient, notice: Notice) -> FeatureResult:
    """Train with the label party until the run is finished."""
    label = SharedLabel(role.workers, client) if role.workers.are_several else client
    try:
        return _result(FeatureRun([role], label))
    except (PeerMissing, JobStopped) as error:
        result = role.run.party_result(role.name)
        if result is None:
            raise
        notice(f"the run is finished, but the label party has not confirmed it: {error}")
        return result
    except (Refused, PartyInterrupted):  # in the last case the label party waits for the return of this one
        raise
    except BadMessage as error:
        client.stop(error)
        raise
    except Exception as error:
        if not is_disk_full(error):  # else the label party waits for the return of this one
            client.stop(f"{role.name} has an error that is not the label party's")
        raise
