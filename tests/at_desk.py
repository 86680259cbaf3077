"""Parties at a label party's desk in one process, without sockets: what they say is bytes, as over a network."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from tpsl.net.agreement import Agreement, Introduction
from tpsl.net.asking import Answers
from tpsl.net.codec import decode, encode
from tpsl.net.desk import Desk, Ticket
from tpsl.net.failures import JobStopped, NetError
from tpsl.net.messages import Limits

T = TypeVar("T")
LIMIT = 60.0
"""Seconds for what takes a moment when nothing is broken."""


class AtDesk:
    """A feature party, as a process that asks at a desk."""

    def __init__(self, desk: Desk, party: str, agreed: Agreement, process: bytes = b"first") -> None:
        self._desk, self._party, self._agreed, self._process = desk, party, agreed, process
        self._attempt = self._number = 0

    def agree(self, said: Answers) -> Answers:
        introduction = Introduction(self._party, self._party, self._agreed)
        hello = self._desk.hello(self._party, encode(introduction.fields(), "float32"))
        introduction.compare(decode(hello, Limits(), "float32", sender="the label party"))
        self._attempt, self._number = self._attempt + 1, 0
        message = replace(
            said[self._party],
            secret=introduction.proof(),
            session=self._process,
            number=self._attempt,
            text=self._party,
        )
        ticket = self._desk.agree(self._party, encode(message, "float32"))
        answer = decode(self._delivered(ticket), Limits(), "float32", sender="the label party")
        introduction.require_proof(answer.secret)
        self._session = answer.session
        return {self._party: answer}

    def ask(self, method: str, step: int, part: int, said: Answers) -> Answers:
        return self.ask_ahead(method, step, part, said)()

    def ask_ahead(self, method: str, step: int, part: int, said: Answers) -> Callable[[], Answers]:
        limits, dtype = self._desk.terms.limits, self._desk.terms.dtype
        message = replace(said[self._party], step=step, part=part, session=self._session, number=self._number)
        self._number += 1
        ticket = self._desk.ask(self._party, method, encode(message, dtype))
        return lambda: {self._party: decode(self._delivered(ticket), limits, dtype, sender="the label party")}

    def _delivered(self, ticket: Ticket) -> bytes:
        """Wait for an answer, and say that it, or the error, has arrived, as the server does."""
        try:
            return ticket.answer.result(LIMIT)
        finally:
            self._desk.delivered(ticket)


def attending(desk: Desk, attend: Callable[[], T]) -> Future[T]:
    """Be the label party in another thread; the parties at the desk are told if it fails."""

    def act() -> T:
        try:
            return attend()
        except BaseException as error:
            desk.close(error if isinstance(error, NetError) else JobStopped("the label party has failed"))
            raise

    pool = ThreadPoolExecutor(1)
    found = pool.submit(act)
    pool.shutdown(wait=False)
    return found
