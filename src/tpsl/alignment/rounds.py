"""Both sides of an alignment: the label party passes lists from party to party, and compares them in the end.

In round r every party blinds the list of the party r places before it in the circle, so that after the last round every
list was blinded by everyone, and equal keys are equal points. Whatever stops a party, all go on with what is on their
disks: `Agree` says how many batches of each list a party has, and no other batch crosses. Lists are numbered by rounds,
and parts of them are batches:

    List        answer: a batch of the list that the feature party blinds in round r
    Points      question: a batch of the list that the feature party has blinded in round r
    Outcome     answer: how many records are common, and the digest that all parties share
    Positions   answer: where some of the common records are in the feature party's list
    Finish      question: the outcome is kept
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch

from tpsl.alignment.group import POINT_BYTES, Bytes32, hashed, multiplied, require_points
from tpsl.alignment.keys import KeyTable
from tpsl.alignment.matching import Common, common_records, require_distinct
from tpsl.alignment.terms import MOST_RECORDS, POSITION, AlignmentTerms
from tpsl.alignment.working_folder import IDENTITY_BYTES, RowBytes, RowFile, State, WorkingFolder
from tpsl.data.aligned import UNKNOWN, Alignment
from tpsl.data.order import Rows
from tpsl.net.asking import NOTHING, Answers, Due, Label, Script
from tpsl.net.desk import Desk
from tpsl.net.failures import BadMessage, PeerRestarted
from tpsl.net.messages import LABEL_PARTY, Message, described
from tpsl.net.rounding import checked_tensor
from tpsl.run.observer import Watching

LIST, POINTS, OUTCOME, POSITIONS, FINISH = METHODS = ("List", "Points", "Outcome", "Positions", "Finish")

_DIGEST_DOMAIN = b"tpsl alignment: common records\0"
_IDENTITY = "alignment"
_IDENTITY_PATTERN = re.compile(rf"[0-9a-f]{{{2 * IDENTITY_BYTES}}}")


class AligningParty:
    """What both sides do: blind lists, send batches of them, and keep those that arrive."""

    def __init__(self, name: str, terms: AlignmentTerms, table: KeyTable, folder: Path, watching: Watching) -> None:
        self.name, self.terms, self.table, self.watching = name, terms, table, watching
        self.working = WorkingFolder(folder, terms)
        self.bytes_sent = self.bytes_received = 0

    @property
    def _state(self) -> State:
        return self.working.state

    @property
    def session(self) -> bytes:
        """The random name of the alignment, chosen by the label party: the context of every hash."""
        return self._state.identity if self.name == LABEL_PARTY else self._state.announced[LABEL_PARTY][0]

    @cached_property
    def order(self) -> Rows:
        """The order in which this party's own records are sent: a secret one, unless the terms want that of time."""
        if self.terms.config.order == "time" and self.name == self.terms.parties[0]:
            return np.arange(len(self.table))
        return self.working.order_of(self.name)

    def given(self, party: str, round_: int) -> RowFile:
        """Return the list that a party blinds in a round."""
        return self.working.list_of(self.terms.owner(party, round_), round_)

    def made(self, party: str, round_: int) -> RowFile:
        """Return the same list when the party has blinded it."""
        return self.working.list_of(self.terms.owner(party, round_), round_ + 1)

    def blinding(self, round_: int) -> Iterator[int]:
        """Blind the list that is this party's in a round, as far as that is not done; yield after each batch."""
        owner, made = self.terms.owner(self.name, round_), self.made(self.name, round_)
        source, order = self.table.digests, self.order
        if round_:
            source = self.points(self.given(self.name, round_))
            # In mode `size`, whoever gets the list back does not find its own records in it.
            order = self.working.order_of(owner) if self.terms.config.mode == "size" else np.arange(len(source))
        for part in made.missing:
            points = source[order[made.rows_of(part)]]
            if round_ == 0:
                points = hashed(points, self.session)
            made.append(multiplied(points, self._state.scalar).reshape(len(points), -1))
            self.watching.progress(made.done, made.rows, f"round {round_ + 1} of {self.terms.rounds}: computing")
            yield part

    def finish_blinding(self, round_: int, blinding: Iterator[int]) -> None:
        """Blind what is left of a list; no key may be in it twice."""
        for _ in blinding:
            pass
        if round_:
            owner = self.terms.owner(self.name, round_)
            require_distinct(self.points(self.made(self.name, round_)), described(owner))

    def points(self, rows: RowFile) -> Bytes32:
        """Return the rows of a list as [rows, keys, 32]."""
        return self._as_points(rows.read())

    def _batch(self, rows: RowFile, part: int) -> Message:
        return self._sent(np.array(rows.read()[rows.rows_of(part)]))

    def _sent(self, rows: RowBytes) -> Message:
        self.bytes_sent += rows.nbytes
        return Message(tensor=torch.from_numpy(rows))

    def _received(self, message: Message, what: str, rows: slice, width: int) -> RowBytes:
        found: RowBytes = checked_tensor(message, what, rows.stop - rows.start, width).numpy()
        self.bytes_received += found.nbytes
        return found

    def _keep(self, message: Message, into: RowFile, round_: int, sender: str) -> None:
        """Check the next batch of a list, and write it to the disk."""
        part = into.missing.start
        what = f"round {round_}, batch {part}: the points from {described(sender)}"
        rows = self._received(message, what, into.rows_of(part), self.terms.row_bytes)
        require_points(self._as_points(rows), described(sender))
        into.append(rows)
        note = f"round {round_ + 1} of {self.terms.rounds}: receiving from {sender}"
        self.watching.progress(into.done, into.rows, note)

    def _as_points(self, rows: RowBytes) -> Bytes32:
        return rows.reshape(len(rows), len(self.terms.keys), POINT_BYTES)

    def _found(self, digest: str, rows: Rows, matched: int | None, matched_keys: Bytes32 | None = None) -> Alignment:
        """Return what this party has learned: the digest that all share, and its rows of the common records."""
        mode, source = self.terms.config.mode, self.table.source
        return Alignment(self.name, mode, digest, self.terms.keys, source, rows, matched, matched_keys)


