"""What crosses is the same in one process, in one process with bytes (for the audit), and over gRPC with TLS."""

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from tests.net.scene import AGREED
from torch import Tensor

from tpsl.audit.replay import FrameLog, SentFrame
from tpsl.net.asking import AtHome, Due, Label, Question, Script
from tpsl.net.certificates import Certificates
from tpsl.net.client import LabelClient
from tpsl.net.codec import encode
from tpsl.net.connection import Patience, Terms
from tpsl.net.desk import Desk
from tpsl.net.failures import NetError
from tpsl.net.messages import Limits, Message, Traffic, WireDtype, WireType
from tpsl.net.server import LabelServer

DTYPES: tuple[WireDtype, ...] = get_args(WireDtype)
FLOATS = [dtype for dtype in DTYPES if dtype != "int8"]
LIMITS = Limits(rows=8192, width=512)
WAYS = ("at home", "frames", "grpc")

Answer = Callable[[Message], Message]
Ask = Callable[[Label], Any]


class Meeting:
    """A label party that answers every question with a function of it, and one feature party, in one of the ways."""

    def __init__(self, way: str, dtype: WireType, certificates: Path) -> None:
        self.way, self.dtype, self.certificates = way, dtype, certificates
        self.asked: list[Message] = []
        self.frames: list[SentFrame] = []
        self.traffic: list[Traffic] = []

    def run(self, ask: Ask, answer: Answer, count: int, started: Message | None = None) -> Any:
        """Let the feature party ask `count` questions; return what `ask` returns."""

        def script() -> Script:
            for step in range(count):
                question: Question = yield AnyShape("Step", step, 0)
                message = question.asked["airport"]
                self.asked.append(replace(message, tensor=None if message.tensor is None else message.tensor.clone()))
                question.answer({"airport": answer(message)})

        start = {"airport": started or Message()}
        if self.way == "at home":
            return ask(AtHome(lambda said: (start, script()), self.dtype))
        if self.way == "frames":
            return ask(FrameLog(lambda said: (start, script()), self.dtype, self.frames.append))
        return self._over_grpc(ask, script, start)

    def _over_grpc(self, ask: Ask, script: Callable[[], Script], start: dict[str, Message]) -> Any:
        terms = Terms(LIMITS, self.dtype, Patience(5, 20))
        own, mine = (Certificates.load(self.certificates / name) for name in ("label", "airport"))
        desk = Desk(("airport",), AGREED, terms)

        def serve() -> None:
            desk.gather()
            self.traffic += desk.start(start).values()
            desk.answer_all(script())

        with (
            LabelServer("127.0.0.1:0", desk, ("Step",), certificates=own) as server,
            LabelClient(f"127.0.0.1:{server.port}", "airport", AGREED, terms, certificates=mine) as client,
            ThreadPoolExecutor(1) as thread,
        ):
            serving = thread.submit(serve)
            try:
                found = ask(client)
            except NetError as error:
                client.stop(error)
                raise
            serving.result(60)
            self.traffic.append(client.traffic)
            return found


class AnyShape(Due):
    """A question whose tensor may have any shape."""

    def require(self, message: Message, sender: str) -> None:
        pass


@pytest.fixture(params=WAYS)
def meet(request: pytest.FixtureRequest, certificates: Path) -> Callable[[WireType], Meeting]:
    return lambda dtype: Meeting(request.param, dtype, certificates)


Meet = Callable[[WireType], Meeting]


def both_ways(meet: Meet, tensor: Tensor, dtype: WireType = "float32") -> tuple[Tensor, Tensor]:
    """Return a tensor as the label party received it, and as the feature party got it when it was the answer."""
    meeting = meet(dtype)

    def ask(label: Label) -> Tensor:
        label.agree({"airport": Message()})
        received = label.ask("Step", 0, 0, {"airport": Message(tensor=tensor)})["airport"].tensor
        assert received is not None
        return received

    received = meeting.run(ask, lambda message: Message(tensor=tensor), 1)
    at_label = meeting.asked[0].tensor
    assert at_label is not None
    return at_label, received


def bits(tensor: Tensor) -> list[int]:
    return tensor.contiguous().view(torch.int32).flatten().tolist()


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


