"""A further stream joins the connection whose ticket it shows, or is refused, and nobody else notices."""

from typing import Any

import pytest

from tpsl.transport.channel import Channel, run_alone
from tpsl.transport.messages import Finished, Message
from tpsl.transport.network import further_stream

DENIED = "PERMISSION_DENIED: no connection waits for this stream"


def receive(channel: Channel) -> Message:
    return run_alone(channel.receive())


def test_a_further_stream_takes_its_turn(scene: Any, frames: Any) -> None:
    first = scene.raw()
    first.shake_hands(streams=2)
    second = scene.raw(metadata=further_stream(1, first.ticket))
    second.write(frames.message(2), frames.message(4))
    first.write(frames.message(1), frames.message(3))
    assert [receive(scene.channel("airport")) for _ in range(4)] == [Finished(step) for step in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param(lambda ticket: further_stream(1, bytes(16)), id="a made-up ticket"),
        pytest.param(lambda ticket: further_stream(1, ticket[:-1]), id="a part of the ticket"),
        pytest.param(lambda ticket: further_stream(2, ticket), id="a number too many"),
        pytest.param(lambda ticket: further_stream(0, ticket), id="the number of the first"),
        pytest.param(lambda ticket: (("tpsl-stream", ""),), id="nothing"),
        pytest.param(lambda ticket: (("tpsl-stream", "1-" + "f" * 5000),), id="a long ticket"),
        pytest.param(lambda ticket: (("tpsl-stream", f"1-{ticket.hex()}-"),), id="something after it"),
    ],
)
def test_a_stream_that_belongs_to_no_connection_is_refused(scene: Any, frames: Any, shown: Any) -> None:
    first = scene.raw()
    first.shake_hands(streams=2)
    assert scene.raw(metadata=shown(first.ticket)).ending() == DENIED
    scene.raw(metadata=further_stream(1, first.ticket))
    first.write(frames.message(1))
    assert receive(scene.channel("airport")) == Finished(1)
    assert scene.serves("bank")


def test_another_party_cannot_use_a_ticket(scene: Any, frames: Any) -> None:
    first = scene.raw()
    first.shake_hands(streams=2)
    stranger = scene.raw("bank", metadata=further_stream(1, first.ticket))
    assert stranger.ending() == DENIED


def test_a_number_is_taken_once_and_a_ticket_ends_with_its_connection(scene: Any) -> None:
    first = scene.raw()
    first.shake_hands(streams=2)
    scene.raw(metadata=further_stream(1, first.ticket)).read()
    assert scene.raw(metadata=further_stream(1, first.ticket)).ending() == DENIED
    assert scene.serves("airport")
    assert scene.raw(metadata=further_stream(1, first.ticket)).ending() == DENIED


def test_a_stream_that_never_comes_is_a_silence(scene: Any, frames: Any) -> None:
    first = scene.raw()
    first.shake_hands(streams=2)
    first.write(frames.message(1), frames.message(3))
    assert scene.eventually(lambda: ("airport", True) in {(p, "not heard for 1 s" in s) for p, s in scene.seen})
    assert scene.serves("airport")
