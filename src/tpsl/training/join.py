"""A feature party as a program of its own: connects to the label party and trains with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tpsl.data.dataset import load_feature_party
from tpsl.data.sides import FeatureSide
from tpsl.files import is_disk_full
from tpsl.net.asking import Label
from tpsl.net.certificates import Certificates
from tpsl.net.client import LabelClient
from tpsl.net.connection import Patience, Terms
from tpsl.net.failures import BadMessage, JobStopped, PeerMissing, Refused
from tpsl.net.peers import LABEL_PARTY
from tpsl.training.alone import parts_of_both, require_alone, train_alone
from tpsl.training.job import Job
from tpsl.training.job_agreement import agreement, limits
from tpsl.training.label_source import HAND_OVER, ReleasedLabels
from tpsl.training.local import Local, certificates_of, connect_address, own_data
from tpsl.training.method import resolve_method
from tpsl.training.observer import FilteredObserver, NullObserver, Watching
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

    job = resolve_method(job, count, watching.reason)
    workers = Workers.of_this_process(local.device)
    certificates = None if insecure_loopback else certificates_of(local, party)
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
        if job.hands_over:
            _learn(setup, side, local, certificates)
        else:
            _train(FeatureRole(setup, side), local, certificates)
        result = setup.run.party_result(party)
        assert result is not None  # the farewell has written it
        return result


def _train(role: FeatureRole, local: Local, certificates: Certificates | None) -> None:
    """Do all that the job's parties do together."""
    with _way_to_label(role, local, certificates) as label:
        attend_as_features(FeatureRun([role], label))


def _learn(setup: RunSetup, side: FeatureSide, local: Local, certificates: Certificates | None) -> None:
    """Receive the noisy labels, after which the label party is not needed any more, and train alone.

    Of several workers the first receives them; all train.
    """
    job, party = setup.job, side.party
    watched = setup.watched_by(FilteredObserver(setup.watching.observer, steps=False, without=["finished"])).of_first()
    received = replace(watched, run=RunFolder(setup.run.path / HAND_OVER))
    if setup.workers.is_first:
        with received.run.started(job, [party], moved=True):
            if LABEL_PARTY not in received.run.confirmed_to(party):
                _train(FeatureRole(received, side), local, certificates)
    setup.workers.barrier()
    folder = received.run.party(party)
    labels = ReleasedLabels.of(handed_over(job, folder), folder)
    setup.watching.notice(f"{len(labels.labels):,} noisy labels received; training goes on without the label party")
    train_alone(setup, side, labels, at_top=NullObserver())


@contextmanager
def _way_to_label(role: FeatureRole, local: Local, certificates: Certificates | None) -> Iterator[Label]:
    """Give the way to the label party; an error of this party is told to it. Of several workers the first has it."""
    job, watching, workers = role.job, role.setup.watching, role.workers
    if not workers.is_first:
        yield SharedLabel(workers, None)
        return
    # A finished party is here only so that nobody waits for it: if nobody is there, nobody does.
    has_finished = role.run.party_result(role.name) is not None
    patience = Patience(local.silence, min(local.wait, local.silence) if has_finished else local.wait)
    device = workers.device(local.device)
    terms = Terms(limits(job, role.schedule), job.wire_type, patience, watching.connections, device)
    origin = role.run.origin(role.name)
    agreed = agreement(job, role.side.ids, role.schedule, origin, role.setup.search).with_party(role.name)
    with LabelClient(connect_address(local), role.name, agreed, terms, certificates=certificates) as client:
        role.observer.gathered({LABEL_PARTY: client.label})
        try:
            yield SharedLabel(workers, client) if workers.are_several else client
        except (PeerMissing, JobStopped) as error:
            if role.run.party_result(role.name) is None:
                raise
            watching.notice(f"the run is finished, but the label party has not confirmed it: {error}")
        except (Refused, PartyInterrupted):  # in the last case the label party waits for the return of this one
            raise
        except BadMessage as error:
            client.stop(error)
            raise
        except Exception as error:
            if not is_disk_full(error):  # else the label party waits for the return of this one
                client.stop(f"{role.name} has an error that is not the label party's")
            raise
