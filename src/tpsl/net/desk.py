"""What the label party has been asked: it puts the questions of all feature parties together and keeps its answers.

The rules of the protocol, without a socket (`docs/state-machines.md` draws them):

* Feature parties say `Hello` and `Agree`. When all of them have agreed, a session begins, and each gets a name for it
  that nobody can guess. A party that agrees anew ends the session of all.
* In a session a party numbers its questions from 0. It may have a few of them under way, and the label party takes them
  in the order of their numbers.
* The label party knows which question is due next. When every feature party has asked it, all get their answers, and
  the last few answers are kept. The same question again gets the same bytes; another question under a number that was
  used, or a question that is not due, is a BadMessage and ends the job.

The thread of the network calls `hello`, `agree`, `ask`, `left`, `delivered` and `stopped_by`; the thread that trains
calls the rest. The network's answers a quick question itself once its last share is here, so nothing is handed over.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NoReturn

from tpsl.net.agreement import Agreement, Introduction
from tpsl.net.asking import Due, Question, Script
from tpsl.net.codec import decode, encode, session_of, tensor_bytes
from tpsl.net.connection import Terms
from tpsl.net.failures import BadMessage, JobStopped, NetError, NotYet, PeerMissing, PeerRestarted, Refused
from tpsl.net.messages import LABEL_PARTY, Limits, Message, Traffic, described

_SESSION_BYTES = 16
_REMEMBERED = 64
"""Of what parties leave behind: retired processes, and strangers that were told of."""
_INTRODUCTIONS = 4
"""Handshakes of a party that are under way at once: a call that was late in the network does not undo the next one."""
_QUICK = 0.25
"""Seconds for which the thread of the network may compute an answer; it brings nothing else meanwhile."""
_ENDING = "the label party is ending the job"
_CODE = re.compile(r"[a-z-]{1,32}")

Later = Callable[[Callable[[], None]], object]
"""Runs something when what was answered has left."""


@dataclass
class Ticket:
    """A question that was asked, and its answer once there is one."""

    party: str
    method: str
    message: Message
    content: int = 0
    """A hash of the question's bytes."""
    answer: Future[bytes] = field(default_factory=Future)
    waited: asyncio.Future[bytes] | None = None
    """The same, for the calls that wait for it."""
    is_delivered: bool = False

    @property
    def is_given(self) -> bool:
        """Whether there is an answer, and no error."""
        return self.answer.done() and self.answer.exception() is None

    def give(self, answer: bytes) -> None:
        """Answer it, unless it is answered."""
        with suppress(InvalidStateError):  # its session has ended meanwhile
            self.answer.set_result(answer)

    def fail(self, error: Exception) -> None:
        """Answer it with an error, unless it is answered."""
        with suppress(InvalidStateError):
            self.answer.set_exception(error)


class _Caller:
    """One feature party."""

    def __init__(self, name: str) -> None:
        self.name, self.described, self.traffic = name, described(name), Traffic()
        self.introductions: deque[Introduction] = deque(maxlen=_INTRODUCTIONS)
        self.agreed: Ticket | None = None
        """Its `Agree`, until another party agrees anew; `proof` is what it gets for it."""
        self.process, self.attempt, self.proof = b"", 0, b""
        """Who has agreed last, and for which time."""
        self.retired: deque[bytes] = deque(maxlen=_REMEMBERED)
        """Processes in whose place another one is."""
        self.heard_at, self.is_lost = time.monotonic(), False
        self.absent_because, self.lost_because, self.refused_because = "not connected yet", "", ""
        self.begin()

    def begin(self) -> None:
        """Begin a session."""
        self.tickets: dict[int, Ticket] = {}
        self.next = 0
        """The number of the question that the label party takes next."""

    @property
    def was_here(self) -> bool:
        """Whether the party has ever agreed."""
        return bool(self.process)

    @property
    def due(self) -> Ticket | None:
        """The question that the label party takes next, if it was asked."""
        return self.tickets.get(self.next)


@dataclass
class _Going:
    """A script, and where it stands. One thread at a time, the one that made it busy, has it go on."""

    script: Script
    due: Due | None = None
    """What is due next; None at the end."""
    error: BaseException | None = None
    is_busy: bool = True
    was_quick: dict[str, bool] = field(default_factory=dict)
    """Of each method: whether the last answer was. Nobody knows how long a first one takes."""

    @property
    def is_for_network(self) -> bool:
        """Whether the thread of the network may answer what is due."""
        due = self.due
        return not self.is_busy and due is not None and due.is_quick and self.was_quick.get(due.method, False)


