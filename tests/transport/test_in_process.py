from functools import partial
from inspect import CORO_CLOSED, getcoroutinestate

import pytest
import torch
from tpsl.transport import in_process
from tpsl.transport.channel import MESSAGE_OVERHEAD, Channel
from tpsl.transport.in_process import InProcessMeeting, pair, run_together
from tpsl.transport.messages import Bye, Finished, Message, TensorMessage

Embeddings = partial(TensorMessage, "embeddings")


async def waiting(channel: Channel) -> Message:
    return await channel.receive()


async def sending(channel: Channel, count: int) -> int:
    for number in range(count):
        await channel.send(Finished(number))
    return count


def test_results_come_in_the_order_of_the_roles() -> None:
    label, airport = pair(("label", "airport"), "float32")
    assert run_together(waiting(label), sending(airport, 1)) == [Finished(0), 1]
    assert run_together(sending(airport, 2), waiting(label)) == [2, Finished(0)]
    assert run_together() == []


def test_three_parties_take_turns() -> None:
    to_airport, airport = pair(("label", "airport"), "float32")
    to_airline, airline = pair(("label", "airline"), "float32")
    log = []

    async def label() -> None:
        for step in range(3):
            for channel in (to_airport, to_airline):
                assert await channel.receive() == Finished(step)
                log.append((step, channel.peer))
            for channel in (to_airport, to_airline):
                await channel.send(Finished(step))

    async def feature(channel: Channel) -> None:
        for step in range(3):
            await channel.send(Finished(step))
            assert await channel.receive() == Finished(step)

    run_together(feature(airline), label(), feature(airport))
    assert log == [(step, name) for step in range(3) for name in ("airport", "airline")]


def test_where_every_message_counts_the_same_a_sender_waits_by_their_number() -> None:
    each = in_process.WINDOW // 4 - MESSAGE_OVERHEAD
    for rows in (0, 1, 1000):
        label, airport = pair(("label", "airport"), "float32", counted=each)

        async def feature(channel: Channel = airport, rows: int = rows) -> int:
            for part in range(5):
                await channel.send(Embeddings(0, part, torch.zeros(rows, 2)))
            return 5

        with pytest.raises(RuntimeError, match="airport waits for label to take a message"):
            run_together(feature())
        assert label._waiting() == 4  # type: ignore[attr-defined]


def test_who_waits_for_whom_is_said_when_nobody_can_go_on() -> None:
    label, airport = pair(("label", "airport"), "float32")
    with pytest.raises(
        RuntimeError,
        match=r"^no party can go on: label waits for a message from airport; airport waits for a message from label$",
    ):
        run_together(waiting(label), waiting(airport))


def test_a_peer_that_left_is_not_waited_for() -> None:
    label, airport = pair(("label", "airport"), "float32")
    with pytest.raises(RuntimeError, match=r"^no party can go on: label waits for a message from airport$"):
        run_together(sending(airport, 0), waiting(label))


@pytest.mark.parametrize("room", [2, 9])
def test_a_sender_pauses_at_the_limit(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    monkeypatch.setattr(in_process, "WINDOW", room * MESSAGE_OVERHEAD)
    label, airport = pair(("label", "airport"), "float32")
    assert run_together(sending(airport, room)) == [room]
    with pytest.raises(RuntimeError, match=r"^no party can go on: airport waits for label to take a message$"):
        run_together(sending(airport, 1))
    run_together(waiting(label))
    assert run_together(sending(airport, 1)) == [1]


def test_an_error_of_one_role_ends_the_others_and_is_raised() -> None:
    label, airport = pair(("label", "airport"), "float32")
    ended = []

    async def tidy() -> None:
        try:
            await label.receive()
        finally:
            ended.append("label")

    async def failing() -> None:
        await airport.send(Bye())
        raise ValueError("the disk is full")

    async def never_begun() -> None:
        ended.append("a role that was never its turn")

    roles = [waiting(airport), tidy(), failing(), never_begun()]
    with pytest.raises(ValueError, match=r"^the disk is full$"):
        run_together(*roles)
    assert ended == ["label"]
    assert {getcoroutinestate(role) for role in roles} == {CORO_CLOSED}


def test_all_peers_are_there_from_the_beginning() -> None:
    ends = {name: pair(("label", name), "float32")[0] for name in ("bank", "airport", "airline")}
    meeting = InProcessMeeting(ends)
    everybody, again, rest = run_together(meeting.gather(), meeting.gather(), meeting.gather(without={"airport"}))
    assert list(everybody.items()) == list(again.items()) == list(ends.items())
    assert list(rest) == ["bank", "airline"]


@pytest.mark.parametrize("tensor", [torch.ones(3), torch.ones(2, 2, 2), torch.ones(2, 2, dtype=torch.float64)])
def test_only_rows_of_float32_are_sent(tensor: torch.Tensor) -> None:
    _, airport = pair(("label", "airport"), "bfloat16")
    with pytest.raises(ValueError, match=r"^a tensor crosses as rows of float32, not as float\d\d of shape \("):
        run_together(airport.send(Embeddings(0, 0, tensor)))
    assert airport.traffic.messages_sent == 0
