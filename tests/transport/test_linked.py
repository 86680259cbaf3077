"""Coupled links: the bytes of a network in one process, told frame by frame."""

import hashlib
from functools import partial

import pytest
import torch
from tpsl.transport.channel import Channel
from tpsl.transport.checks import BadMessage
from tpsl.transport.frames import Limits, encode_message
from tpsl.transport.in_process import run_together
from tpsl.transport.linked import SentFrame, linked_pair
from tpsl.transport.messages import Bye, TensorMessage, Verdict

Embeddings = partial(TensorMessage, "embeddings")
Gradients = partial(TensorMessage, "gradients")


def conversation(numbers: torch.Tensor) -> list[SentFrame]:
    frames: list[SentFrame] = []
    label, feature = linked_pair(
        ("label", "airport"), "float32", Limits(8, 4, ("embeddings", "gradients")), frames.append
    )

    async def of_label(channel: Channel) -> None:
        await channel.receive()
        await channel.send(Gradients(3, 1, numbers))
        await channel.send(Verdict(3, best=True, stop=False))
        await channel.receive()

    async def of_feature(channel: Channel) -> None:
        await channel.send(Embeddings(3, 1, torch.ones(2, 4)))
        await channel.receive()
        await channel.receive()
        await channel.send(Bye())

    run_together(of_label(label), of_feature(feature))
    return frames


def test_every_frame_is_told_in_order_with_the_digest_of_its_bytes() -> None:
    frames = conversation(torch.ones(2, 4))
    assert [str(frame) for frame in frames] == [
        "airport → label: embeddings of step 3, part 1",
        "label → airport: gradients of step 3, part 1",
        "label → airport: Verdict of step 3",
        "airport → label: Bye",
    ]
    sent = encode_message(Gradients(3, 1, torch.ones(2, 4)), 1, 1, "float32")
    assert (frames[1].size, frames[1].digest) == (len(sent), hashlib.sha256(sent).hexdigest())
    assert conversation(torch.ones(2, 4)) == frames


def test_one_bit_of_one_number_changes_the_digest_of_its_frame_alone() -> None:
    numbers = torch.ones(2, 4)
    numbers[1, 2] = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))
    before, after = conversation(torch.ones(2, 4)), conversation(numbers)
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, True, True]


def test_a_frame_that_no_honest_peer_sends_is_refused_as_on_a_network() -> None:
    label, feature = linked_pair(
        ("label", "airport"), "float32", Limits(2, 4, ("embeddings", "gradients")), lambda frame: None
    )

    async def sends_too_much(channel: Channel) -> None:
        await channel.send(Embeddings(0, 0, torch.ones(3, 4)))

    async def receives(channel: Channel) -> None:
        await channel.receive()

    with pytest.raises(BadMessage, match="more than 2 rows"):
        run_together(receives(label), sends_too_much(feature))