class AligningLabelParty(AligningParty):
    """The label party. In mode `label-only` what it sends does not depend on its own list but for its length."""

    def begin(self, said: Answers) -> tuple[Answers, Script]:
        """Hear how long each party's list is, and how many batches it has; return the answers and the script."""
        records, has = {LABEL_PARTY: len(self.table)}, dict[str, tuple[int, ...]]()
        for name, message in said.items():
            if len(message.numbers) != self.terms.rounds:
                raise BadMessage(f"{described(name)} announces {len(message.numbers)} numbers, not {self.terms.rounds}")
            records[name], *batches = message.numbers
            if not 0 < records[name] <= MOST_RECORDS:
                raise BadMessage(f"{described(name)} announces {records[name]:,} records")
            self.working.note_announced(name, _identity(message, name), (records[name],))
            self.watching.notice(f"{described(name)} has {records[name]:,} records to align")
            has[name] = (0, *batches)
        self.working.note_records(records)
        sizes = tuple(records[name] for name in self.terms.circle)
        answers = {}
        for name in said:
            arrived = (self.made(name, round_).missing.start for round_ in range(self.terms.rounds))
            answers[name] = Message(numbers=(*sizes, *arrived), fields=_named(self.session))
        return answers, self._script(has)

    def _script(self, has: Mapping[str, Sequence[int]]) -> Script:
        """Pass on and collect the lists of every round, then tell the outcome; `has`: each party's batches by round."""
        for round_ in range(self.terms.rounds):
            blinding = [party for party in self.terms.parties if self.made(party, round_).missing]
            given = {party: self.given(party, round_) for party in blinding} if round_ else {}
            for party, part in _in_turns({name: range(has[name][round_], rows.parts) for name, rows in given.items()}):
                question = yield Due(LIST, round_, part, one_of=(party,))
                question.answer_all(self._batch(given[party], part))
            own = self.blinding(round_)
            for party, part in _in_turns({party: self.made(party, round_).missing for party in blinding}):
                next(own, None)  # while the feature parties do the same
                made = self.made(party, round_)
                rows, widths = made.rows_of(part), {party: self.terms.row_bytes}
                question = yield Due(POINTS, round_, part, (party,), rows.stop - rows.start, widths)
                self._keep(question.asked[party], made, round_, party)
                question.answer_all()
            self.finish_blinding(round_, own)
            for party in self.terms.parties:
                require_distinct(self.points(self.made(party, round_)), described(party))
        yield from self._tell()

    def _tell(self) -> Script:
        """Tell the feature parties the common records: their number, and unless that is all, their positions.

        In mode `label-only` they are the records that all feature parties have, whether the label party knows them or
        not.
        """
        common, rounds = self._common, self.terms.rounds
        question = yield Due(OUTCOME, rounds)
        question.answer_all(Message(numbers=(len(common.keys),), secret=bytes.fromhex(self._digest)))
        if self.terms.config.mode != "size":
            for part, begin in enumerate(range(0, len(common.keys), self.terms.batch)):
                question = yield Due(POSITIONS, rounds, part)
                question.answer({party: self._sent(self._positions(party, begin)) for party in question.asked})
        question = yield Due(FINISH, rounds)
        self.working.settle()
        question.answer_all()

    def _positions(self, party: str, begin: int) -> RowBytes:
        """Return a batch of positions in a party's list, with the numbers of the keys if it may know them."""
        common, batch = self._common, slice(begin, begin + self.terms.batch)
        rows = np.zeros(len(common.keys[batch]), POSITION)
        rows["position"] = common.positions[batch, self.terms.parties.index(party)]
        if self.terms.config.mode == "both":
            rows["key"] = common.keys[batch]
        return rows[:, None].view(np.uint8)

    def outcome(self) -> Alignment:
        """Return which records this party knows. To be asked when nobody can measure how long it takes."""
        common, mode = self._common, self.terms.config.mode
        if mode == "size":
            return self._found(self._digest, np.empty(0, np.int64), len(common.keys))
        if mode == "label-only":
            reference = self._final(self.terms.parties[0])[common.positions[:, 0]]
            known = common_records([reference, self._final(LABEL_PARTY)])
            rows = np.full(len(reference), UNKNOWN, np.int64)
            rows[known.positions[:, 0]] = self.table.rows[self.order[known.positions[:, 1]]]
            return self._found(self._digest, rows, len(known.keys))
        places = self.order[common.positions[:, -1]]
        matched_keys = self.table.digests[places, common.keys]
        return self._found(self._digest, self.table.rows[places], len(places), matched_keys)

    @cached_property
    def _common(self) -> Common:
        """The common records of the feature parties and, unless only the label party may know, of the label party."""
        lists = [self._final(party) for party in self.terms.parties]
        if self.terms.config.mode != "label-only":
            lists.append(self._final(LABEL_PARTY))
        return common_records(lists)

    @cached_property
    def _digest(self) -> str:
        """SHA-256 of the common records' points and of a secret of the label party.

        Without the secret a feature party could try whether its records are among the points that it was sent.
        """
        points, positions = self._final(self.terms.parties[0]), self._common.positions[:, 0]
        digest = hashlib.sha256(_DIGEST_DOMAIN + self._state.salt)
        for start in range(0, len(positions), self.terms.batch):
            digest.update(points[positions[start : start + self.terms.batch]].tobytes())
        return digest.hexdigest()

    def _final(self, owner: str) -> Bytes32:
        return self.points(self.working.list_of(owner, self.terms.rounds))


