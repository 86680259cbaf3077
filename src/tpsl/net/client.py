"""How a feature party asks the label party over a network: each call has a deadline, and is made again until answered.

A question that is asked again is the same bytes, and gets the same answer. So a cut connection costs no step; a label
party that was restarted answers ABORTED, and the feature party agrees with it anew.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import grpc

from tpsl.net.agreement import Agreement, Introduction
from tpsl.net.asking import Answers
from tpsl.net.certificates import LABEL_SERVER_NAME, Certificates
from tpsl.net.codec import as_sentence, decode, encode, tensor_bytes
from tpsl.net.connection import Terms
from tpsl.net.failures import BadMessage, JobStopped, NetError, PeerMissing, PeerRestarted, Refused
from tpsl.net.messages import LABEL_PARTY, Limits, Message, Traffic, WireType
from tpsl.net.network import (
    CODE,
    SERVICE,
    SHORT_GRACE,
    SLOWEST,
    ClosedAfterTls,
    Options,
    frame_options,
    require_loopback,
    why_unreachable,
)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
_CLOSED_TIMES = 4
"""A label party that does not accept a certificate closes the connection after TLS each time; a network does not."""
_PROCESS_BYTES = 16


class LabelClient:
    """A feature party's way to the label party. Use it as a context manager."""

    def __init__(
        self,
        address: str,
        party: str,
        agreement: Agreement,
        terms: Terms,
        *,
        certificates: Certificates | None,
        is_finished: Callable[[], bool] = lambda: False,
    ) -> None:
        """Prepare to connect. Without certificates only a loopback address is accepted.

        A party that is finished asks only so that the label party need not wait for it: it waits for a label party that
        is gone no longer than `silence`.
        """
        if certificates is None:
            require_loopback(address)
        self._address, self.party, self._agreement, self.terms = address, party, agreement, terms
        self._certificates, self._is_finished = certificates, is_finished
        self._options: Options = [
            *frame_options(terms),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.min_reconnect_backoff_ms", 3_000),
            ("grpc.max_reconnect_backoff_ms", 1_000),
            ("grpc.ssl_target_name_override", LABEL_SERVER_NAME) if certificates else ("grpc.enable_http_proxy", 0),
        ]
        local = grpc.local_channel_credentials(grpc.LocalConnectionType.LOCAL_TCP)
        self._credentials = certificates.channel() if certificates else local
        self._connect()
        self.traffic = Traffic()
        self._process, self._attempt = secrets.token_bytes(_PROCESS_BYTES), 0
        self._session, self._number = b"", 0
        self.under_way: deque[_Call] = deque()
        self.heard_at, self.is_lost, self.was_here = time.monotonic(), False, False
        self._waiting_because, self._closed_times = "connecting", 0

    def _connect(self) -> None:
        self._channel = grpc.secure_channel(self._address, self._credentials, options=self._options)
        self._stubs: dict[str, Any] = {}

    def stub(self, method: str) -> Any:
        """Return what calls a method of the label party's service on the channel there is now."""
        if method not in self._stubs:
            self._stubs[method] = self._channel.unary_unary(f"/{SERVICE}/{method}", None, None)
        return self._stubs[method]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        # Ctrl-C may have stopped gRPC half-way through a call: then closing waits for ever, and its thread is left.
        closing = threading.Thread(target=self._channel.close, daemon=True)
        closing.start()
        closing.join(SHORT_GRACE)

    def agree(self, said: Answers) -> Answers:
        """Say where this party stands, and return where all start, once all parties have agreed."""
        while self.under_way:
            self.under_way.popleft().forget()
        self._attempt += 1
        self.heard_at = time.monotonic()
        while True:
            introduction = Introduction(self.party, self.party, self._agreement)
            try:
                hello = _Call(self, "Hello", introduction.fields()).finish()
                introduction.compare(hello)
                message = replace(
                    said[self.party],
                    secret=introduction.proof(),
                    session=self._process,
                    number=self._attempt,
                    text=self.party,
                )
                answer = _Call(self, "Agree", message).finish()
            except PeerRestarted:  # between the two calls
                self._attempt += 1
                time.sleep(_FIRST_PAUSE)
                continue
            introduction.require_proof(answer.secret)
            self._session, self._number = answer.session, 0
            if not self._session:
                raise BadMessage("the label party answered without a session")
            return {self.party: answer}

    def ask(self, method: str, step: int, part: int, said: Answers) -> Answers:
        """Ask, and return the answer."""
        return self.ask_ahead(method, step, part, said, alone=not self.under_way)()

    def ask_ahead(
        self, method: str, step: int, part: int, said: Answers, *, alone: bool = False
    ) -> Callable[[], Answers]:
        """Ask, and return what waits for the answer. No more questions are under way than the terms allow."""
        message = replace(said[self.party], step=step, part=part, session=self._session, number=self._number)
        self._number += 1
        while len(self.under_way) >= self.terms.limits.calls:
            self.under_way[0].finish()
        self.traffic.bytes_sent += tensor_bytes(message, self.terms.dtype)
        call = _Call(self, method, message, alone=alone)
        self.under_way.append(call)
        return call

    def stop(self, error: NetError | str) -> None:
        """Tell the label party why this party ends the job."""
        code = error.code if isinstance(error, NetError) else "stopped"
        message = Message(text=self.party, session=self._process, fields=((code, as_sentence(str(error))),))
        try:
            self.stub("Stop")(encode(message, "float32"), timeout=SHORT_GRACE)
        except grpc.RpcError:
            return  # it learns that this party is gone

    def heard(self) -> None:
        """Note that the label party has answered, for the first time or after it was lost."""
        self.terms.watch(LABEL_PARTY, "connected again" if self.was_here else "connected")
        self.is_lost, self.was_here, self._closed_times = False, True, 0

    def failed(self, method: str, error: grpc.RpcError, since: float) -> None:
        """Raise what a status code means; return where the call may be made again, which was first made at `since`."""
        status, details = error.code(), as_sentence(error.details() or "")
        code = next((str(each.value) for each in error.trailing_metadata() or () if each.key == CODE), "")
        if status == grpc.StatusCode.ABORTED:
            self.heard_at = time.monotonic()
            if self.is_lost or not self.was_here:
                self.heard()
            raise PeerRestarted(LABEL_PARTY)
        is_bad = status == grpc.StatusCode.INVALID_ARGUMENT
        if status == grpc.StatusCode.PERMISSION_DENIED or (is_bad and method in ("Hello", "Agree")):
            raise self._refused(f"the label party refuses: {details}", code)
        if is_bad or status == grpc.StatusCode.FAILED_PRECONDITION:
            raise JobStopped(f"the label party stopped the job: {details}", code)
        if status == grpc.StatusCode.UNIMPLEMENTED:
            raise self._refused(f"what listens at {self._address} is not a label party of this program", "")
        if status == grpc.StatusCode.DEADLINE_EXCEEDED:  # it always answers sooner: the connection leads nowhere
            self._channel.close()
            self._connect()
        if status == grpc.StatusCode.RESOURCE_EXHAUSTED and not code:
            raise BadMessage(f"a message to or from the label party is too large for this job: {details}")
        self._lost(details if code else self._reason(status), since)

    def _refused(self, sentence: str, code: str) -> Refused:
        self.terms.watch(LABEL_PARTY, f"refused: {sentence}")
        return Refused(sentence, code)

    def _reason(self, status: grpc.StatusCode) -> str:
        if status == grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"not heard for {self.terms.patience.silence:g} s"
        try:
            return why_unreachable(self._address, self._certificates)
        except ClosedAfterTls:
            self._closed_times += 1
            if self._closed_times >= _CLOSED_TIMES:
                raise self._refused(
                    f"the label party at {self._address} closes every connection after the TLS handshake: "
                    "it does not accept this party's certificate",
                    "certificate",
                ) from None
            return f"the connection to {self._address} was closed"
        except Refused as refused:
            raise self._refused(str(refused), "certificate") from None

    def _lost(self, why: str, since: float) -> None:
        """Note why there is no answer; raise if that has lasted too long."""
        patience = self.terms.patience
        wait = min(patience.wait, patience.silence) if self._is_finished() else patience.wait
        if time.monotonic() - max(self.heard_at, since) >= wait:
            if not self.was_here:
                raise PeerMissing(f"the label party at {self._address} could not be reached within {wait:g} s: {why}")
            raise PeerMissing(f"the label party was lost ({why}) and did not come back within {wait:g} s")
        if self.was_here and not self.is_lost:
            self.terms.watch(LABEL_PARTY, f"lost: {why}; waiting up to {wait:g} s for its return")
        elif not self.was_here and why != self._waiting_because:
            self.terms.watch(LABEL_PARTY, f"waiting: {why}")
        self.is_lost, self._waiting_because = self.was_here, why


