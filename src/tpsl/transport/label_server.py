"""Where feature parties connect: the label party's end of the network.

Each worker of a feature party has one connection, a gRPC stream. Which party it is says its certificate; whether it may
talk says the handshake. A stream that fails either is refused, and the others do not notice. Workers of a party that
were started together take the place of all that were started before.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import grpc

from tpsl.transport.channel import Channel, PeerMissing, PeerRestarted, Refused
from tpsl.transport.credentials import peer_name
from tpsl.transport.handshake import Agreement, LabelHandshake, LinkPosition, NotYet, refusal
from tpsl.transport.link import Connection, Link, Terms
from tpsl.transport.network import (
    METHOD,
    SERVICE,
    SHORT_GRACE,
    Endpoint,
    bind,
    server_options,
    stream_options,
)
from tpsl.transport.peer_workers import one_channel
from tpsl.transport.peers import WorkerPlace, described
from tpsl.transport.watchdog import Stream, Watchdog

_LINK_BYTES = 16
_ENDING = "the label party is ending the job"
# Room for a party's old stream, its new one, and a few that are refused.
_STREAMS_PER_PARTY = 4

_Result = TypeVar("_Result")


class _Later(Exception):
    """No link now; the peer may try again, and is told why."""


class LabelServer(Endpoint):
    """Listens for the feature parties of a job and gives a channel to each. Use it as a context manager."""

    def __init__(
        self,
        address: str,
        parties: Sequence[str],
        agreement: Agreement,
        terms: Terms,
        *,
        credentials: grpc.ServerCredentials | None,
    ) -> None:
        """Listen at once. Without credentials only a loopback address is accepted, and names are taken on trust."""
        super().__init__(address, agreement, terms, certified=credentials is not None)
        self._certified = credentials is not None
        self._parties = tuple(parties)
        self._links: dict[str, dict[int, Link]] = {party: {} for party in self._parties}
        """Those to the workers of each party that were started last, by their numbers."""
        self._retired: set[bytes] = set()
        self._handshakes: dict[str, deque[Stream]] = {}
        self._absent_because = dict.fromkeys(self._parties, "not connected yet")

        self._strangers: set[str] = set()
        """Who was refused and is no party of the job: the log names each once."""
        further = (terms.most_workers - 1) * len(self._parties)
        streams = _STREAMS_PER_PARTY * (len(self._parties) + 1) + further
        self._pool = ThreadPoolExecutor(streams, thread_name_prefix="tpsl stream")
        options = [*stream_options(terms.limits, terms.dtype), *server_options(_STREAMS_PER_PARTY)]
        self._server = grpc.server(self._pool, options=options, maximum_concurrent_rpcs=streams)
        handler = grpc.stream_stream_rpc_method_handler(self._serve)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        self.port = bind(self._server, address, credentials)
        self._watchdog = Watchdog(terms.patience.silence)
        self._server.start()

    async def gather(self, without: Collection[str] = ()) -> dict[str, Channel]:
        """Wait until every feature party but those in `without` is there; return channels in the job's order.

        A channel that is returned again is the same one; a party that was restarted has a new one. A party of several
        workers is there when all those are that this worker has parts of a batch in common with.
        """
        wanted = [party for party in self._parties if party not in without]
        until = time.monotonic() + self._terms.patience.wait
        told: set[str] = set()
        with self._changed:
            while missing := {party: who for party in wanted if (who := self._absent(party)) is not None}:
                for party in missing.keys() - told:
                    self._terms.watch(party, f"waiting: {self._absent_because[party]}")
                told.update(missing)
                left = until - time.monotonic()
                if left <= 0:
                    names, why = " and ".join(missing.values()), self._absent_because[next(iter(missing))]
                    raise PeerMissing(f"{names} did not come within {self._terms.patience.wait:g} s ({why})")
                self._changed.wait(left)
            return {party: one_channel(self._links[party]) for party in wanted}

    def _absent(self, party: str) -> str | None:
        """Return who of a party is waited for, the party or the first of its workers; None: all are there."""
        links = self._links[party]
        for link in links.values():
            if link.failure is not None:
                raise link.failure
            for number in range(link.worker.count):
                if number not in links and self._terms.worker.meets(number, link.worker.count):
                    return described(party, replace(link.worker, number=number))
            return None
        return described(party)

    def _end(self, reason: str | None, grace: float) -> None:
        links = [link for of_party in self._links.values() for link in list(of_party.values())]
        ends = [threading.Thread(target=link.stop, args=(reason, grace)) for link in links]
        for end in ends:
            end.start()
        for end in ends:
            end.join()
        self._server.stop(SHORT_GRACE / 2).wait()
        self._watchdog.close()
        self._pool.shutdown(wait=False)

    # One call of what follows is one stream, in a thread of its own.

    def _serve(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        stream = self._watchdog.watch(context.cancel)
        if not context.add_callback(lambda: self._ended(stream)):
            self._ended(stream)
            return
        handshake = LabelHandshake(self._agreement, self._parties)
        who = "a client without a name"
        try:
            certified = self._certificate(context)
            if certified is not None:
                who = certified
                self._begun(who, stream)
            challenge = self._unless_ending(handshake.challenge, next(requests), certified)
            if certified is None:
                who = handshake.party
                self._begun(who, stream)
            yield challenge
            position = self._unless_ending(handshake.proven, next(requests))
            link, connection = self._attach(who, position, stream)
        except (StopIteration, grpc.RpcError):
            if stream.given_up_because is not None:
                self._refused(who, stream.given_up_because)
            return
        except ValueError as error:
            self._refused(who, str(error))
            yield refusal(str(error))
            return
        except _Later as later:
            context.set_code(grpc.StatusCode.UNAVAILABLE)
            context.set_details(str(later))
            return
        yield handshake.welcome(LinkPosition(link.identity, link.received, self._terms.worker))
        yield from _ride(requests, connection)
        if isinstance(link.failure, PeerRestarted):
            context.set_code(grpc.StatusCode.ABORTED)
            context.set_details(_taken_over(who))

    def _unless_ending(self, step: Callable[..., _Result], *arguments: object) -> _Result:
        """Take a step of a handshake; who fails it while a job ends has come for the next one, and may try again."""
        try:
            return step(*arguments)
        except NotYet as elsewhere:
            raise _Later(str(elsewhere)) from None
        except Refused:
            if self._stopped:
                raise _Later(_ENDING) from None
            raise

    def _certificate(self, context: grpc.ServicerContext) -> str | None:
        if not self._certified:
            return None
        name = peer_name(context)
        if name is None:
            raise Refused("the certificate does not name exactly one party")
        return name

    def _begun(self, party: str, stream: Stream) -> None:
        """Of a party's handshakes the newest count, as many as it may have workers: it cannot use up all streams."""
        with self._changed:
            begun = self._handshakes.setdefault(party, deque())
            begun.append(stream)
            before = begun.popleft() if len(begun) > self._terms.most_workers else None
        if before is not None and before.connection is None:
            before.cancel()

    def _attach(self, party: str, position: LinkPosition, stream: Stream) -> tuple[Link, Connection]:
        """Resume the link to a worker of the party, or begin a new one for its new process."""
        with self._changed:
            links, worker = self._links[party], position.worker
            for link in links.values():
                if link.failure is not None:
                    raise Refused(f"the job was stopped: {link.failure}")
            if position.link in self._retired:
                raise Refused(_taken_over(party))
            replaced = self._replaced_by(worker, party)
            old = links.get(worker.number)
            if old is not None and old.identity == position.link and old not in replaced:
                link, received = old, position.received
            elif self._stopped:
                raise _Later(_ENDING)
            else:
                link, received = Link(secrets.token_bytes(_LINK_BYTES), party, self._terms, worker, links), 0
                replaced = {*replaced, *([old] if old is not None else [])}
            stream.connection = connection = link.attach(received)
            for gone in replaced:
                self._retire(gone)
            links[worker.number] = link
            self._changed.notify_all()
            return link, connection

    def _replaced_by(self, worker: WorkerPlace, party: str) -> set[Link]:
        """Return the links of workers that were started earlier than this one, which must be one that is due here."""
        if worker.count > self._terms.most_workers:
            raise Refused(f"{described(party)} comes with {worker.count} workers; here it may have one")
        if not self._terms.worker.meets(worker.number, worker.count):
            raise Refused(
                f"{worker} of {described(party)} has nothing to do with {self._terms.worker} of the label party"
            )
        links = self._links[party].values()
        for link in links:
            if link.worker.crew == worker.crew and link.worker.count != worker.count:
                raise Refused(f"{described(party)} has {link.worker.count} workers, but {worker} has come")
        return {link for link in links if link.worker.crew != worker.crew}

    def _retire(self, link: Link) -> None:
        """End the link to a process in whose place another one is."""
        self._retired.add(link.identity)
        del self._links[link.peer][link.worker.number]
        link.fail(PeerRestarted(link.peer))
        link.detach("it was restarted")

    def _refused(self, who: str, why: str) -> None:
        with self._changed:
            if who in self._strangers:
                return
            if who in self._parties:
                self._absent_because[who] = f"refused: {why}"
            else:
                self._strangers.add(who)
            self._terms.watch(who, f"refused: {why}")

    def _ended(self, stream: Stream) -> None:
        self._watchdog.forget(stream)
        if stream.connection is not None:
            stream.connection.lose("the connection ended")


def _ride(requests: Iterator[bytes], connection: Connection) -> Iterator[bytes]:
    """Drive a connection until it is lost; what comes from the peer is read in a thread of its own."""
    reader = threading.Thread(target=_read, args=(requests, connection), name="tpsl reader", daemon=True)
    reader.start()
    yield from connection.outgoing()


def _read(requests: Iterator[bytes], connection: Connection) -> None:
    with contextlib.suppress(grpc.RpcError):
        for data in requests:
            if not connection.incoming(data):
                return
        connection.end()


def _taken_over(party: str) -> str:
    return f"another process of {described(party)} has taken its place"
