"""What any transport must do, whatever is underneath; `conftest.py` lists the transports."""

import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor
from tpsl.transport.channel import Channel
from tpsl.transport.messages import (
    Announcement,
    Bye,
    Finished,
    Message,
    Position,
    Rewind,
    Start,
    Stop,
    TensorMessage,
    Verdict,
    WireDtype,
    WireType,
)

Embeddings = partial(TensorMessage, "embeddings")
Gradients = partial(TensorMessage, "gradients")
Estimates = partial(TensorMessage, "estimates")
TestEmbeddings = partial(TensorMessage, "test embeddings")
HeadEmbeddings = partial(TensorMessage, "head embeddings")

Role = Callable[[Channel], Coroutine[Any, Any, Any]]
Transport = Callable[[Role, Role, WireType], tuple[Any, Any]]
DTYPES: tuple[WireDtype, ...] = get_args(WireDtype)
FLOATS = [dtype for dtype in DTYPES if dtype != "int8"]


def bits(tensor: Tensor) -> list[int]:
    return tensor.contiguous().view(torch.int32).flatten().tolist()


def sender(messages: Sequence[Message]) -> Role:
    async def role(channel: Channel) -> None:
        for message in messages:
            await channel.send(message)
        await channel.receive()

    return role


def receiver(count: int) -> Role:
    async def role(channel: Channel) -> list[Message]:
        received = [await channel.receive() for _ in range(count)]
        await channel.send(Bye())
        return received

    return role


def sent_across(transport: Transport, message: Message, dtype: WireType = "float32") -> Message:
    return transport(sender([message]), receiver(1), dtype)[1][0]


def tensor_across(transport: Transport, tensor: Tensor, dtype: WireType = "float32") -> Tensor:
    received = sent_across(transport, Gradients(1, 0, tensor), dtype)
    assert isinstance(received, TensorMessage) and received.topic == "gradients"
    return received.tensor


