"""One honest side against a peer that does what no honest peer does: refused in a sentence that names it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.at_desk import LIMIT, AtDesk, attending

from tpsl.alignment import terms as terms_module
from tpsl.alignment.group import PRIME, Bytes32, fresh_scalar, hashed, multiplied
from tpsl.alignment.rounds import (
    FINISH,
    LIST,
    OUTCOME,
    POINTS,
    POSITIONS,
    AligningFeatureParty,
    AligningLabelParty,
    attend_as_features,
    attend_as_label,
)
from tpsl.alignment.working_folder import WorkingFolder
from tpsl.data.aligned import Alignment
from tpsl.net.asking import NOTHING, Answers
from tpsl.net.connection import Patience, Terms
from tpsl.net.desk import Desk
from tpsl.net.failures import BadMessage, JobStopped, NetError
from tpsl.net.messages import Message
from tpsl.run.observer import UNWATCHED

Asked = tuple[str, int, int, Message]
Key = tuple[str, int, int]
NAME = bytes(range(32))
LABEL, FEATURE = "label", "party0"
RECORDS = [{"id": str(number)} for number in range(5)]
"""Of the honest side."""


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terms_module, "POINTS_AT_ONCE", 2)


def points(count: int, scalar: bytes | None = None) -> Bytes32:
    digests = np.arange(32 * count, dtype=np.uint32).astype(np.uint8).reshape(-1, 32)
    return multiplied(hashed(digests, NAME), scalar or fresh_scalar())


def u(number: int) -> Bytes32:
    return np.frombuffer(number.to_bytes(32, "little"), np.uint8)


def batch(rows: Bytes32) -> Message:
    return Message(tensor=torch.from_numpy(np.array(rows)))


def announced(*numbers: int, name: str = NAME.hex()) -> Message:
    return Message(numbers=numbers, fields=(("alignment", name),))


def against_label(path: Path, terms: Any, table: Any, said: Message, *asked: Asked) -> AligningLabelParty:
    """Be a feature party that says and asks this, whatever it hears, and is killed then."""
    side = AligningLabelParty(LABEL, terms, table, path, UNWATCHED)
    side.working.begin(table)
    desk = Desk((FEATURE,), terms.agreement(), Terms(terms.limits(), "uint8", Patience(silence=1)))
    label, party = attending(desk, lambda: attend_as_label(side, desk)), AtDesk(desk, FEATURE, terms.agreement())
    with suppress(NetError):
        party.agree({FEATURE: said})
        for method, round_, part, message in asked:
            party.ask(method, round_, part, {FEATURE: message})
        desk.close(JobStopped("party0 was killed"))
    label.result(LIMIT)
    return side


class Killed(Exception):
    """The false label party has answered all that it answers."""


class FalseLabel:
    """A label party that answers this."""

    def __init__(self, agreed: Message, answers: Mapping[Key, Message]) -> None:
        self._agreed, self._answers = agreed, answers
        self.asked: list[Key] = []

    def agree(self, said: Answers) -> Answers:
        return {FEATURE: self._agreed}

    def ask(self, method: str, step: int, part: int, said: Answers) -> Answers:
        self.asked.append((method, step, part))
        if (method, step, part) not in self._answers:
            raise Killed
        return {FEATURE: self._answers[method, step, part]}

    def ask_ahead(self, method: str, step: int, part: int, said: Answers) -> Callable[[], Answers]:
        answers = self.ask(method, step, part, said)
        return lambda: answers


def against_feature(path: Path, terms: Any, table: Any, label: FalseLabel) -> Alignment:
    side = AligningFeatureParty(FEATURE, terms, table, path, UNWATCHED)
    side.working.begin(table)
    attend_as_features([side], label)
    return Alignment.load(path)


GOOD = points(4)
GREETING = announced(4, 0)
LOW = np.stack([GOOD[0], u(1)])


def sent(rows: Bytes32, round_: int = 0, part: int = 0) -> Asked:
    return POINTS, round_, part, batch(rows)


def list_sent(rows: Bytes32, round_: int) -> list[Asked]:
    return [sent(rows[at : at + 2], round_, at // 2) for at in range(0, len(rows), 2)]


LIST_TAKEN = [(LIST, 1, part, NOTHING) for part in range(3)]
EXPECTED = r"expected was Points of step 0, part"
LISTS: dict[str, tuple[Message, Sequence[Asked], str]] = {
    "no record": (announced(0, 0), [], "announces 0 records"),
    "too many records": (announced(1 << 32, 0), [], "announces 4,294,967,296 records"),
    "a number too many": (announced(4, 0, 0), [], "announces 3 numbers"),
    "no number": (announced(), [], "announces 0 numbers"),
    "no name": (announced(4, 0, name="00"), [], "announces '00' as the name"),
    "low order": (GREETING, [sent(LOW)], "sent a point of low order"),
    "zero": (GREETING, [sent(np.stack([u(0), GOOD[0]]))], "sent a point of low order"),
    "not canonical": (GREETING, [sent(np.stack([GOOD[0], u(PRIME + 2)]))], "not in canonical form"),
    "sign bit": (GREETING, [sent(GOOD[:2] | np.array([0] * 31 + [0x80], np.uint8))], "not in canonical form"),
    "fewer than announced": (GREETING, [sent(GOOD[:1])], r"shape \(1, 32\), not \(2, 32\)"),
    "too short": (GREETING, [sent(GOOD[:2, :31])], r"shape \(2, 31\), not \(2, 32\)"),
    "no points": (GREETING, [(POINTS, 0, 0, NOTHING)], "are missing"),
    "a batch left out": (GREETING, [sent(GOOD[:2]), sent(GOOD[2:], part=2)], f"part 2; {EXPECTED} 1"),
    "a batch twice": (GREETING, [sent(GOOD[:2]), sent(GOOD[:2])], f"part 0; {EXPECTED} 1"),
    "another round": (GREETING, [sent(GOOD[:2], 1)], f"Points of step 1, part 0; {EXPECTED} 0"),
    "a batch too many": (
        GREETING,
        [*list_sent(GOOD, 0), sent(GOOD[:2], part=2)],
        "expected was List of step 1, part 0",
    ),
    "a list that is not due": (GREETING, [(LIST, 0, 0, NOTHING)], f"sent List of step 0, part 0; {EXPECTED} 0"),
    "a point twice": (GREETING, list_sent(GOOD[[0, 1, 2, 0]], 0), "names a key twice"),
    "the end too soon": (GREETING, [(FINISH, 2, 0, NOTHING)], f"sent Finish of step 2, part 0; {EXPECTED} 0"),
    "the outcome too soon": (GREETING, [(OUTCOME, 2, 0, NOTHING)], f"sent Outcome of step 2, part 0; {EXPECTED} 0"),
    "an unknown question": (GREETING, [("Step", 0, 0, batch(GOOD[:2]))], f"sent Step of step 0, part 0; {EXPECTED} 0"),
    "too many rows": (GREETING, [sent(GOOD[:3])], "sent 3 rows of 32 numbers, more than 2 rows"),
}


@pytest.mark.parametrize("case", LISTS)
def test_the_label_party_refuses(tmp_path: Path, make_terms: Any, make_table: Any, case: str) -> None:
    said, asked, sentence = LISTS[case]
    with pytest.raises(BadMessage, match=f"party0.*{sentence}"):
        against_label(tmp_path, make_terms(), make_table(RECORDS), said, *asked)


def test_the_label_party_refuses_points_that_become_one(tmp_path: Path, make_terms: Any, make_table: Any) -> None:
    """u and 1/u differ by a point of order 2: after a multiplication they are the same."""
    first = int.from_bytes(GOOD[0].tobytes(), "little")
    rows = np.stack([GOOD[0], u(pow(first, -1, PRIME)), GOOD[1], GOOD[2]])
    asked = [*list_sent(rows, 0), *LIST_TAKEN, *list_sent(points(5), 1)]
    with pytest.raises(BadMessage, match="the list of feature party 'party0' names a key twice"):
        against_label(tmp_path, make_terms(), make_table(RECORDS), GREETING, *asked)


def test_the_label_party_refuses_two_equal_answers(tmp_path: Path, make_terms: Any, make_table: Any) -> None:
    answer = list_sent(points(5)[[0, 1, 2, 3, 3]], 1)
    for asked in ([*list_sent(GOOD, 0), *LIST_TAKEN, *answer], []):  # also after a restart, when it has all of them
        with pytest.raises(BadMessage, match="the list of feature party 'party0' names a key twice"):
            against_label(tmp_path, make_terms(), make_table(RECORDS), GREETING, *asked)


SIZES = announced(4, 5, 0, 0)
TOLD = Message(numbers=(2,), secret=NAME)
HONEST: dict[Key, Message] = {
    **{(POINTS, 0, part): NOTHING for part in range(3)},
    **{(LIST, 1, part): batch(GOOD[2 * part : 2 * part + 2]) for part in range(2)},
    **{(POINTS, 1, part): NOTHING for part in range(2)},
    (OUTCOME, 2, 0): TOLD,
    (FINISH, 2, 0): NOTHING,
}


def positions(*pairs: tuple[int, int]) -> dict[Key, Message]:
    rows = np.array([[*position.to_bytes(4, "little"), key] for position, key in pairs], np.uint8)
    return {(POSITIONS, 2, 0): batch(rows)}


ANSWERS: dict[str, tuple[Message, Mapping[Key, Message], str]] = {
    "other sizes": (announced(4, 6, 0, 0), {}, r"announces \(4, 6\) records; this party has 5"),
    "sizes of more parties": (announced(4, 5, 5, 0, 0), {}, "announces"),
    "no sizes": (announced(), {}, "announces"),
    "a party without records": (announced(0, 5, 0, 0), {}, r"announces \(0, 5\) records"),
    "too many records": (announced(1 << 32, 5, 0, 0), {}, "announces"),
    "no name": (announced(4, 5, 0, 0, name=""), {}, "announces '' as the name"),
    "more batches than there are": (announced(4, 5, 4, 0), {}, r"has \(4, 0\) batches, more than there are"),
    "low order": (SIZES, {(LIST, 1, 0): batch(LOW)}, "sent a point of low order"),
    "not canonical": (SIZES, {(LIST, 1, 1): batch(np.stack([GOOD[0], u(2**255)]))}, "not in canonical form"),
    "no points": (SIZES, {(LIST, 1, 0): NOTHING}, "are missing"),
    "more points": (SIZES, {(LIST, 1, 1): batch(GOOD[:3])}, r"shape \(3, 32\), not \(2, 32\)"),
    "a point twice": (SIZES, {(LIST, 1, 1): batch(GOOD[[2, 0]])}, "names a key twice"),
    "more common records than there are": (
        SIZES,
        {(OUTCOME, 2, 0): Message(numbers=(6,), secret=NAME)},
        "common records of 5",
    ),
    "no digest": (SIZES, {(OUTCOME, 2, 0): Message(numbers=(2,))}, "common records of 5"),
    "a position twice": (SIZES, positions((1, 0), (1, 0)), "names a position twice"),
    "a position that is not there": (SIZES, positions((1, 0), (5, 0)), "not in this party's list"),
    "a key that is not there": (SIZES, positions((1, 0), (2, 1)), "a key that the alignment does not have"),
    "fewer positions": (SIZES, positions((1, 0)), r"shape \(1, 5\), not \(2, 5\)"),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_a_feature_party_refuses(tmp_path: Path, make_terms: Any, make_table: Any, case: str) -> None:
    said, answers, sentence = ANSWERS[case]
    label = FalseLabel(said, {**HONEST, **answers})
    with pytest.raises(BadMessage, match=sentence) as refused:
        against_feature(tmp_path, make_terms(mode="both"), make_table(RECORDS), label)
    assert "label" in str(refused.value)


def test_an_honest_label_party_is_not_refused(tmp_path: Path, make_terms: Any, make_table: Any) -> None:
    """What the cases above change is right."""
    label = FalseLabel(SIZES, {**HONEST, **positions((3, 0), (1, 0))})
    outcome = against_feature(tmp_path, make_terms(mode="both"), make_table(RECORDS), label)
    assert (outcome.matched, outcome.digest) == (2, NAME.hex())


def test_a_feature_party_refuses_points_that_become_one_in_its_hands(
    tmp_path: Path, make_terms: Any, make_table: Any
) -> None:
    """In mode `size` the label party would find its record by how often it comes back."""
    first = int.from_bytes(GOOD[0].tobytes(), "little")
    rows = np.stack([GOOD[0], u(pow(first, -1, PRIME)), GOOD[1], GOOD[2]])
    answers = {**HONEST, (LIST, 1, 0): batch(rows[:2]), (LIST, 1, 1): batch(rows[2:])}
    for _ in range(2):  # also when it is asked again after a restart
        label = FalseLabel(SIZES, answers)
        with pytest.raises(BadMessage, match="the list of the label party names a key twice"):
            against_feature(tmp_path, make_terms(mode="size"), make_table(RECORDS), label)
        assert (POINTS, 1, 0) not in label.asked


def test_a_restarted_label_party_can_ask_for_nothing_more(tmp_path: Path, make_terms: Any, make_table: Any) -> None:
    """Another list, a longer one or another alignment would let it ask for any id there is."""
    terms, table = make_terms(mode="both"), make_table(RECORDS)
    first = FalseLabel(
        SIZES, {key: HONEST[key] for key in [(POINTS, 0, 0), (POINTS, 0, 1), (POINTS, 0, 2), (LIST, 1, 0)]}
    )
    with pytest.raises(Killed):
        against_feature(tmp_path, terms, table, first)
    others = points(4)
    false = FalseLabel(SIZES, HONEST | {(LIST, 1, part): batch(others[2 * part : 2 * part + 2]) for part in range(2)})
    with pytest.raises(Killed):
        against_feature(tmp_path, terms, table, false)
    assert [key for key in false.asked if key[0] == LIST] == [(LIST, 1, 1)], "batch 0 is on the disk"
    blinded = WorkingFolder(tmp_path, terms)
    blinded.begin(table)
    np.testing.assert_array_equal(blinded.list_of(LABEL, 1).read(), np.concatenate([GOOD[:2], others[2:]]))
    for said in (announced(6, 5, 0, 0), announced(4, 5, 0, 0, name=NAME[::-1].hex())):
        with pytest.raises(BadMessage, match="the label party has begun another alignment, or has other records"):
            against_feature(tmp_path, terms, table, FalseLabel(said, HONEST))


def test_a_feature_party_that_has_lost_its_secret_is_noticed(tmp_path: Path, make_terms: Any, make_table: Any) -> None:
    terms, table = make_terms(), make_table(RECORDS)
    with pytest.raises(JobStopped):
        against_label(tmp_path, terms, table, GREETING, sent(GOOD[:2]))
    with pytest.raises(BadMessage, match="feature party 'party0' has begun another alignment"):
        against_label(tmp_path, terms, table, announced(4, 0, name=NAME[::-1].hex()))