class AligningFeatureParty(AligningParty):
    """A feature party. What it sends is a function of its own list, of its secrets and of the lists it is sent.

    It blinds one list for each other party, of the announced size, whatever restarts the label party claims: a batch
    that is on its disk it does not ask for again.
    """

    _arrived: tuple[int, ...] = ()
    """By round: how many batches the label party has of what this party sends."""

    def position(self) -> Message:
        """Return what this party says when all agree: how many records it has, and how many batches of each list."""
        rounds = range(1, self.terms.rounds)
        has = [self.given(self.name, round_).missing.start if self._state.records else 0 for round_ in rounds]
        return Message(numbers=(len(self.table), *has), fields=_named(self._state.identity))

    def begin(self, answer: Message) -> None:
        """Hear how long the lists of all parties are, and what the label party has of this one's."""
        circle, rounds = self.terms.circle, self.terms.rounds
        records, arrived = answer.numbers[: len(circle)], answer.numbers[len(circle) :]
        sizes = dict(zip(circle, records, strict=False))
        possible = len(arrived) == rounds and all(0 < count <= MOST_RECORDS for count in records)
        if not possible or sizes[self.name] != len(self.table):
            raise BadMessage(f"the label party announces {records} records; this party has {len(self.table)}")
        self.working.note_announced(LABEL_PARTY, _identity(answer, LABEL_PARTY), records)
        self.working.note_records(sizes)
        if any(arrived[round_] > self.made(self.name, round_).parts for round_ in range(rounds)):
            raise BadMessage(f"the label party says that it has {arrived} batches, more than there are")
        self._arrived = arrived
        for name, count in sizes.items():
            if name != self.name:
                self.watching.notice(f"{described(name)} has {count:,} records to align")

    def sending(self, round_: int) -> range:
        """Return the batches that the label party lacks of what this party makes in a round."""
        return range(self._arrived[round_], self.made(self.name, round_).parts)

    def lacking(self, round_: int) -> range:
        """Return the batches that this party lacks to make them."""
        return self.given(self.name, round_).missing if self.sending(round_) else range(0)

    def keep_batch(self, answer: Message, round_: int) -> None:
        """Keep the next batch of the list that is to be blinded in a round."""
        self._keep(answer, self.given(self.name, round_), round_, LABEL_PARTY)

    def batch(self, round_: int, part: int, blinding: Iterator[int]) -> Message:
        """Return a batch of what this party makes in a round, as soon as it is made."""
        made = self.made(self.name, round_)
        while part in made.missing:
            next(blinding)
        return self._batch(made, part)

    def told(self, answer: Message) -> None:
        """Hear how many records are common, and the digest that all parties share."""
        if len(answer.secret) != IDENTITY_BYTES or len(answer.numbers) != 1 or answer.numbers[0] > len(self.table):
            raise BadMessage(f"the label party announces {answer.numbers} common records of {len(self.table)}")
        self.common, self._digest = answer.numbers[0], answer.secret.hex()
        self._positions = np.empty(self.common if self.terms.config.mode != "size" else 0, POSITION)

    @property
    def parts_of_positions(self) -> int:
        """In how many batches the positions of common records come."""
        return -(-len(self._positions) // self.terms.batch)

    def keep_positions(self, answer: Message, part: int) -> None:
        """Keep a batch of the positions."""
        rows = slice(part * self.terms.batch, min((part + 1) * self.terms.batch, self.common))
        what = f"batch {part} of the positions from the label party"
        self._positions[rows] = self._received(answer, what, rows, POSITION.itemsize).view(POSITION).ravel()

    def outcome(self) -> Alignment:
        """Return which of this party's records are common, in the common order."""
        if self.terms.config.mode == "size":
            return self._found(self._digest, np.empty(0, np.int64), self.common)
        positions, keys = (self._positions[name].astype(np.int64) for name in ("position", "key"))
        if len(np.unique(positions)) != self.common or (positions >= len(self.table)).any():
            raise BadMessage("the label party names a position twice, or one that is not in this party's list")
        if (keys >= len(self.terms.keys)).any():
            raise BadMessage("the label party names a key that the alignment does not have")
        places = self.order[positions]
        if self.terms.config.mode == "label-only":
            return self._found(self._digest, self.table.rows[places], None)
        return self._found(self._digest, self.table.rows[places], self.common, self.table.digests[places, keys])


def attend_as_label(side: AligningLabelParty, desk: Desk) -> None:
    """Be the label party until every feature party has kept the outcome, through their restarts."""
    while True:
        answers, script = side.begin(desk.gather())
        side.watching.observer.gathered(desk.start(answers))
        try:
            desk.answer_all(script)
            return
        except PeerRestarted as restarted:
            side.watching.observer.event("restarted", peer=restarted.peer)


def attend_as_features(sides: Sequence[AligningFeatureParty], label: Label) -> None:
    """Be feature parties until each has stored its alignment and the label party knows it, through its restarts.

    Several parties in one process ask in turns, in the order in which the label party expects it.
    """
    while True:
        try:
            answers = label.agree({side.name: side.position() for side in sides})
            for side in sides:
                side.begin(answers[side.name])
            _Asking(sides, label).finish()
            return
        except PeerRestarted as restarted:
            for side in sides:
                side.watching.observer.event("restarted", peer=restarted.peer)


class _Asking:
    """What feature parties ask in a session."""

    def __init__(self, sides: Sequence[AligningFeatureParty], label: Label) -> None:
        self._sides, self._label = {side.name: side for side in sides}, label
        self._rounds, self._observer = sides[0].terms.rounds, sides[0].watching.observer

    def finish(self) -> None:
        for round_ in range(self._rounds):
            self._round(round_)
        sides, everybody = self._sides, dict.fromkeys(self._sides, NOTHING)
        answers = self._ask(OUTCOME, self._rounds, 0, everybody)
        for name, side in sides.items():
            side.told(answers[name])
        for part in range(max(side.parts_of_positions for side in sides.values())):
            answers = self._ask(POSITIONS, self._rounds, part, everybody)
            for name, side in sides.items():
                side.keep_positions(answers[name], part)
        for side in sides.values():
            side.outcome().save(side.working.folder)
            side.working.settle()
        self._ask(FINISH, self._rounds, 0, everybody)

    def _round(self, round_: int) -> None:
        sides = self._sides
        if round_:
            for name, part in _in_turns({name: side.lacking(round_) for name, side in sides.items()}):
                answers = self._ask(LIST, round_, part, {name: NOTHING})
                sides[name].keep_batch(answers[name], round_)
        sending = {name: side.sending(round_) for name, side in sides.items()}
        own = {name: sides[name].blinding(round_) for name, parts in sending.items() if parts}
        for name in own:
            if round_ and sides[name].terms.config.mode == "size":  # else a key that is in it twice would mark a record
                sides[name].finish_blinding(round_, own[name])
        awaited: Callable[[], Answers] = dict
        for name, part in _in_turns(sending):
            message = sides[name].batch(round_, part, own[name])
            awaited = self._label.ask_ahead(POINTS, round_, part, {name: message})
        self._waited(awaited)
        for name, blinding in own.items():
            sides[name].finish_blinding(round_, blinding)

    def _ask(self, method: str, round_: int, part: int, said: Answers) -> Answers:
        return self._waited(partial(self._label.ask, method, round_, part, said))

    def _waited(self, answers: Callable[[], Answers]) -> Answers:
        self._observer.waiting_for(LABEL_PARTY)
        found = answers()
        self._observer.waiting_for(None)
        return found


def _in_turns(parts: Mapping[str, range]) -> Iterator[tuple[str, int]]:
    """Yield each party's batches, first those with low numbers: of {A: 1 to 3, B: 2} A 1, A 2, B 2, A 3."""
    for part in range(max((each.stop for each in parts.values()), default=0)):
        yield from ((party, part) for party, each in parts.items() if part in each)


def _named(identity: bytes) -> tuple[tuple[str, str], ...]:
    return ((_IDENTITY, identity.hex()),)


def _identity(message: Message, sender: str) -> bytes:
    """Return the random name in what a party says when all agree."""
    text = dict(message.fields).get(_IDENTITY, "")
    if not _IDENTITY_PATTERN.fullmatch(text):
        raise BadMessage(f"{described(sender)} announces {text!r} as the name of its alignment")
    return bytes.fromhex(text)