class _Call:
    """One question, from the first call to the answer."""

    def __init__(self, client: LabelClient, method: str, message: Message, *, alone: bool = True) -> None:
        self._client, self._method, self._message = client, method, message
        self._is_question = method not in ("Hello", "Agree")
        self._dtype: WireType = client.terms.dtype if self._is_question else "float32"
        self._data = encode(message, self._dtype)
        self._timeout = client.terms.patience.silence + len(self._data) / SLOWEST
        self._answer: Message | None = None
        self._error: Exception | None = None
        # A call that is waited for at once needs no thread of gRPC.
        self._future = None if alone else client.stub(method).future(self._data, timeout=self._timeout)

    def __call__(self) -> Answers:
        """Return the answer, by party; wait for it if it has not come yet."""
        client, asked = self._client, self._message
        # A question that was lost is asked again when it is waited for, and the label party needs all in order.
        while self in client.under_way and client.under_way[0] is not self:
            client.under_way[0].finish()
        found = self.finish()
        if (found.step, found.part) != (asked.step, asked.part):
            what = f"{self._method} of step {asked.step}, part {asked.part}"
            raise BadMessage(f"the label party answered {what} with another one")
        return {client.party: found}

    def forget(self) -> None:
        """Give the answer up."""
        if self._future is not None:
            self._future.cancel()

    def finish(self) -> Message:
        """Return the answer; ask again until it has come."""
        client, pause, data = self._client, _FIRST_PAUSE, self._data
        terms, since = client.terms, time.monotonic()  # before, nobody has missed the answer
        try:
            while self._answer is None and self._error is None:
                try:
                    future, self._future = self._future, None
                    ask = client.stub(self._method)
                    received = future.result() if future else ask(data, timeout=self._timeout)
                except grpc.RpcError as error:
                    client.failed(self._method, error, since)
                    time.sleep(pause)
                    pause, data = min(2 * pause, _LONGEST_PAUSE), self._data
                    continue
                client.heard_at = time.monotonic()
                if client.is_lost or not client.was_here:
                    client.heard()
                limits = terms.limits if self._is_question else Limits()
                answer = decode(received, limits, self._dtype, sender="the label party", device=terms.device)
                if answer.pending:
                    asked = replace(self._message, tensor=None, pending=True)
                    pause, data = _FIRST_PAUSE, encode(asked, self._dtype)
                    time.sleep(pause)  # a label party that answers so at once is not asked without end
                    continue
                client.traffic.bytes_received += tensor_bytes(answer, self._dtype)
                self._answer = answer
        except Exception as error:
            self._error = error
        finally:
            if self in client.under_way:
                client.under_way.remove(self)
        if self._answer is None:
            assert self._error is not None
            raise self._error
        return self._answer
