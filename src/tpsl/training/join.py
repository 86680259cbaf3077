"""A feature party as a program of its own: connects to the label party and trains with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tpsl.data.dataset import load_feature_party
from tpsl.data.sides import FeatureSide
from tpsl.files import is_disk_full
from tpsl.progress import Notice
from tpsl.training.agreement import agreement, limits, place_of
from tpsl.training.alone import parts_of_both, require_alone, train_alone
from tpsl.training.handed_labels import HAND_OVER, HandedLabels
from tpsl.training.job import Job
from tpsl.training.local import Local, certificates_of, connect_addresses, own_data
from tpsl.training.method import settled
from tpsl.training.observer import Fact, NullObserver, Observer, Watching
from tpsl.training.result import FeatureResult
from tpsl.training.role import FeatureRole
from tpsl.training.run_folder import RunFolder
from tpsl.training.search_step import SearchStep
from tpsl.training.setup import RunSetup
from tpsl.training.stages import attend_as_feature
from tpsl.training.stages.hand_over import handed_over
from tpsl.transport.channel import Channel, JobStopped, PeerMissing, Refused, run_alone
from tpsl.transport.checks import BadMessage
from tpsl.transport.label_workers import LabelWorkers
from tpsl.transport.link import Patience, Terms
from tpsl.transport.peers import LABEL_PARTY, MOST_WORKERS
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


class _UntilTheEnd(NullObserver):
    """Tells an observer all of an exchange but that it has finished: the run goes on."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def gathered(self, channels: Mapping[str, Channel]) -> None:
        self._observer.gathered(channels)

    def waiting_for(self, peer: str | None) -> None:
        self._observer.waiting_for(peer)

    def event(self, name: str, **facts: Fact) -> None:
        if name != "finished":
            self._observer.event(name, **facts)


class _Exchange:
    """What a feature party does with the label party, over a network."""

    def __init__(self, job: Job, party: str, local: Local, insecure_loopback: bool) -> None:
        self._credentials = None if insecure_loopback else certificates_of(local, party).channel()
        self._job, self._party, self._local = job, party, local
        # Labels are handed over by the first worker of the label party to the first one of this party.
        self._addresses = connect_addresses(local)[: 1 if job.hands_over else None]

    def train(self, setup: RunSetup, side: FeatureSide) -> FeatureResult:
        """Do all that the job's parties do together."""
        job, local, watching = self._job, self._local, setup.watching
        # A finished party is here only so that nobody waits for it: if nobody is there, nobody does.
        has_finished = setup.run.party_result(self._party) is not None
        patience = Patience(local.silence, min(local.wait, local.silence) if has_finished else local.wait)
        role = FeatureRole(setup, side)
        tensors, device = limits(job, role.schedule), role.workers.device(local.device)
        watch, place = watching.connections, place_of(role.workers)
        terms = Terms(tensors, job.wire_type, patience, watch, device, place, MOST_WORKERS)
        origin = setup.run.origin(self._party)
        agreed = agreement(job, side.ids, role.schedule, origin, setup.search).with_party(self._party)
        with LabelWorkers(self._addresses, self._party, agreed, terms, credentials=self._credentials) as client:
            return _attend(role, client, watching.notice)

    def learn(self, setup: RunSetup, side: FeatureSide) -> FeatureResult:
        """Receive the noisy labels, after which the label party is not needed any more, and train alone.

        Of several workers the first receives them; all train.
        """
        watched = setup.watched_by(_UntilTheEnd(setup.watching.observer)).of_first()
        received = replace(watched, run=RunFolder(setup.run.path / HAND_OVER))
        if setup.workers.is_first:
            with received.run.started(self._job, [self._party], moved=True):
                if LABEL_PARTY not in received.run.confirmed_to(self._party):
                    self.train(received, side)
        setup.workers.barrier()
        folder = received.run.party(self._party)
        labels = HandedLabels.of(handed_over(self._job, folder), folder)
        setup.watching.notice(f"{len(labels.labels):,} noisy labels received; training goes on without the label party")
        train_alone(setup, side, labels, at_top=NullObserver())
        result = setup.run.party_result(self._party)
        assert result is not None  # the farewell has written it
        return result


def _attend(role: FeatureRole, client: LabelWorkers, notice: Notice) -> FeatureResult:
    """Train with the label party until the run is finished."""
    try:
        return run_alone(attend_as_feature(role, client))
    except PeerMissing as missing:
        result = role.run.party_result(role.name)
        if result is None:
            raise
        notice(f"the run is finished, but the label party has not confirmed it: {missing}")
        return result
    except (Refused, JobStopped, PartyInterrupted):  # in the last case the label party waits for the return of this one
        raise
    except BadMessage as error:
        client.stop(str(error))
        raise
    except Exception as error:
        if not is_disk_full(error):  # else the label party waits for the return of this one
            client.stop(f"{role.name} has an error of its own")
        raise
