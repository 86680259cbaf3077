"""An alignment from the keys of a party to the folder that training reads: over a network, or all in one process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tpsl.alignment.aligning_feature_party import AligningFeatureParty
from tpsl.alignment.aligning_label_party import AligningLabelParty
from tpsl.alignment.aligning_party import AligningParty, Outcome
from tpsl.alignment.alignment_errors import AlignmentError
from tpsl.alignment.key_table import KeyTable
from tpsl.alignment.terms import AlignmentTerms
from tpsl.alignment.working_folder import WorkingFolder
from tpsl.data.aligned import Alignment, is_aligned
from tpsl.files import is_disk_full
from tpsl.training.local import Local, certificates_of, connect_address, listen_address
from tpsl.training.observer import UNWATCHED, Watching
from tpsl.transport.channel import JobStopped, PeerMissing, Refused, run_alone
from tpsl.transport.checks import BadMessage
from tpsl.transport.feature_client import FeatureClient
from tpsl.transport.in_process import InProcessMeeting, pair, run_together
from tpsl.transport.label_server import LabelServer
from tpsl.transport.link import Patience, Terms
from tpsl.transport.network import Endpoint
from tpsl.transport.peers import LABEL_PARTY, described


@dataclass(frozen=True, eq=False)
class AlignmentResult:
    """What an alignment has left in its folder, and the bytes that this process sent and received for it."""

    alignment: Alignment
    bytes_sent: int = 0
    bytes_received: int = 0


def align_as_label(
    terms: AlignmentTerms,
    table: KeyTable,
    local: Local,
    folder: Path,
    *,
    watching: Watching = UNWATCHED,
    insecure_loopback: bool = False,
) -> AlignmentResult:
    """Be the label party of an alignment; one that was interrupted goes on where it stopped.

    In mode `label-only` the feature parties learn how many records this party has and nothing else of them: what it
    sends does not depend on which they are, and which are common is found when the port is closed.
    """
    credentials = None if insecure_loopback else certificates_of(local, LABEL_PARTY).server()
    address, working = listen_address(local), WorkingFolder(folder, terms)
    side = AligningLabelParty(LABEL_PARTY, terms, table, working, watching)

    def meet() -> None:
        agreed, wire = terms.agreement(), _wire(side, local)
        with LabelServer(address, terms.parties, agreed, wire, credentials=credentials) as server:
            watching.observer.event("listening", address=f"{address.rpartition(':')[0]}:{server.port}")
            with _attending(server, side):
                run_alone(side.attend(server))

    with side.working.held():
        if not _is_done(side):
            meet()
            # The port is closed and every connection has ended: nobody can measure how long this takes.
            _save(side, side.outcome())
        return _result(side)


def align_as_feature(
    terms: AlignmentTerms,
    party: str,
    table: KeyTable,
    local: Local,
    folder: Path,
    *,
    watching: Watching = UNWATCHED,
    insecure_loopback: bool = False,
) -> AlignmentResult:
    """Be a feature party of an alignment; one that was interrupted goes on where it stopped.

    All parties learn how many records this party has. The label party also learns which of its own records are among
    them, and where several feature parties are, each which of its own all of them have. In mode `size` all learn the
    number of common records, and nobody which they are.
    """
    credentials = None if insecure_loopback else certificates_of(local, party).channel()
    address, working = connect_address(local), WorkingFolder(folder, terms)
    side = AligningFeatureParty(party, terms, table, working, watching)

    def meet() -> None:
        agreed, wire = terms.agreement(), _wire(side, local)
        with FeatureClient(address, party, agreed, wire, credentials=credentials) as client, _attending(client, side):
            run_alone(side.attend(client, partial(_save, side)))

    with side.working.held():
        if not _is_done(side):
            meet()
        return _result(side)


def align_together(
    terms: AlignmentTerms,
    tables: Mapping[str, KeyTable],
    folders: Mapping[str, Path],
    watching: Watching = UNWATCHED,
) -> dict[str, AlignmentResult]:
    """Be all parties of an alignment, in one process; each has its table and its folder, by its name."""
    workings = {name: WorkingFolder(folders[name], terms) for name in terms.circle}
    label = AligningLabelParty(LABEL_PARTY, terms, tables[LABEL_PARTY], workings[LABEL_PARTY], watching)
    features = [AligningFeatureParty(name, terms, tables[name], workings[name], watching) for name in terms.parties]
    with ExitStack() as holding:
        for working in workings.values():
            holding.enter_context(working.held())
        done = {side.name: _is_done(side) for side in (label, *features)}
        if not all(is_aligned(folder) for folder in folders.values()):
            if any(done.values()):
                first = next(name for name, is_done in done.items() if is_done)
                raise AlignmentError(f"{folders[first]}: was aligned before, but not all parties were; remove it")
            ends = {name: pair((LABEL_PARTY, name), "uint8") for name in terms.parties}
            run_together(
                label.attend(InProcessMeeting({name: end for name, (end, _) in ends.items()})),
                *(
                    side.attend(InProcessMeeting({LABEL_PARTY: ends[side.name][1]}), partial(_save, side))
                    for side in features
                ),
            )
            _save(label, label.outcome())
        return {side.name: _result(side) for side in (label, *features)}


def _is_done(side: AligningParty) -> bool:
    """Begin the alignment, or take it up; return whether it was done before, in which case the folder is left as is."""
    folder, working = side.working.folder, side.working
    if len(side.table) == 0:
        raise AlignmentError(f"no record of {side.name} has a key to align by: {', '.join(side.terms.keys)}")
    if is_aligned(folder) and not working.is_begun:
        there = Alignment.load(folder)
        if (there.party, there.mode, there.keys) != (side.name, side.terms.config.mode, side.terms.keys) or (
            not there.source.has_same_keys(side.table.source)
        ):
            raise AlignmentError(f"{folder}: holds another alignment; remove it, or choose another folder")
        side.watching.notice(f"{folder}: was aligned before; remove it to align anew")
        return True
    working.begin(side.table)
    return False


def _save(side: AligningParty, outcome: Outcome) -> None:
    Alignment(
        side.name,
        side.terms.config.mode,
        outcome.digest,
        side.terms.keys,
        side.table.source,
        outcome.rows,
        outcome.matched,
        outcome.matched_keys,
    ).save(side.working.folder)


def _result(side: AligningParty) -> AlignmentResult:
    """Forget what was needed on the way, and return what the folder holds."""
    side.working.end()
    sent = sum(traffic.bytes_sent for traffic in side.traffics)
    received = sum(traffic.bytes_received for traffic in side.traffics)
    return AlignmentResult(Alignment.load(side.working.folder), sent, received)


def _wire(side: AligningParty, local: Local) -> Terms:
    # A settled party is here only so that nobody waits for it: if nobody is there, nobody does.
    wait = min(local.wait, local.silence) if side.working.is_settled else local.wait
    return Terms(side.terms.limits(), "uint8", Patience(local.silence, wait), side.watching.connections)


@contextmanager
def _attending(endpoint: Endpoint, side: AligningParty) -> Iterator[None]:
    """Tell the others why this side stops, if it does; one that is settled does not need them any more."""
    try:
        yield
    except (PeerMissing, Refused, JobStopped, BadMessage) as error:
        endpoint.stop(str(error))
        if not side.working.is_settled:
            raise
        side.watching.notice(f"the alignment is done, but not every party has confirmed it: {error}")
    except Exception as error:
        if not is_disk_full(error):  # else the others wait for the return of this party
            endpoint.stop(f"{described(side.name)} has an error of its own")
        raise