class Desk:
    """Where the feature parties of a job ask, and the label party finds what is due."""

    def __init__(self, parties: Sequence[str], agreement: Agreement, terms: Terms) -> None:
        self.terms, self._agreement = terms, agreement
        self._look_every = min(terms.patience.silence / 2, 1.0)
        self._callers = {party: _Caller(party) for party in parties}
        self._sessions: dict[bytes, str] = {}
        """Of each session's name: the party. Empty once a party has agreed anew."""
        self._present: tuple[str, ...] = ()
        self._restarted: str | None = None
        self._failure: NetError | None = None
        self._strangers: set[str] = set()
        self._told: set[str] = set()
        """Parties that know why the job has ended."""
        self._going: _Going | None = None
        self.is_ending = False
        self.waiting_for: Callable[[str | None], None] = lambda party: None
        """Told whose question is awaited; None: that of nobody."""
        self._changed = threading.Condition()

    # The thread of the network.

    def hello(self, certified: str | None, data: bytes) -> bytes:
        """Compare what a feature party holds with the agreement; return the label party's fields and nonce."""
        with self._met(certified, data) as (caller, message):
            introduction = Introduction(LABEL_PARTY, caller.name, self._agreement.with_party(caller.name))
            introduction.compare(message)  # first: a party of the next job does not hear why this one has ended
            self._require_open(caller)
            caller.introductions.append(introduction)
            return encode(introduction.fields(), "float32")

    def agree(self, certified: str | None, data: bytes) -> Ticket:
        """Note that a feature party is ready to begin anew; the answer comes when all are."""
        with self._met(certified, data) as (caller, message):
            self._require_open(caller)
            if message.session in caller.retired:
                raise Refused(f"another process of {caller.described} has taken its place", "taken-over")
            is_same_process = message.session == caller.process
            if is_same_process and message.number == caller.attempt and caller.agreed is not None:
                return caller.agreed
            is_late = is_same_process and message.number <= caller.attempt
            if not caller.introductions or is_late or message.pending or not message.session:
                raise PeerRestarted(LABEL_PARTY)
            return self._arrived(caller, message)

    def ask(self, certified: str | None, method: str, data: bytes, later: Later = lambda act: act()) -> Ticket:
        """Take a question of a session. The same one again gets the same answer, which may be there on return."""
        terms, known = self.terms, self._callers.get(certified or "")
        try:
            sender = known.described if known is not None else "a feature party"
            message = decode(data, terms.limits, terms.dtype, sender=sender, device=terms.device)
        except BadMessage as error:
            with self._changed:
                party = self._sessions.get(session_of(data)) if certified is None else certified
                if party in self._present:
                    self._blame(self._callers[party], error)
            raise
        with self._changed:
            party = self._sessions.get(message.session)
            if party is None or (certified is not None and certified != party):
                raise PeerRestarted(LABEL_PARTY)
            caller = self._callers[party]
            self._require_going_on(caller)
            ticket = self._ticket(caller, method, message, data)
        self._answer_here(later)
        return ticket

    def stopped_by(self, certified: str | None, data: bytes) -> None:
        """End the job because a feature party says so."""
        message = decode(data, Limits(), "float32", sender=described(certified) if certified else "a client")
        with self._changed:
            caller = self._caller(certified, message.text)
            code, reason = message.fields[0] if message.fields else ("", "it does not say why")
            if message.session and message.session == caller.process:
                self._told.add(caller.name)
                sentence = f"{caller.described} stopped the job: {reason}"
                self._fail(JobStopped(sentence, code if _CODE.fullmatch(code) else ""))

    def delivered(self, ticket: Ticket) -> None:
        """Note that an answer, or an error, was written to the connection on which it was asked for."""
        with self._changed:
            ticket.is_delivered = True
            if self._failure is not None and not ticket.is_given:
                self._told.add(ticket.party)
            if self.is_ending:
                self._changed.notify_all()

    def left(self, certified: str | None) -> None:
        """Note that a call has ended before it was answered: the connection is lost."""
        with self._changed:
            caller = self._callers.get(certified or "")
            if caller is not None and not self.is_ending:
                self._lose(caller, "the connection ended")

    def refusal(self, party: str, error: NetError) -> NetError:
        """Note why somebody is not let in, once for each reason and stranger; return what that one is told."""
        with self._changed:
            if self.is_ending and isinstance(error, Refused) and error.code == "refused":
                error = NotYet(_ENDING)
            caller = self._callers.get(party)
            sentence = f"{'waiting' if isinstance(error, NotYet) else 'refused'}: {error}"
            if caller is not None:
                if not isinstance(error, NotYet):
                    caller.absent_because = sentence
                is_news, caller.refused_because = sentence != caller.refused_because, sentence
            else:
                is_news = party not in self._strangers and len(self._strangers) < _REMEMBERED
                self._strangers.update({party} if is_news else ())
            if is_news:
                self.terms.watch(party, sentence)
        return error

    # The thread that trains.

    def gather(self, without: Collection[str] = ()) -> dict[str, Message]:
        """Wait until every feature party but those in `without` has agreed; return what each said."""
        until = time.monotonic() + self.terms.patience.wait
        told: set[str] = set()
        with self._changed:
            while True:
                if self._failure is not None:
                    raise self._failure
                missing = [c for name, c in self._callers.items() if c.agreed is None and name not in without]
                if not missing:
                    break
                for caller in missing:
                    if caller.name not in told:
                        told.add(caller.name)
                        self.terms.watch(caller.name, f"waiting: {caller.absent_because}")
                left = until - time.monotonic()
                if left <= 0:
                    names, why = " and ".join(c.described for c in missing), missing[0].absent_because
                    raise PeerMissing(f"{names} did not come within {self.terms.patience.wait:g} s ({why})")
                self._changed.wait(left)
            self._restarted = None
            said = {name: caller.agreed.message for name, caller in self._callers.items() if caller.agreed is not None}
            self._present = tuple(said)
            return said

    def start(self, answers: Mapping[str, Message]) -> dict[str, Traffic]:
        """Begin a session with all that were gathered, each of which gets its answer; return their traffic."""
        with self._changed:
            if self._restarted is None:
                for name in self._present:
                    caller, session = self._callers[name], secrets.token_bytes(_SESSION_BYTES)
                    self._sessions[session] = name
                    caller.begin()
                    answer = replace(answers[name], session=session, secret=caller.proof)
                    if caller.agreed is not None:
                        caller.agreed.give(encode(answer, "float32"))
            return {name: self._callers[name].traffic for name in self._present}

    def take(self, due: Due) -> Question:
        """Wait until every feature party has asked what is due, or one of those that may; return the question."""
        with self._changed:
            while (question := self._asked(due)) is None:
                self._wait_for(due)
            return question

    def answer_all(self, script: Script) -> None:
        """Answer what is due, question after question, until the script ends."""
        going = self._going = _Going(script)
        self._go_on(going, None)
        try:
            while True:
                with self._changed:
                    while going.is_busy:  # not notified where the thread of the network goes on with what is due next
                        self._changed.wait(self._look_every)
                    if going.error is not None:
                        raise going.error
                    if going.due is None:
                        return
                    if (question := self._asked(going.due)) is None:
                        self._wait_for(going.due)
                        continue
                    going.is_busy = True
                self._go_on(going, question)
        finally:
            self._going = None

    def close(self, error: NetError | None = None, grace: float = 0.0) -> None:
        """End the job: wait up to `grace` seconds until all that was answered is delivered.

        If there is a reason every party is told. One that is not lost, but busy with itself, may take as long as one
        that is silent before it is lost.
        """
        with self._changed:
            self.is_ending = True
            if error is not None:
                self._fail(error)
                grace = max(grace, self.terms.patience.silence)
            until = time.monotonic() + grace
            while self._waits_for_some(error) and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            self._failure = self._failure or NotYet(_ENDING)
            self._changed.notify_all()
            self._give_up(self._failure)

    # Either thread.

    def _answer_here(self, later: Later) -> None:
        """Answer what is due in this thread, if it is quick and asked."""
        with self._changed:
            going = self._going
            if going is None or not going.is_for_network or going.due is None:
                return
            try:
                if (question := self._asked(going.due)) is None:
                    return
                going.is_busy = True
            except (NetError, PeerRestarted):  # the thread that trains finds it, too
                self._changed.notify_all()
                return
        self._go_on(going, question, later)

    def _go_on(self, going: _Going, question: Question | None, later: Later | None = None) -> None:
        """Have the script answer, and note what is due next; `later` is given in the thread of the network."""
        begun, method = time.monotonic(), going.due.method if going.due is not None else ""
        due: Due | None = None
        try:
            due = going.script.send(question)  # type: ignore[arg-type]  # None has it go on
            if due is None and later is not None:
                later(partial(self._go_on, going, None, later))
                return
            while due is None:
                due = next(going.script)
        except StopIteration:
            pass
        except BaseException as error:
            going.error = error
        with self._changed:
            going.was_quick[method] = time.monotonic() - begun < _QUICK
            going.due, going.is_busy = due, False
            if later is None or not going.is_for_network:
                self._changed.notify_all()
        if later is not None:
            self._answer_here(later)

    @contextmanager
    def _met(self, certified: str | None, data: bytes) -> Iterator[tuple[_Caller, Message]]:
        """Give what comes before there is a session, and from whom, with the lock held; note why it is refused."""
        who = certified or "a client"
        try:
            message = decode(data, Limits(), "float32", sender=described(who) if certified else who)
            who = certified or message.text
            with self._changed:
                yield self._caller(certified, message.text), message
        except NetError as error:
            raise self.refusal(who, error) from None

    # With the lock held.

    def _caller(self, certified: str | None, said: str) -> _Caller:
        if certified is not None and said != certified:
            raise Refused(f"the certificate is that of {certified!r}, not of {said!r}")
        if said not in self._callers:
            raise Refused(f"{said!r} is not a feature party of this job; they are {', '.join(self._callers)}")
        return self._callers[said]

    def _require_open(self, caller: _Caller) -> None:
        self._require_going_on(caller)
        if self.is_ending:
            raise NotYet(_ENDING)

    def _require_going_on(self, caller: _Caller) -> None:
        """Note that a party was heard; raise if the job has ended."""
        caller.heard_at = time.monotonic()
        if caller.is_lost:
            caller.is_lost = False
            self.terms.watch(caller.name, "connected again")
        if self._failure is not None:
            self._told.add(caller.name)
            self._changed.notify_all()
            raise self._as_told(self._failure)

    def _arrived(self, caller: _Caller, message: Message) -> Ticket:
        """Take the place of what this party was, if it has the right records; all begin anew."""
        mine = (each for each in caller.introductions if each.is_proven_by(message.secret))
        introduction = next(mine, caller.introductions[-1])
        introduction.require_proof(message.secret)
        news = "connected again" if caller.was_here else "connected"
        if caller.process not in (b"", message.session):
            caller.retired.append(caller.process)
        caller.process, caller.attempt, caller.refused_because = message.session, message.number, ""
        caller.introductions.clear()
        self._end_session(caller.name)
        caller.agreed, caller.proof = Ticket(caller.name, "Agree", message), introduction.proof()
        caller.is_lost = False
        self.terms.watch(caller.name, news)
        return caller.agreed

    def _end_session(self, because_of: str) -> None:
        """End the session, because a party has agreed anew: the others have to do so, too."""
        if self._sessions:
            self._sessions.clear()
            for caller in self._callers.values():
                for ticket in caller.tickets.values():
                    ticket.fail(PeerRestarted(because_of))
                caller.agreed = None
        self._restarted = because_of
        self._changed.notify_all()

    def _ticket(self, caller: _Caller, method: str, message: Message, data: bytes) -> Ticket:
        found, number = caller.tickets.get(message.number), message.number
        if found is None and number < caller.next:
            raise PeerRestarted(LABEL_PARTY)  # a call that has lain in the network: nobody waits for its answer
        if found is None:
            if message.pending or number >= caller.next + self.terms.limits.calls:
                self._blame(caller, BadMessage(f"{caller.described} asked question {number} out of turn"))
            found = caller.tickets[number] = Ticket(caller.name, method, message, hash(data))
            caller.traffic.bytes_received += tensor_bytes(message, self.terms.dtype)
            if self._going is None or not self._going.is_for_network:
                self._changed.notify_all()
        elif found.method != method or (found.content != hash(data) and not message.pending):
            what = f"{caller.described} asked another question under the number {number}"
            self._blame(caller, BadMessage(what))
        return found

    def _asked(self, due: Due) -> Question | None:
        """Return the question that is due, when all that are present, or one of several, have asked it.

        Raise if it will not be asked, or something else was.
        """
        if self._failure is not None:
            raise self._failure
        if self._restarted is not None:
            raise PeerRestarted(self._restarted)
        callers = [self._callers[name] for name in (due.one_of or self._present)]
        asked = [caller for caller in callers if caller.next in caller.tickets]
        if not asked or (len(asked) < len(callers) and not due.one_of):
            return None
        tickets: dict[str, Ticket] = {}
        for caller in asked[:1] if due.one_of else asked:
            ticket = tickets[caller.name] = caller.tickets[caller.next]
            sent, expected = (ticket.method, ticket.message.step, ticket.message.part), (due.method, due.step, due.part)
            try:
                if sent != expected:
                    what = "{} of step {}, part {}"
                    sentence = f"sent {what.format(*sent)}; expected was {what.format(*expected)}"
                    raise BadMessage(f"{caller.described} {sentence}")
                due.require(ticket.message, caller.name)
            except BadMessage as error:
                raise self._fail(error) from None
            caller.next += 1
            caller.tickets.pop(caller.next - 1 - self.terms.limits.calls, None)
        said = {name: ticket.message for name, ticket in tickets.items()}
        for ticket in tickets.values():
            ticket.message = Message()  # only its answer is kept
        self.waiting_for(None)

        def give(answers: Mapping[str, Message]) -> None:
            for name, ticket in tickets.items():
                self._callers[name].traffic.bytes_sent += tensor_bytes(answers[name], self.terms.dtype)
                ticket.give(encode(answers[name], self.terms.dtype))

        return Question(due, said, give)

    def _wait_for(self, due: Due) -> None:
        """Wait a moment for those that have not asked what is due; raise if one has been away for too long."""
        silence, wait, now = self.terms.patience.silence, self.terms.patience.wait, time.monotonic()
        missing = [c for name in (due.one_of or self._present) if (c := self._callers[name]).due is None]
        for caller in missing:
            away = now - caller.heard_at
            if away >= silence:
                self._lose(caller, f"not heard for {silence:g} s")
            if away >= max(wait, silence):
                lost = f"{caller.described} was lost ({caller.lost_because})"
                raise self._fail(PeerMissing(f"{lost} and did not come back within {wait:g} s"))
        self.waiting_for(missing[0].name)
        at_most = self._look_every
        self._changed.wait(at_most)
        slept = time.monotonic() - now
        if slept > at_most + silence / 2:  # this very process was stopped, and could hear nobody
            for caller in missing:
                caller.heard_at += slept

    def _lose(self, caller: _Caller, why: str) -> None:
        if not caller.is_lost and caller.was_here:
            caller.is_lost, caller.lost_because = True, why
            self.terms.watch(caller.name, f"lost: {why}; waiting up to {self.terms.patience.wait:g} s for its return")

    def _as_told(self, error: NetError) -> NetError:
        """Return what the feature parties are told of an error."""
        return error if isinstance(error, NotYet) else JobStopped(str(error), error.code)

    def _fail(self, error: NetError) -> NetError:
        """End the job for all parties; return the error."""
        if self._failure is None:
            self._failure = error
            self._give_up(self._as_told(error))
        self._changed.notify_all()
        return error

    def _blame(self, caller: _Caller, error: BadMessage) -> NoReturn:
        """End the job because of a call of this party, which is told so by the answer."""
        self._told.add(caller.name)
        raise self._fail(error)

    def _give_up(self, error: Exception) -> None:
        """Answer all that the parties have asked with an error."""
        for caller in self._callers.values():
            for ticket in (*caller.tickets.values(), caller.agreed):
                if ticket is not None:
                    ticket.fail(error)

    def _waits_for_some(self, error: NetError | None) -> bool:
        """Whether a party that is present has not been told why the job ends, or has not got an answer."""
        present = [self._callers[name] for name in self._present]
        if error is not None:
            return any(caller.name not in self._told and not caller.is_lost for caller in present)
        return any(ticket.is_given and not ticket.is_delivered for c in present for ticket in c.tickets.values())
