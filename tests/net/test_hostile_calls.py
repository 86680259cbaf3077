"""Certified parties that say what no honest one does: before a session nobody else notices, in one the job stops."""

import random
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import grpc
import pytest
import torch
from tests.net.scene import AGREED, LIMITS, MIB, Raw, Refusal, Scene, eventually, share

from tpsl.net import wire_pb2
from tpsl.net.agreement import Introduction
from tpsl.net.certificates import Certificates
from tpsl.net.codec import encode
from tpsl.net.failures import BadMessage, JobStopped, Refused
from tpsl.net.messages import Message

Make = Callable[..., Scene]
NONCE = bytes(range(32))
FIELDS = tuple(AGREED.fields.items())
HELLO = Message(text="airport", secret=NONCE, fields=FIELDS)


def said(message: Message, dtype: Any = "float32") -> bytes:
    return encode(message, dtype)


def header(**fields: Any) -> bytes:
    content = wire_pb2.Header(**fields).SerializeToString()
    return len(content).to_bytes(4, "little") + content


BAD, REFUSED, ANEW = "INVALID_ARGUMENT bad-message", "PERMISSION_DENIED refused", "ABORTED restarted"
LONG = wire_pb2.Field(name="a" * 1900, value="v" * 1900)
BEFORE: dict[str, tuple[str, bytes, str, str]] = {
    "random bytes": ("Hello", b"\x00\xff\x17 random", BAD, "10 bytes that do not begin with a header"),
    "nothing": ("Hello", b"", BAD, "0 bytes that do not begin"),
    "much": ("Hello", Random(0).randbytes(100_000), BAD, "100000 bytes that do not begin with a header"),
    "numbers": ("Hello", said(replace(HELLO, tensor=torch.zeros(1, 1))), BAD, "more than 0 rows"),
    "a question": ("Hello", said(share(1)), BAD, "more than 0 rows"),
    "no name": ("Hello", said(Message()), REFUSED, "the certificate is that of 'airport', not of ''"),
    "another's name": ("Hello", said(replace(HELLO, text="bank")), REFUSED, "is that of 'airport', not of 'bank'"),
    "no nonce": ("Hello", said(replace(HELLO, secret=b"")), BAD, "a nonce of 0 bytes, not 32"),
    "a short nonce": ("Hello", said(replace(HELLO, secret=bytes(31))), BAD, "a nonce of 31 bytes, not 32"),
    "a long nonce": ("Hello", header(text="airport", secret=bytes(65)), BAD, "secret of more than 64 bytes"),
    "no fields": ("Hello", said(replace(HELLO, fields=())), REFUSED, "'airport' has none"),
    "a field too many": (
        "Hello",
        said(replace(HELLO, fields=(*FIELDS, ("n" * 2000, "ε" * 2000)))),
        REFUSED,
        "n" * 1000,
    ),
    "a long name": ("Hello", header(text="x" * 2001), BAD, "text that is not printable"),
    "a terminal's command": ("Hello", header(text="airport\x1b[2J"), BAD, "text that is not printable"),
    "many fields": (
        "Hello",
        header(fields=[wire_pb2.Field(name=str(n)) for n in range(513)]),
        BAD,
        "list of more than 512 entries",
    ),
    "a long value": ("Hello", header(fields=[wire_pb2.Field(value="v" * 2001)]), BAD, "text that is not printable"),
    "long fields": ("Hello", header(fields=[LONG] * 20), BAD, "do not begin with a header"),
    "an agreement without hello": ("Agree", said(Message(session=b"p", text="airport", secret=NONCE)), ANEW, ""),
    "an awaited agreement": ("Agree", said(Message(session=b"p", text="airport", pending=True)), ANEW, ""),
    "an agreement of nobody": ("Agree", b"random", BAD, "6 bytes"),
    "an agreement as another": ("Agree", said(Message(session=b"p", text="bank")), REFUSED, "not of 'bank'"),
    "a question in no session": ("Step", said(share(1)), ANEW, ""),
    "a question in a session of its own": ("Step", said(replace(share(1), session=bytes(16))), ANEW, ""),
    "no question": ("Step", b"random", BAD, "feature party 'airport' sent 6 bytes"),
    "an endless question": ("Step", said(share(1, 513)), BAD, "513 rows of 2 numbers, more than 512 rows of 256"),
    "a stop of nobody": ("Stop", said(Message(session=b"p", text="bank")), REFUSED, "not of 'bank'"),
    "no method": ("Goodbye", said(HELLO), "UNIMPLEMENTED ", "Goodbye"),
}


