"""One honest side against a peer that does what no honest peer does: refused in a sentence that names it."""

from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tpsl.alignment import terms as terms_module
from tpsl.alignment.aligning_feature_party import AligningFeatureParty
from tpsl.alignment.aligning_label_party import AligningLabelParty
from tpsl.alignment.aligning_party import Outcome
from tpsl.alignment.group import PRIME, Bytes32, fresh_scalar, hashed, multiplied
from tpsl.alignment.terms import POINTS, POSITIONS
from tpsl.alignment.working_folder import WorkingFolder
from tpsl.training.observer import UNWATCHED
from tpsl.transport.channel import Channel
from tpsl.transport.checks import BadMessage
from tpsl.transport.in_process import InProcessMeeting, run_together
from tpsl.transport.linked import linked_pair
from tpsl.transport.messages import Announcement, Bye, Finished, Message, Start, TensorMessage

Peer = Callable[[Channel], Coroutine[Any, Any, None]]
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


def batch(rows: Bytes32, round_: int = 0, part: int = 0, topic: str = POINTS) -> TensorMessage:
    return TensorMessage(topic, round_, part, torch.from_numpy(np.array(rows)))


def batches(rows: Bytes32, round_: int) -> list[Message]:
    return [batch(rows[at : at + 2], round_, at // 2) for at in range(0, len(rows), 2)]


def saying(*messages: Message) -> Peer:
    """A peer that sends these messages, whatever it hears."""

    async def peer(channel: Channel) -> None:
        for message in messages:
            await channel.send(message)

    return peer


def against_label(path: Path, terms: Any, table: Any, peer: Peer) -> AligningLabelParty:
    working = WorkingFolder(path, terms)
    working.begin(table)
    side = AligningLabelParty(LABEL, terms, table, working, UNWATCHED)
    label, feature = linked_pair((LABEL, FEATURE), "uint8", terms.limits(), lambda frame: None)
    run_together(side.attend(InProcessMeeting({FEATURE: label})), peer(feature))
    return side


def against_feature(path: Path, terms: Any, table: Any, peer: Peer) -> list[Outcome]:
    working = WorkingFolder(path, terms)
    working.begin(table)
    side, kept = AligningFeatureParty(FEATURE, terms, table, working, UNWATCHED), list[Outcome]()
    label, feature = linked_pair((LABEL, FEATURE), "uint8", terms.limits(), lambda frame: None)
    run_together(side.attend(InProcessMeeting({LABEL: feature}), kept.append), peer(label))
    return kept


GOOD = points(4)
GREETING = Announcement(NAME, (4,))
LOW = np.stack([GOOD[0], u(1)])
LISTS: dict[str, tuple[Sequence[Message], str]] = {
    "no record": ([Announcement(NAME, (0,))], r"announces \(0,\) records"),
    "two counts": ([Announcement(NAME, (4, 4))], r"announces \(4, 4\) records"),
    "too many records": ([Announcement(NAME, (1 << 32,))], "announces"),
    "no announcement": ([Start(0, 0)], "sent Start; expected was Announcement"),
    "low order": ([GREETING, batch(LOW)], "sent a point of low order"),
    "zero": ([GREETING, batch(np.stack([u(0), GOOD[0]]))], "sent a point of low order"),
    "not canonical": ([GREETING, batch(np.stack([GOOD[0], u(PRIME + 2)]))], "not in canonical form"),
    "sign bit": ([GREETING, batch(GOOD[:2] | np.array([0] * 31 + [0x80], np.uint8))], "not in canonical form"),
    "fewer than announced": ([GREETING, batch(GOOD[:1])], r"batch of shape \(1, 32\), not \(2, 32\)"),
    "too short": ([GREETING, batch(GOOD[:2, :31])], r"batch of shape \(2, 31\), not \(2, 32\)"),
    "a batch left out": ([GREETING, batch(GOOD[:2]), batch(GOOD[2:], part=2)], "sent batch 2 out of turn"),
    "a batch twice": ([GREETING, batch(GOOD[:2]), batch(GOOD[:2])], "sent batch 0 out of turn"),
    "another round": (
        [GREETING, batch(GOOD[:2], round_=1)],
        "sent batch 0 of round 1; expected was batch 0 of round 0",
    ),
    "a batch too many": (
        [GREETING, *batches(GOOD, 0), batch(GOOD[:2], part=2)],
        "sent batch 2 out of turn",
    ),
    "a point twice": ([GREETING, *batches(GOOD[[0, 1, 2, 0]], 0)], "names a key twice"),
    "the end too soon": ([GREETING, Finished(0)], "sent Finished; expected was points"),
    "the outcome": ([GREETING, batch(GOOD[:2], topic=POSITIONS)], "sent positions; expected was points"),
    "an unknown topic": ([GREETING, batch(GOOD[:2], topic="embeddings")], "a topic that is not expected here"),
    "too many rows": ([GREETING, batch(GOOD[:3])], "of 3 rows of 32 numbers, more than 2 rows"),
}


@pytest.mark.parametrize("case", LISTS)
def test_the_label_party_refuses(tmp_path: Path, make_terms: Any, make_table: Any, case: str) -> None:
    messages, sentence = LISTS[case]
    with pytest.raises(BadMessage, match=f"party0.*{sentence}"):
        against_label(tmp_path, make_terms(), make_table(RECORDS), saying(*messages))


def test_the_label_party_refuses_points_that_become_one(tmp_path: Path, make_terms: Any, make_table: Any) -> None:
    """u and 1/u differ by a point of order 2: after a multiplication they are the same."""
    first = int.from_bytes(GOOD[0].tobytes(), "little")
    rows = np.stack([GOOD[0], u(pow(first, -1, PRIME)), GOOD[1], GOOD[2]])
    answer = [*batches(points(5), 1)]
    with pytest.raises(BadMessage, match="the list of feature party 'party0' names a key twice"):
        against_label(tmp_path, make_terms(), make_table(RECORDS), saying(GREETING, *batches(rows, 0), *answer))


def test_the_label_party_refuses_two_equal_answers(tmp_path: Path, make_terms: Any, make_table: Any) -> None:
    answer = batches(points(5)[[0, 1, 2, 3, 3]], 1)
    for said in ([*batches(GOOD, 0), *answer], []):  # also after a restart, when all of it is there
        with pytest.raises(BadMessage, match="the list of feature party 'party0' names a key twice"):
            against_label(tmp_path, make_terms(), make_table(RECORDS), saying(GREETING, *said))


SIZES = Announcement(NAME, (4, 5))
SENT = [SIZES, *batches(GOOD, 1)]
TOLD = Announcement(NAME, (2,))


def positions(*pairs: tuple[int, int]) -> TensorMessage:
    rows = np.array([[*position.to_bytes(4, "little"), key] for position, key in pairs], np.uint8)
    return batch(rows, topic=POSITIONS)


QUESTIONS: dict[str, tuple[Sequence[Message], str]] = {
    "other sizes": ([Announcement(NAME, (4, 6))], r"announces \(4, 6\) records; this party has 5"),
    "sizes of more parties": ([Announcement(NAME, (4, 5, 5))], "announces"),
    "no name": ([Announcement(b"", (4, 5))], "a name of 0 bytes"),
    "low order": ([SIZES, batch(LOW, round_=1)], "sent a point of low order"),
    "not canonical": ([SIZES, batch(np.stack([GOOD[0], u(2**255)]), round_=1)], "not in canonical form"),
    "a round that is not": ([SIZES, Start(2, 0)], "asks for round 2, which is not due"),
    "the own list": ([SIZES, batch(GOOD[:2], round_=0)], "asks for round 0, which is not due"),
    "twice": ([SIZES, Start(0, 0), Start(0, 0)], "asks for round 0, which is not due"),
    "a batch left out": ([SIZES, batch(GOOD[2:], 1, 1)], "sent batch 1 of round 1; expected was batch 0"),
    "a batch too many": ([*SENT, batch(GOOD[:2], 1, 2)], "sent batch 2 of round 1"),
    "another batch in its place": ([*SENT, batch(GOOD[2:], 1, 0)], "sent other points than before its restart"),
    "a list that is not there": ([SIZES, batch(GOOD[:2], 1), Start(1, 0)], "and has not sent all of it"),
    "from the middle of a batch": ([*SENT, Start(1, 1)], "where no batch begins"),
    "from beyond the end": ([*SENT, Start(1, 6)], "where no batch begins"),
    "a point twice": ([SIZES, *batches(GOOD[[0, 1, 2, 0]], 1), Start(1, 0)], "names a key twice"),
    "more common records than there are": ([SIZES, Announcement(NAME, (6,))], "common records of 5"),
    "a position twice": ([SIZES, TOLD, positions((1, 0), (1, 0))], "names a position twice"),
    "a position that is not there": ([SIZES, TOLD, positions((1, 0), (5, 0))], "not in this party's list"),
    "a key that is not there": ([SIZES, TOLD, positions((1, 0), (2, 1))], "a key that the alignment does not have"),
    "fewer positions": ([SIZES, TOLD, positions((1, 0))], "in another shape or order"),
    "the end too soon": ([SIZES, Bye()], "sent Bye; expected was points or Start or Announcement"),
    "an unknown topic": ([SIZES, batch(GOOD[:2], 1, topic="gradients")], "a topic that is not expected here"),
}


@pytest.mark.parametrize("case", QUESTIONS)
def test_a_feature_party_refuses(tmp_path: Path, make_terms: Any, make_table: Any, case: str) -> None:
    messages, sentence = QUESTIONS[case]
    with pytest.raises(BadMessage, match=sentence) as refused:
        against_feature(tmp_path, make_terms(mode="both"), make_table(RECORDS), saying(*messages))
    assert "label" in str(refused.value)


def test_a_feature_party_refuses_points_that_become_one_in_its_hands(
    tmp_path: Path, make_terms: Any, make_table: Any
) -> None:
    """In mode `size` the label party would find its record by how often it comes back."""
    first = int.from_bytes(GOOD[0].tobytes(), "little")
    rows = np.stack([GOOD[0], u(pow(first, -1, PRIME)), GOOD[1], GOOD[2]])
    peer = saying(SIZES, *batches(rows, 1), Start(1, 0))
    for _ in range(2):  # also when it is asked again after a restart
        with pytest.raises(BadMessage, match="the list of the label party names a key twice"):
            against_feature(tmp_path, make_terms(mode="size"), make_table(RECORDS), peer)


def test_a_restarted_label_party_can_ask_for_nothing_more(tmp_path: Path, make_terms: Any, make_table: Any) -> None:
    """Another list, a longer one or another alignment would let it ask for any id there is."""
    terms, table = make_terms(mode="both"), make_table(RECORDS)
    with pytest.raises(RuntimeError, match="party0 waits for a message"):  # the first label party is killed
        against_feature(tmp_path, terms, table, saying(*SENT, Start(1, 0)))
    for messages, sentence in (
        ([SIZES, batch(GOOD[2:], 1, 0)], "sent other points than before its restart"),
        ([Announcement(NAME, (6, 5))], "has begun another alignment, or has other records than before"),
        ([Announcement(NAME[::-1], (4, 5))], "has begun another alignment, or has other records than before"),
    ):
        with pytest.raises(BadMessage, match=f"the label party {sentence}"):
            against_feature(tmp_path, terms, table, saying(*messages))


def test_a_feature_party_that_has_lost_its_secret_is_noticed(tmp_path: Path, make_terms: Any, make_table: Any) -> None:
    terms, table = make_terms(), make_table(RECORDS)
    with pytest.raises(RuntimeError, match="label waits for a message"):
        against_label(tmp_path, terms, table, saying(GREETING, batch(GOOD[:2])))
    with pytest.raises(BadMessage, match="feature party 'party0' has begun another alignment"):
        against_label(tmp_path, terms, table, saying(Announcement(NAME[::-1], (4,))))