def rounded(numbers: np.ndarray, dtype: WireDtype) -> np.ndarray:
    """What the numbers are after the wire, by NumPy."""
    if dtype == "float16":
        return np.clip(numbers, -65504, 65504).astype(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        pattern = numbers.view(np.uint32)
        to_nearest_even = pattern + 0x7FFF + ((pattern >> 16) & 1)
        return (to_nearest_even & 0xFFFF0000).astype(np.uint32).view(np.float32)
    if dtype == "int8":
        scales = np.abs(numbers).max(axis=1, keepdims=True, initial=0).astype(np.float32) / np.float32(127)
        scales[scales < np.finfo(np.float32).tiny] = 0
        scales = np.minimum(scales, np.nextafter(np.finfo(np.float32).max / np.float32(127), np.float32(0)))
        quotients = np.divide(numbers, scales, out=np.zeros_like(numbers), where=scales > 0)
        return np.rint(quotients).astype(np.int8).astype(np.float32) * scales
    return numbers


def assert_same(received: Message, sent: Message, dtype: WireDtype) -> None:
    assert type(received) is type(sent)
    for field in fields(sent):
        got, wanted = getattr(received, field.name), getattr(sent, field.name)
        if isinstance(wanted, Tensor):
            assert got.shape == wanted.shape
            assert bits(got) == bits(torch.from_numpy(rounded(wanted.numpy(), dtype)))
        else:
            assert got == wanted


def every_kind() -> list[Message]:
    numbers = torch.arange(12, dtype=torch.float32).view(4, 3)  # exact in every type of float
    return [
        Rewind(0),
        Rewind(2**40),
        Position(3, ()),
        Position(3, (0, 200, 2**40)),
        Start(3, 0),
        Start(3, 200),
        Embeddings(0, 0, numbers),
        Embeddings(2**40, 63, numbers[:1]),
        Gradients(7, 2, numbers[:2]),
        Estimates(0, 1, numbers[:, :1]),
        TestEmbeddings(9, 1, numbers),
        HeadEmbeddings(9, 2, numbers),
        Verdict(0, best=False, stop=False),
        Verdict(400, best=True, stop=True),
        Announcement(b"", ()),
        Announcement(bytes(range(32)), (0, 2**40)),
        Finished(0),
        Finished(400),
        Stop("the vault's budget is spent: ε = 1"),
        Stop(""),
        Bye(),
    ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_kind_of_message_arrives_equal_and_in_order(transport: Transport, dtype: WireDtype) -> None:
    messages = every_kind()
    assert {type(message) for message in messages} == set(get_args(Message))
    for received, sent in zip(transport(sender(messages), receiver(len(messages)), dtype)[1], messages, strict=True):
        assert_same(received, sent, dtype)
    for received, sent in zip(transport(receiver(len(messages)), sender(messages), dtype)[0], messages, strict=True):
        assert_same(received, sent, dtype)


def test_bytes_arrive_as_they_are(transport: Transport) -> None:
    rows = torch.arange(4096, dtype=torch.int64).to(torch.uint8).view(-1, 32)
    received = tensor_across(transport, rows, "uint8")
    assert received.dtype == torch.uint8
    assert received.tolist() == rows.tolist()


def test_each_end_knows_the_other_by_name(transport: Transport) -> None:
    async def role(channel: Channel) -> str:
        await channel.send(Bye())
        await channel.receive()
        return channel.peer

    assert transport(role, role, "float32") == ("airport", "label")


def test_a_long_conversation_stays_in_order(transport: Transport) -> None:
    async def asking(channel: Channel) -> list[int]:
        answers = []
        for number in range(1000):
            await channel.send(Start(number, 2 * number))
            answer = await channel.receive()
            assert isinstance(answer, Finished)
            answers.append(answer.step)
        return answers

    async def answering(channel: Channel) -> None:
        for _ in range(1000):
            question = await channel.receive()
            assert isinstance(question, Start)
            await channel.send(Finished(question.round + question.step))

    assert transport(asking, answering, "float32")[0] == [3 * number for number in range(1000)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_are_rounded_to_the_nearest_of_the_wire(transport: Transport, dtype: WireDtype) -> None:
    generator = np.random.default_rng(0)
    scales = 2.0 ** generator.integers(-30, 30, (256, 32))
    numbers = (generator.standard_normal((256, 32)) * scales).astype(np.float32)
    numbers[0, :6] = [0.0, -0.0, 65504.0, 65519.9, 65520.0, -1e30]
    numbers[1, :4] = [1.00390625, 1.01171875, 1.00048828125, 1.00146484375]  # halfway: to even
    numbers[2] = 0.0
    numbers[3] = 1e-38  # as int8: zeros
    numbers[4, :4] = [np.finfo(np.float32).max, -1e38, 2e-38, 1.0]
    numbers[5, :4], numbers[5, 4:] = [127.0, 0.5, 1.5, -2.5], 0.0  # as int8 halfway, with the scale 1
    received = tensor_across(transport, torch.from_numpy(numbers.copy()), dtype)
    assert received.dtype == torch.float32
    assert bits(received) == bits(torch.from_numpy(rounded(numbers, dtype)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_an_infinity_or_nan_is_not_hidden(transport: Transport, dtype: WireDtype) -> None:
    received = tensor_across(transport, torch.tensor([[np.inf, -np.inf, np.nan, 1.0]]), dtype)
    assert received[0, :2].tolist() == [np.inf, -np.inf]
    assert received[0, 2].isnan()
    assert received[0, 3] == 1


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_as_int8_an_infinity_or_nan_is_all_that_is_left_of_its_row(transport: Transport, value: float) -> None:
    received = tensor_across(transport, torch.tensor([[1.0, value, 2.0], [1.0, 127.0, 2.0]]), "int8")
    assert received[0].isnan().all()
    assert received[1].tolist() == [1.0, 127.0, 2.0]


def test_float32_keeps_every_bit(transport: Transport) -> None:
    patterns = np.random.default_rng(0).integers(0, 2**32, (64, 64), dtype=np.uint32)
    patterns[0, :5] = [0x80000000, 0x00000001, 0x807FFFFF, 0x7F7FFFFF, 0x00800000]  # -0, denormals, largest, smallest
    finite = (patterns & 0x7F800000) != 0x7F800000
    numbers = torch.from_numpy(np.where(finite, patterns, 0x80000000).astype(np.uint32).view(np.float32))
    assert bits(tensor_across(transport, numbers.clone())) == bits(numbers)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_large_tensor_arrives_whole(transport: Transport, dtype: WireDtype) -> None:
    tensor = torch.randint(-127, 128, (8192, 512), generator=torch.Generator().manual_seed(0)).float()
    tensor[:, 7] = 127  # as int8 all are exact, with the scale 1
    assert torch.equal(tensor_across(transport, tensor, dtype), tensor)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_an_empty_tensor_keeps_its_shape(transport: Transport, dtype: WireDtype, shape: tuple[int, int]) -> None:
    received = tensor_across(transport, torch.empty(shape), dtype)
    assert received.shape == shape
    assert received.dtype == torch.float32


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_that_is_a_view_arrives_as_it_looks(transport: Transport, dtype: WireDtype) -> None:
    tensor = torch.arange(24, dtype=torch.float32).view(4, 6)
    for view in (tensor.t(), tensor[1::2, 1:4]):
        assert torch.equal(tensor_across(transport, view, dtype), torch.from_numpy(rounded(view.numpy(), dtype)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_the_sender_learns_with_stays_with_the_sender(transport: Transport, dtype: WireDtype) -> None:
    received = tensor_across(transport, torch.ones(2, 3, requires_grad=True) * 2, dtype)
    assert not received.requires_grad
    assert received.grad_fn is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_neither_side_sees_what_the_other_does_to_its_tensor_later(transport: Transport, dtype: WireDtype) -> None:
    tensor = torch.ones(64, 64)

    async def changing(channel: Channel) -> None:
        await channel.send(Gradients(1, 0, tensor))
        tensor.fill_(2)
        await channel.send(Gradients(2, 0, tensor))
        await channel.receive()

    async def watching(channel: Channel) -> tuple[Tensor, Tensor]:
        first, second = await channel.receive(), await channel.receive()
        assert isinstance(first, TensorMessage) and first.topic == "gradients"
        assert isinstance(second, TensorMessage) and second.topic == "gradients"
        seen = first.tensor.clone(), second.tensor.clone()
        second.tensor.fill_(3)
        await channel.send(Bye())
        return seen

    first, second = transport(changing, watching, dtype)[1]
    assert torch.equal(first, torch.ones(64, 64))
    assert torch.equal(second, torch.full((64, 64), 2.0))
    assert torch.equal(tensor, torch.full((64, 64), 2.0))


def test_a_sender_waits_for_a_receiver_that_does_not_take_its_messages(transport: Transport) -> None:
    count, done = 300, 0
    tensor = torch.zeros(256, 256)

    async def sending(channel: Channel) -> None:
        nonlocal done
        for number in range(count):
            await channel.send(TestEmbeddings(0, number, tensor))
            done += 1
        await channel.receive()

    async def sleeping(channel: Channel) -> tuple[int, list[int]]:
        for _ in range(50):
            before = done
            time.sleep(0.2)
            if before == done > 0:
                break
        at_rest, parts = done, []
        for _ in range(count):
            message = await channel.receive()
            assert isinstance(message, TensorMessage) and message.topic == "test embeddings"
            parts.append(message.part)
        await channel.send(Bye())
        return at_rest, parts

    at_rest, parts = transport(sending, sleeping, "float32")[1]
    assert 0 < at_rest < count
    assert parts == list(range(count))


@pytest.mark.parametrize("dtype", DTYPES)
def test_traffic_is_counted_as_the_wire_sees_it(transport: Transport, dtype: WireDtype) -> None:
    messages = [Embeddings(1, part, torch.zeros(1024, 64)) for part in range(5)]

    async def sending(channel: Channel) -> tuple[int, int, int]:
        await sender([*messages, Finished(1)])(channel)
        traffic = channel.traffic
        return traffic.messages_sent, traffic.messages_received, traffic.bytes_sent

    async def receiving(channel: Channel) -> tuple[int, int, int]:
        await receiver(6)(channel)
        traffic = channel.traffic
        return traffic.messages_sent, traffic.messages_received, traffic.bytes_received

    tensors = 5 * 1024 * (64 * getattr(torch, dtype).itemsize + (4 if dtype == "int8" else 0))
    for sent, received, size in transport(receiving, sending, dtype):
        assert {sent, received} == {1, 6}
        assert tensors <= size <= tensors * 1.02