@pytest.mark.parametrize("name", BEFORE)
def test_what_no_honest_party_says_outside_a_session_is_refused_and_stops_nothing(scene: Scene, name: str) -> None:
    method, data, status, sentence = BEFORE[name]
    raw = scene.raw()
    for _ in range(3):
        refusal = raw.refused(method, data)
        assert f"{refusal.status} {refusal.code}" == status
        assert sentence in refusal.sentence and len(refusal.sentence) <= 2000
    assert len([state for state in scene.states("airport") if state.startswith("refused")]) <= 1
    assert scene.serves("bank")
    assert scene.serves("airport")


def test_nothing_but_the_service_is_there(scene: Scene) -> None:
    assert scene.raw().refused("Hello", said(HELLO), service="tpsl.wire.Split").status == "UNIMPLEMENTED"
    assert scene.raw().refused("Check", b"", service="grpc.health.v1.Health").status == "UNIMPLEMENTED"


def test_a_certified_stranger_is_refused_and_named_once(scene: Scene, strangers: Any) -> None:
    own = Certificates.load(strangers / "shop")
    for _ in range(3):
        with pytest.raises(Refused, match="'shop' is not a feature party of this job; they are airport, bank"):
            scene.asking("shop", certificates=own)
    assert len(scene.states("shop")) == 1
    raw = scene.raw_with(own.channel())
    for method in ("Hello", "Agree", "Stop"):
        refusal = raw.refused(method, said(replace(HELLO, text="airport")))
        assert (refusal.status, refusal.code) == ("PERMISSION_DENIED", "refused")
    assert scene.serves("airport")


def test_a_proof_that_was_recorded_reflected_or_made_up_is_worth_nothing(scene: Scene) -> None:
    label = scene.label(1, without=("bank",))
    raw, other = scene.raw(), scene.raw()
    recorded = raw.agree()
    session, other.process = raw.session, b"another"
    assert other.answer("Agree", recorded).session == session, "the same call, again"
    introduction = Introduction("airport", "airport", AGREED)
    introduction.compare(other.answer("Hello", said(introduction.fields())))
    mirrored = Introduction("label", "airport", AGREED)
    mirrored.compare(Message(text="airport", secret=introduction.fields().secret, fields=FIELDS))
    agree = Message(session=b"another", text="airport", number=9)
    for proof in (b"", bytes(32), mirrored.proof(), introduction.proof()[:31], introduction._theirs):
        refusal = other.refused("Agree", said(replace(agree, secret=proof)))
        assert (refusal.status, refusal.code) == ("PERMISSION_DENIED", "refused")
        assert "record ids differ" in refusal.sentence
    assert other.refused("Agree", recorded.replace(raw.process, b"a process of mime")).code == "refused"
    assert raw.answer("Step", raw.question(0)).tensor is not None, "the session goes on"
    label.result()
    assert scene.restarts == 0


def test_calls_that_come_late_change_nothing(scene: Scene) -> None:
    """A network may deliver a call when its sender has long made it again."""
    label = scene.label(2, without=("bank",))
    raw = scene.raw()
    hello = [Introduction("airport", "airport", AGREED) for _ in range(3)]
    raw.number = 1
    hello[0].compare(raw.answer("Hello", said(hello[0].fields())))
    first = said(Message(secret=hello[0].proof(), session=raw.process, number=1, text="airport"))
    hello[1].compare(raw.answer("Hello", said(hello[1].fields())))
    for late in (hello[0], hello[1], hello[2]):
        raw.call("Hello", said(late.fields()))
    second = said(Message(secret=hello[1].proof(), session=raw.process, number=2, text="airport"))
    raw.session = raw.answer("Agree", second).session
    assert raw.refused("Agree", first).status == "ABORTED"
    raw.call("Hello", said(hello[2].fields()))
    assert raw.refused("Agree", first).status == "ABORTED"
    questions = [raw.question(number) for number in range(2)]
    answers = [raw.call("Step", question) for question in questions]
    assert [raw.call("Step", question) for question in questions] == answers
    awaited = said(Message(session=raw.session, step=1, number=1, pending=True))
    assert raw.call("Step", awaited) == answers[1]
    label.result()
    raw.call("Stop", said(Message(text="airport", session=b"an older process", fields=(("stopped", "late"),))))
    assert scene.desk._failure is None and scene.restarts == 0
    assert not [state for state in scene.states("airport") if state.startswith(("refused", "lost"))]


