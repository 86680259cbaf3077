"""How a feature party reaches the label party: connects, and connects again, until the job is over."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Collection, Iterator
from queue import SimpleQueue

import grpc

from tpsl.transport.channel import Channel, PeerMissing, PeerRestarted, Refused
from tpsl.transport.checks import BadMessage
from tpsl.transport.credentials import LABEL_SERVER_NAME
from tpsl.transport.frames import as_sentence
from tpsl.transport.handshake import Agreement, FeatureHandshake, LinkPosition
from tpsl.transport.link import Connection, Link, Terms
from tpsl.transport.network import METHOD, SERVICE, SHORT_GRACE, Endpoint, Options, stream_options
from tpsl.transport.peers import LABEL_PARTY, WorkerPlace
from tpsl.transport.watchdog import Stream, Watchdog

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
# A label party that does not accept our certificate closes the connection when TLS is done and does not say why; a
# network that breaks does not do so at this very moment again and again.
_CLOSED_AFTER_TLS_TIMES = 4

_NO_CONNECTION = {
    "Connection refused": "nobody listens at {} yet: connection refused",
    "Domain name not found|errors resolving|DNS resolution failed": "the host name in {} is not known",
    "No route to host|Network is unreachable": "no network leads to {}",
    "Connection timed out|timed out|[Tt]imeout": "nothing answers at {}: is there a firewall between?",
    "Connection reset|Socket closed|Broken pipe": "the connection to {} was closed",
}
"""What gRPC's words for a connection that did not come about mean."""

_Writing = SimpleQueue[bytes | Connection | None]