def test_every_field_of_questions_and_answers_arrives_in_order(meet: Meet) -> None:
    meeting = meet("float32")

    def ask(label: Label) -> list[Message]:
        begun = label.agree({"airport": Message(numbers=(0, 200, 2**40))})["airport"]
        assert (begun.step, begun.numbers) == (200, (1, 0))
        answers = [label.ask_ahead("Step", step, 0, {"airport": Message(numbers=(step,))}) for step in range(300)]
        return [answer()["airport"] for answer in answers]

    answers = meeting.run(ask, lambda m: Message(numbers=(2 * m.numbers[0], 7)), 300, Message(200, numbers=(1, 0)))
    assert [(m.step, m.part, m.numbers) for m in meeting.asked] == [(step, 0, (step,)) for step in range(300)]
    assert [(m.step, m.part, m.numbers) for m in answers] == [(step, 0, (2 * step, 7)) for step in range(300)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_are_rounded_to_the_nearest_of_the_wire(meet: Meet, dtype: WireDtype) -> None:
    generator = np.random.default_rng(0)
    numbers = (generator.standard_normal((256, 32)) * 2.0 ** generator.integers(-30, 30, (256, 32))).astype(np.float32)
    numbers[0, :6] = [0.0, -0.0, 65504.0, 65519.9, 65520.0, -1e30]
    numbers[1, :4] = [1.00390625, 1.01171875, 1.00048828125, 1.00146484375]  # halfway: to even
    numbers[2] = 0.0
    numbers[3] = 1e-38  # as int8: zeros
    largest = 3.38e38 if dtype == "bfloat16" else np.finfo(np.float32).max
    numbers[4, :4] = [largest, -1e38, 2e-38, 1.0]
    numbers[5, :4], numbers[5, 4:] = [127.0, 0.5, 1.5, -2.5], 0.0  # as int8 halfway, with the scale 1
    for received in both_ways(meet, torch.from_numpy(numbers.copy()), dtype):
        assert received.dtype == torch.float32
        assert bits(received) == bits(torch.from_numpy(rounded(numbers, dtype)))


def test_float32_keeps_every_bit(meet: Meet) -> None:
    patterns = np.random.default_rng(0).integers(0, 2**32, (64, 64), dtype=np.uint32)
    patterns[0, :5] = [0x80000000, 0x00000001, 0x807FFFFF, 0x7F7FFFFF, 0x00800000]  # -0, denormals, largest, smallest
    finite = (patterns & 0x7F800000) != 0x7F800000
    numbers = torch.from_numpy(np.where(finite, patterns, 0x80000000).astype(np.uint32).view(np.float32))
    for received in both_ways(meet, numbers.clone()):
        assert bits(received) == bits(numbers)


def test_bytes_arrive_as_they_are(meet: Meet) -> None:
    rows = torch.arange(4096, dtype=torch.int64).to(torch.uint8).view(-1, 32)
    for received in both_ways(meet, rows, "uint8"):
        assert received.dtype == torch.uint8
        assert received.tolist() == rows.tolist()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_infinity_or_nan_is_refused_at_either_side(meet: Meet, dtype: WireDtype, value: float) -> None:
    bad, good = torch.tensor([[1.0, value, 2.0]]), torch.ones(1, 3)
    for question, answer in ((bad, good), (good, bad)):

        def ask(label: Label, question: Tensor = question) -> None:
            label.agree({"airport": Message()})
            label.ask("Step", 0, 0, {"airport": Message(tensor=question)})

        with pytest.raises(NetError, match="not finite") as stopped:
            meet(dtype).run(ask, lambda message, answer=answer: Message(tensor=answer), 1)
        assert stopped.value.code == "not-finite"


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_large_tensor_arrives_whole(meet: Meet, dtype: WireDtype) -> None:
    tensor = torch.randint(-127, 128, (8192, 512), generator=torch.Generator().manual_seed(0)).float()
    tensor[:, 7] = 127  # as int8 all are exact, with the scale 1
    assert all(torch.equal(received, tensor) for received in both_ways(meet, tensor, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_an_empty_tensor_keeps_its_shape(meet: Meet, dtype: WireDtype, shape: tuple[int, int]) -> None:
    for received in both_ways(meet, torch.empty(shape), dtype):
        assert received.shape == shape
        assert received.dtype == torch.float32


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_that_is_a_view_arrives_as_it_looks_without_its_past(meet: Meet, dtype: WireDtype) -> None:
    tensor = torch.arange(24, dtype=torch.float32).view(4, 6)
    for view in (tensor.t(), tensor[1::2, 1:4], torch.ones(2, 3, requires_grad=True) * 2):
        wanted = torch.from_numpy(rounded(view.detach().numpy().copy(), dtype))
        for received in both_ways(meet, view, dtype):
            assert torch.equal(received, wanted)
            assert not received.requires_grad and received.grad_fn is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_neither_side_sees_what_the_other_does_to_its_tensor_later(meet: Meet, dtype: WireDtype) -> None:
    sent, answered = torch.ones(64, 64), torch.ones(64, 64)

    def ask(label: Label) -> list[Tensor]:
        label.agree({"airport": Message()})
        found = []
        for step in range(2):
            answer = label.ask_ahead("Step", step, 0, {"airport": Message(tensor=sent)})
            sent.fill_(2)
            received = answer()["airport"].tensor
            assert received is not None
            found.append(received.clone())
            received.fill_(5)
        return found

    def answer(message: Message) -> Message:
        assert message.tensor is not None
        message.tensor.fill_(9)
        answered.fill_(answered[0, 0] + 1)
        return Message(tensor=answered)

    meeting = meet(dtype)
    found = meeting.run(ask, answer, 2)
    assert [float(message.tensor[0, 0]) for message in meeting.asked if message.tensor is not None] == [1, 2]
    assert [float(tensor.mean()) for tensor in found] == [2, 3]
    assert float(sent.mean()) == 2 and float(answered.mean()) == 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_traffic_is_counted_once_as_the_wire_sees_it(certificates: Path, dtype: WireDtype) -> None:
    meeting, tensor = Meeting("grpc", dtype, certificates), torch.zeros(1024, 64)

    def ask(label: Label) -> None:
        label.agree({"airport": Message()})
        for step in range(5):
            label.ask("Step", step, 0, {"airport": Message(tensor=tensor)})

    meeting.run(ask, lambda message: Message(tensor=tensor[:512]), 5)
    size = 5 * 1024 * (64 * getattr(torch, dtype).itemsize + (4 if dtype == "int8" else 0))
    at_label, at_feature = meeting.traffic
    assert (at_label.bytes_received, at_label.bytes_sent) == (size, size // 2)
    assert (at_feature.bytes_sent, at_feature.bytes_received) == (size, size // 2)


def logged(numbers: Tensor) -> list[SentFrame]:
    meeting = Meeting("frames", "float32", Path())

    def ask(label: Label) -> None:
        label.agree({"airport": Message()})
        label.ask("Step", 0, 0, {"airport": Message(tensor=torch.ones(2, 4))})

    meeting.run(ask, lambda message: Message(tensor=numbers), 1)
    return meeting.frames


def test_every_frame_is_told_in_order_with_the_digest_of_its_bytes() -> None:
    frames = logged(torch.ones(2, 4))
    assert [(frame.sender, frame.receiver, frame.kind, frame.step, frame.part) for frame in frames] == [
        ("airport", "label", "Agree", 0, 0),
        ("label", "airport", "Agree", 0, 0),
        ("airport", "label", "Step", 0, 0),
        ("label", "airport", "Step", 0, 0),
    ]
    sent = encode(Message(tensor=torch.ones(2, 4)), "float32")
    assert (frames[2].size, frames[2].digest) == (len(sent), hashlib.sha256(sent).hexdigest())
    assert logged(torch.ones(2, 4)) == frames


def test_one_bit_of_one_number_changes_the_digest_of_its_frame_alone() -> None:
    numbers = torch.ones(2, 4)
    numbers[1, 2] = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))
    pairs = zip(logged(torch.ones(2, 4)), logged(numbers), strict=True)
    assert [one == other for one, other in pairs] == [True, True, True, False]


def test_a_question_that_is_not_due_is_a_mistake_of_this_program_in_one_process() -> None:
    def ask(label: Label) -> None:
        label.agree({"airport": Message()})
        label.ask("Step", 1, 0, {"airport": Message()})

    with pytest.raises(RuntimeError, match="Step of step 1, part 0 was asked"):
        Meeting("at home", "float32", Path()).run(ask, lambda message: message, 1)