def test_a_question_that_was_answered_long_ago_is_not_answered_again(scene: Scene) -> None:
    label = scene.label(12, without=("bank",))
    raw = scene.raw()
    raw.agree()
    for number in range(12):
        raw.answer("Step", raw.question(number))
    label.result()
    kept = [number for number in range(12) if raw_outcome(raw, number) == ""]
    assert kept == list(range(12 - LIMITS.calls, 12)), "no more is kept"


def raw_outcome(raw: Raw, number: int) -> str:
    try:
        raw.answer("Step", raw.question(number))
    except Refusal as refusal:
        return refusal.status
    return ""


def test_the_session_of_another_party_or_of_yesterday_is_none(scene: Scene) -> None:
    label = scene.label(2)
    airport, bank = scene.raw(), scene.raw("bank")
    agreeing = scene.pool.submit(airport.agree)
    bank.agree("bank")
    agreeing.result()
    yesterday, airport.session = airport.session, bank.session
    assert airport.refused("Step", airport.question(0)).status == "ABORTED"
    airport.session = yesterday
    again = scene.pool.submit(airport.agree)
    assert eventually(lambda: scene.restarts == 1)
    bank.agree("bank")
    again.result()
    stale = replace(share(0), session=yesterday)
    assert airport.refused("Step", encode(stale, "float32")).status == "ABORTED"
    answers = [scene.pool.submit(raw.answer, "Step", raw.question(0)) for raw in (airport, bank)]
    assert all(bool((answer.result().tensor == 0).all()) for answer in answers)
    airport.call("Stop", said(Message(text="airport", session=airport.process)))
    with pytest.raises(JobStopped):
        label.result()