class FeatureClient(Endpoint):
    """Keeps a feature party connected to the label party. Use it as a context manager."""

    def __init__(
        self,
        address: str,
        party: str,
        agreement: Agreement,
        terms: Terms,
        *,
        credentials: grpc.ChannelCredentials | None,
        expected: tuple[int, int] = (0, 1),
        beside: dict[int, Link] | None = None,
    ) -> None:
        """Begin to connect. Without credentials only a loopback address is accepted.

        `expected` is which worker of the label party listens there, and how many it has; `beside` are the links to all
        of them, by their numbers, which this one is put among.
        """
        super().__init__(address, agreement, terms, certified=credentials is not None)
        self._options: Options = [
            *stream_options(terms.limits, terms.dtype),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.ssl_target_name_override", LABEL_SERVER_NAME) if credentials else ("grpc.enable_http_proxy", 0),
        ]
        self._credentials = credentials or grpc.local_channel_credentials(grpc.LocalConnectionType.LOCAL_TCP)
        self._address, self._party, self._expected = address, party, expected
        self._link: Link | None = None
        self._beside = {} if beside is None else beside
        self._failure: Exception | None = None
        self._waiting_because = "connecting"
        self._closed_after_tls = 0
        self._closing = threading.Event()
        self._watchdog = Watchdog(terms.patience.silence)
        self._stream: Stream | None = None
        self._thread = threading.Thread(target=self._stay_connected, name="tpsl connection", daemon=True)
        self._thread.start()

    async def gather(self, without: Collection[str] = ()) -> dict[str, Channel]:
        """Wait for the label party and return the channel to it: a new one if it was restarted."""
        return {} if LABEL_PARTY in without else {LABEL_PARTY: await self.link()}

    async def link(self) -> Link:
        """Wait for the label party and return the link to it: a new one if it was restarted."""
        until = time.monotonic() + self._terms.patience.wait
        with self._changed:
            while self._link is None or isinstance(self._link.failure, PeerRestarted):
                if self._failure is not None:
                    raise self._failure
                left = until - time.monotonic()
                if left <= 0:
                    raise PeerMissing(
                        f"the label party at {self._address} could not be reached within "
                        f"{self._terms.patience.wait:g} s: {self._waiting_because}"
                    )
                self._changed.wait(left)
            if self._link.failure is not None:
                raise self._link.failure
            return self._link

    def _end(self, reason: str | None, grace: float) -> None:
        if self._link is not None:
            self._link.stop(reason, grace)
        self._closing.set()
        stream = self._stream
        if stream is not None and stream.connection is None:
            stream.cancel()
        self._thread.join(SHORT_GRACE / 2)
        if stream is not None:
            stream.cancel()
        self._thread.join()
        self._watchdog.close()

    # What follows runs in the thread of the connection.

    def _stay_connected(self) -> None:
        pause = _FIRST_PAUSE
        try:
            while not self._closing.is_set():
                if self._connect():
                    pause = _FIRST_PAUSE
                self._closing.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        except Exception as error:  # whatever ends this thread must reach the role's
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._failure = error
            link = self._link
            self._changed.notify_all()
        if link is not None:
            link.fail(error)
            link.detach(str(error))
        self._terms.watch(LABEL_PARTY, f"refused: {error}")

    def _connect(self) -> bool:
        """Ride on one connection from its beginning to its end; False if there was none."""
        writing: _Writing = SimpleQueue()
        with grpc.secure_channel(self._address, self._credentials, options=self._options) as channel:
            call = channel.stream_stream(f"/{SERVICE}/{METHOD}", None, None)(_written(writing))
            self._stream = stream = self._watchdog.watch(call.cancel)
            if self._closing.is_set():
                stream.cancel()
            answers: Iterator[bytes] = iter(call)
            try:
                with contextlib.suppress(StopIteration):  # it ended during the handshake
                    connection = self._shake_hands(answers, writing, stream)
                    self._closed_after_tls = 0
                    for data in answers:
                        connection.incoming(data)
                    connection.end()
                self._lost(stream, "the connection ended")
            except grpc.RpcError as error:
                self._lost(stream, self._explained(error, stream))
            finally:
                writing.put(None)
                self._watchdog.forget(stream)
                stream.cancel()
        if self._link is not None and isinstance(self._link.failure, BadMessage):
            raise self._link.failure
        return stream.connection is not None

    def _shake_hands(self, answers: Iterator[bytes], writing: _Writing, stream: Stream) -> Connection:
        handshake = FeatureHandshake(self._party, self._agreement)
        old = self._link
        link, received = (old.identity, old.received) if old is not None else (b"", 0)
        position = LinkPosition(link, received, self._terms.worker)
        writing.put(handshake.hello())
        writing.put(handshake.proof(next(answers), position))
        theirs = handshake.welcomed(next(answers))
        self._require_expected(theirs.worker)
        if old is not None and theirs.link == old.identity:
            riding = old
        elif theirs.received:
            raise BadMessage("the label party sent a welcome to a new link on which it has received messages")
        else:
            riding = Link(theirs.link, LABEL_PARTY, self._terms, theirs.worker, self._beside)
        stream.connection = connection = riding.attach(theirs.received)
        writing.put(connection)
        with self._changed:
            self._link = self._beside[theirs.worker.number] = riding
            self._waiting_because = ""
            self._changed.notify_all()
        if old is not None and riding is not old:
            old.fail(PeerRestarted(LABEL_PARTY))
        return connection

    def _require_expected(self, worker: WorkerPlace) -> None:
        """Raise unless the worker of the label party that listens here is the one that was to be reached."""
        number, count = self._expected
        if worker.count != count:
            raise Refused(
                f"the label party has {worker.count} worker(s), but {count} address(es) to connect to were named: "
                "name those of all its workers, in order, separated by commas"
            )
        if worker.number != number:
            raise Refused(
                f"at {self._address} listens {worker} of the label party, and worker {number} was expected: "
                "name the addresses of its workers in order"
            )

    def _lost(self, stream: Stream, why: str) -> None:
        if stream.connection is not None:
            stream.connection.lose(why)
        if self._closing.is_set() or why == self._waiting_because:
            return
        self._waiting_because = why
        if stream.connection is None:
            self._terms.watch(LABEL_PARTY, f"waiting: {why}")

    def _explained(self, error: grpc.RpcError, stream: Stream) -> str:
        """Return why a stream ended; raise if it is for good."""
        code, details = error.code(), as_sentence(error.details() or "")
        if code == grpc.StatusCode.ABORTED:
            raise Refused(f"the label party has ended the connection: {details}")
        if code == grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
            raise BadMessage(f"a message to or from the label party is too large for this job: {details}")
        if code == grpc.StatusCode.UNIMPLEMENTED:
            raise Refused(f"what listens at {self._address} is not a label party of this program")
        if "CERTIFICATE_VERIFY_FAILED" in details:
            reason = re.sub(r".*CERTIFICATE_VERIFY_FAILED:? ?|: OK$", "", details)
            raise Refused(f"the certificate of what listens at {self._address} cannot be trusted: {reason}")
        if "WRONG_VERSION_NUMBER" in details:
            raise Refused(f"what listens at {self._address} does not speak TLS")
        if "Hostname Verification Check failed" in details or "Peer name" in details:
            raise Refused(f"what listens at {self._address} has not the certificate of a label party")
        if details.startswith("failed to connect") and details.endswith(": Socket closed"):
            self._closed_after_tls += 1
            if self._closed_after_tls >= _CLOSED_AFTER_TLS_TIMES:
                raise Refused(
                    f"the label party at {self._address} closes every connection after the TLS handshake: "
                    "it does not accept this party's certificate"
                )
        else:
            self._closed_after_tls = 0
        if stream.given_up_because is not None:
            return stream.given_up_because
        for pattern, words in _NO_CONNECTION.items():
            if re.search(pattern, details):
                return words.format(self._address)
        return re.sub(r"^.*last error: \w+: |^ipv[46]:\S+: ", "", details) or code.name.lower()


def _written(queue: _Writing) -> Iterator[bytes]:
    """Yield the frames of the handshake, then those of the connection; then the stream is closed on this side."""
    while isinstance(item := queue.get(), bytes):
        yield item
    if item is not None:
        yield from item.outgoing()