Ask = Callable[[Raw], tuple[str, bytes]]
"""Makes a call from an honest party's connection, in its session, when question 0 is due."""
IN_SESSION: dict[str, tuple[Ask, str, str]] = {
    "random bytes": (lambda raw: ("Step", b"random"), "bad-message", "6 bytes that do not begin with a header"),
    "another step": (lambda raw: ("Step", raw.question(0, step=1)), "bad-message", "Step of step 1, part 0; expected"),
    "another part": (lambda raw: ("Step", raw.question(0, part=1)), "bad-message", "Step of step 0, part 1; expected"),
    "another method": (lambda raw: ("Labels", raw.question(0)), "bad-message", "Labels of step 0, part 0; expected"),
    "an endless step": (lambda raw: ("Step", raw.question(0, step=(1 << 64) - 1)), "bad-message", "184467440737095516"),
    "out of turn": (lambda raw: ("Step", raw.question(0, number=4)), "bad-message", "question 4 out of turn"),
    "an endless number": (lambda raw: ("Step", raw.question(0, number=(1 << 64) - 1)), "bad-message", "out of turn"),
    "awaited, never asked": (lambda raw: ("Step", raw.question(0, pending=True)), "bad-message", "question 0 out of"),
    "no numbers": (lambda raw: ("Step", raw.question(0, tensor=None)), "bad-message", "are missing"),
    "a row too few": (lambda raw: ("Step", raw.question(0, share(1, 2))), "bad-message", "(2, 2), not (3, 2)"),
    "a column too many": (lambda raw: ("Step", raw.question(0, share(1, 3, 3))), "bad-message", "(3, 3), not (3, 2)"),
    "no rows": (lambda raw: ("Step", raw.question(0, share(1, 0))), "bad-message", "(0, 2), not (3, 2)"),
    "no columns": (lambda raw: ("Step", raw.question(0, share(1, 3, 0))), "bad-message", "(3, 0), not (3, 2)"),
    "too many rows": (lambda raw: ("Step", raw.question(0, share(1, 513))), "bad-message", "513 rows of 2 numbers"),
    "too wide": (lambda raw: ("Step", raw.question(0, share(1, 500, 257))), "bad-message", "500 rows of 257 numbers"),
    "NaN": (lambda raw: ("Step", raw.question(0, share(float("nan")))), "not-finite", "are not finite"),
    "infinity": (lambda raw: ("Step", raw.question(0, share(float("inf")))), "not-finite", "are not finite"),
    "another type": (
        lambda raw: ("Step", encode(replace(share(0), session=raw.session), "float16")),
        "bad-message",
        "another type of number than the job's float32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_SESSION)
def test_a_bad_question_stops_the_job_of_all_with_its_code(make_scene: Make, name: str) -> None:
    ask, code, sentence = IN_SESSION[name]
    scene = make_scene("airport", "bank")
    label, raw = scene.label(3), scene.raw()
    agreeing = scene.pool.submit(raw.agree)
    bank = scene.asking("bank")
    agreeing.result()
    waiting = scene.pool.submit(bank.ask, "Step", 0, 0, {"bank": share(1)})
    assert eventually(lambda: scene.desk._callers["bank"].due is not None)
    refusal = raw.refused(*ask(raw))
    with pytest.raises(BadMessage) as stopped:
        label.result()
    assert stopped.value.code == refusal.code == code
    assert str(stopped.value).startswith(
        ("feature party 'airport'", "step 0: the Step numbers from airport", "the numb")
    )
    assert "airport" in str(stopped.value) and sentence in str(stopped.value) and sentence in refusal.sentence
    with pytest.raises(JobStopped) as told:
        waiting.result()
    assert told.value.code == code and str(stopped.value) in str(told.value)


@pytest.mark.parametrize("changes", [{"tensor": torch.ones(3, 2)}, {"numbers": (1,)}, {"step": 1}])
def test_another_question_under_a_number_that_was_used_stops_the_job(scene: Scene, changes: dict[str, Any]) -> None:
    label = scene.label(3, without=("bank",))
    raw = scene.raw()
    raw.agree()
    answer = raw.answer("Step", raw.question(0, share(0)))
    assert bool((answer.tensor == 0).all())
    refusal = raw.refused("Step", raw.question(0, share(0), **changes))
    assert (refusal.status, refusal.code) == ("INVALID_ARGUMENT", "bad-message")
    with pytest.raises(BadMessage, match="asked another question under the number 0"):
        label.result()


def test_numbers_with_a_question_that_has_none_stop_the_job(scene: Scene) -> None:
    from tpsl.net.asking import Due

    def serve() -> None:
        scene.desk.start(dict.fromkeys(scene.desk.gather(without=("bank",)), Message()))
        scene.desk.take(Due("Labels", 0, 0))

    label, raw = scene.pool.submit(serve), scene.raw()
    raw.agree()
    assert raw.refused("Labels", raw.question(0)).code == "bad-message"
    with pytest.raises(BadMessage, match="sent numbers with Labels"):
        label.result()


@pytest.mark.parametrize("code", ["not-finite", "taken-over", "ε\x1b", "a b", "x" * 33, ""])
def test_any_reason_to_stop_reaches_the_other_parties(make_scene: Make, code: str) -> None:
    scene = make_scene("airport", "bank")
    label, raw = scene.label(3), scene.raw()
    agreeing = scene.pool.submit(raw.agree)
    bank = scene.asking("bank")
    agreeing.result()
    waiting = scene.pool.submit(bank.ask, "Step", 0, 0, {"bank": share(1)})
    raw.call(
        "Stop", said(Message(text="airport", session=raw.process, fields=((code.replace("\x1b", ""), "ε" * 2000),)))
    )
    with pytest.raises(JobStopped) as told:
        waiting.result()
    assert told.value.code == (code if code in ("not-finite", "taken-over") else "stopped")
    assert "ε" * 500 in str(told.value)
    with pytest.raises(JobStopped):
        label.result()


def test_a_bad_message_without_certificates_stops_the_job_of_its_session_only(make_scene: Make) -> None:
    scene = make_scene("airport", certified=False)
    label, raw = scene.label(3), scene.raw()
    raw.agree()
    assert raw.refused("Step", b"random").status == "INVALID_ARGUMENT"
    nan = Message(tensor=torch.full((3, 2), torch.nan), session=bytes(16))
    assert raw.refused("Step", said(nan)).code == "not-finite"
    assert scene.desk._failure is None
    assert raw.refused("Step", raw.question(0, nan)).code == "not-finite"
    with pytest.raises(BadMessage):
        label.result()


def test_an_oversized_message_ends_its_call_alone(scene: Scene) -> None:
    raw = scene.raw()
    refusal = raw.refused("Step", said(share(1, 4096, 256)))
    assert (refusal.status, refusal.code) == ("RESOURCE_EXHAUSTED", "")
    assert scene.serves("airport")
    assert scene.serves("bank")


@pytest.mark.parametrize("kind", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_messages_are_not_unpacked(scene: Scene, kind: grpc.Compression) -> None:
    refusal = scene.raw().refused("Step", bytes(64 * MIB), compression=kind)
    assert refusal.status in ("UNIMPLEMENTED", "RESOURCE_EXHAUSTED")
    assert scene.serves("bank")


@pytest.mark.parametrize("seed", range(3))
def test_random_calls_neither_kill_nor_deafen_the_server(scene: Scene, seed: int) -> None:
    chance, raw = random.Random(seed), scene.raw()
    honest = [said(HELLO), said(Message(session=b"p", text="airport", secret=NONCE)), said(share(1))]
    for _ in range(100):
        frame = bytearray(chance.choice(honest))
        for _ in range(chance.randrange(4)):
            frame[chance.randrange(len(frame))] = chance.randrange(256)
        method = chance.choice(("Hello", "Agree", "Step", "Stop"))
        try:
            raw.call(method, bytes(frame[: chance.randrange(1, len(frame) + 1)]))
        except Refusal as refusal:
            assert refusal.status in ("INVALID_ARGUMENT", "PERMISSION_DENIED", "ABORTED"), refusal
    assert scene.serves("airport")
    assert scene.serves("bank")


class FalseLabelParty:
    """Has the label party's certificate, and answers what it is told to, after an honest handshake if it is honest."""

    def __init__(self, scene: Scene, answers: Callable[[str, bytes], bytes]) -> None:
        from concurrent import futures

        def serve(method: str) -> Any:
            return grpc.unary_unary_rpc_method_handler(lambda data, context: answers(method, data))

        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        handlers = {method: serve(method) for method in ("Hello", "Agree", "Step", "Stop")}
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tpsl.net.LabelParty", handlers),))
        self.port = self.server.add_secure_port("127.0.0.1:0", Certificates.load(scene.folder / "label").server())
        self.server.start()
        scene.open.callback(lambda: self.server.stop(None).wait())


class Answering:
    """An honest handshake, and one answer to all questions."""

    def __init__(self, answer: Message | bytes, session: bytes = bytes(16), proof: bytes | None = None) -> None:
        self.said, self.session, self.proof = answer, session, proof
        self.asked: list[str] = []

    def __call__(self, method: str, data: bytes) -> bytes:
        from tpsl.net.codec import decode

        self.asked.append(method)
        message = decode(data, LIMITS, "float32", sender="airport")
        if method == "Hello":
            self.introduction = Introduction("label", "airport", AGREED)
            self.introduction.compare(message)
            return said(self.introduction.fields())
        if method == "Agree":
            self.introduction.require_proof(message.secret)
            return said(Message(secret=self.proof or self.introduction.proof(), session=self.session))
        return self.said if isinstance(self.said, bytes) else said(self.said)


@pytest.mark.parametrize(
    ("answer", "sentence", "code"),
    [
        (b"random", "the label party sent 6 bytes", "bad-message"),
        (share(1, 3, 257), "3 rows of 257 numbers", "bad-message"),
        (share(1, 4096, 256), "too large for this job", "bad-message"),
        (share(float("nan")), "not finite", "not-finite"),
        (Message(step=1), "with another one", "bad-message"),
        (Message(part=1), "with another one", "bad-message"),
    ],
)
def test_a_bad_answer_stops_the_feature_party(scene: Scene, answer: Any, sentence: str, code: str) -> None:
    client = scene.asking(port=FalseLabelParty(scene, Answering(answer)).port)
    with pytest.raises(BadMessage, match=sentence) as stopped:
        client.ask("Step", 0, 0, {"airport": share(1)})
    assert stopped.value.code == code


def test_an_answer_that_is_pending_for_ever_is_not_asked_for_without_end(scene: Scene) -> None:
    false = Answering(Message(pending=True))
    client = scene.asking(port=FalseLabelParty(scene, false).port)
    scene.pool.submit(client.ask, "Step", 0, 0, {"airport": share(1)})
    assert not eventually(lambda: false.asked.count("Step") > 60, within=1)
    false.said = share(2)


@pytest.mark.parametrize(
    ("false", "sentence"),
    [
        (lambda method, data: b"random", "the label party sent 6 bytes"),
        (lambda method, data: said(Message()), "a nonce of 0 bytes"),
        (lambda method, data: said(share(1)), "more than 0 rows"),
        (lambda method, data: said(Message(secret=NONCE, fields=FIELDS)), "record ids differ"),
        (Answering(b"", session=b""), "without a session"),
        (Answering(b"", proof=bytes(32)), "record ids differ"),
    ],
)
def test_a_label_party_that_does_not_know_the_handshake_is_not_trusted(scene: Scene, false: Any, sentence: str) -> None:
    with pytest.raises((BadMessage, Refused), match=sentence):
        scene.asking(port=FalseLabelParty(scene, false).port)
