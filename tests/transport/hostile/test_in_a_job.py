"""Whole parties, over TLS, against a peer that shakes hands as an honest one and then sends what none would."""

import math
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tpsl.transport.channel import Channel, run_alone
from tpsl.transport.checks import BadMessage
from tpsl.transport.feature_client import FeatureClient
from tpsl.transport.frames import Limits
from tpsl.transport.label_server import LabelServer
from tpsl.transport.link import Patience, Terms
from tpsl.transport.messages import Bye, Finished, Message, Position, Rewind, Start, Stop, TensorMessage, Verdict

from tpsl.data.dataset import load_feature_party
from tpsl.net.certificates import create_authority, issue
from tpsl.net.credentials import Certificates
from tpsl.training.agreement import agreement, limits
from tpsl.training.job import Job, make_job
from tpsl.training.join import join
from tpsl.training.local import Local
from tpsl.training.observer import UNWATCHED, Fact, NullObserver, Watching
from tpsl.training.run_folder import RunFolder
from tpsl.training.schedule import Schedule
from tpsl.training.serve import serve
from tpsl.vault import Vault

Embeddings = partial(TensorMessage, "embeddings")
Gradients = partial(TensorMessage, "gradients")
Estimates = partial(TensorMessage, "estimates")
TestEmbeddings = partial(TensorMessage, "test embeddings")
HeadEmbeddings = partial(TensorMessage, "head embeddings")

ROWS, WIDTH, STEPS = 20, 6, 8
PATIENCE = Patience(silence=2, wait=20)
Script = Callable[[Channel], Coroutine[Any, Any, Any]]


def job(wire: str = "float32") -> Job:
    content = {
        "data": {"source": "synthetic", "rows": 200, "numeric_fields": 2, "categorical_fields": 1},
        "privacy": {"mechanism": "discrete", "epsilon": 1.0},
        "model": {"embedding_dim": 2, "bottom": [WIDTH], "top": [4]},
        "training": {"batch_size": ROWS, "epochs": 1, "checkpoint_every": 3, "wire": wire},
    }
    return make_job(content, {}, "test")


class Listening(NullObserver):
    """Says where the label party listens."""

    def __init__(self) -> None:
        self.address = ""
        self.known = threading.Event()

    def event(self, name: str, **facts: Fact) -> None:
        if name == "listening":
            self.address = str(facts["address"])
            self.known.set()


def ignore(*_: object) -> None:
    """Nobody watches."""


class Table:
    """Where an honest party, as its program runs it, meets one that follows a script."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        create_authority(folder / "authority")
        issue(folder / "authority", folder / "label", "label", label=True)
        issue(folder / "authority", folder / "feature", "feature", label=False)

    def terms(self, agreed: Job) -> tuple[Any, Limits]:
        side = load_feature_party(agreed.data, "feature")
        schedule = Schedule(agreed, side.train, side.test)
        return agreement(agreed, side.ids, schedule), limits(agreed, schedule)

    def label_against(self, script: Script, wire: str = "float32", says: str | None = None) -> Path:
        """Be the label party of a job whose feature party follows the script; return the run, or raise why it ended.

        `says` is the type of number that the feature party uses, if not the job's.
        """
        agreed = job(wire)
        agreement, limits = self.terms(agreed)
        vault = self.folder / "vault"
        local = Local(listen="127.0.0.1:0", certificates=self.folder / "label", vault=vault, silence=2, wait=20)
        run, where = self.folder / f"run-{wire}", Listening()
        with ThreadPoolExecutor(1) as thread:
            serving = thread.submit(serve, agreed, local, run, watching=Watching(where))
            assert where.known.wait(60)
            with FeatureClient(
                where.address,
                "feature",
                agreement,
                Terms(limits, says or wire, PATIENCE, ignore),  # type: ignore[arg-type]
                credentials=Certificates.load(self.folder / "feature").channel(),
            ) as client:
                run_alone(script(run_alone(client.gather())["label"]))
            serving.result(60)
        return run

    def feature_against(self, script: Script) -> None:
        """Be the feature party of a job whose label party follows the script; raise why it ended."""
        agreed = job()
        agreement, limits = self.terms(agreed)
        with LabelServer(
            "127.0.0.1:0",
            ["feature"],
            agreement,
            Terms(limits, "float32", PATIENCE, ignore),
            credentials=Certificates.load(self.folder / "label").server(),
        ) as server:
            local = Local(connect=f"127.0.0.1:{server.port}", certificates=self.folder / "feature", silence=2, wait=20)
            with ThreadPoolExecutor(1) as thread:
                joining = thread.submit(
                    join,
                    agreed,
                    "feature",
                    local,
                    self.folder / "run-feature",
                    watching=UNWATCHED,
                )
                run_alone(script(run_alone(server.gather())["feature"]))
                joining.result(60)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    """One run folder for all attacks: each begins where the one before was stopped."""
    table = Table(tmp_path_factory.mktemp("table"))
    yield table
    for place in table.folder.glob("vault"):  # one, unless only feature parties were attacked
        with Vault.open(place) as vault:
            assert vault.verify() == []
            assert [entry.kind for entry in vault.ledger().entries].count("released") == 1


def numbers(rows: int = ROWS, width: int = WIDTH, value: float | None = None) -> torch.Tensor:
    tensor = torch.randn(rows, width, generator=torch.Generator().manual_seed(0))
    if value is not None:
        tensor[rows // 2, width // 2] = value
    return tensor


async def begun(channel: Channel) -> int:
    """The feature party's side of an agreement on a step."""
    rewind = await channel.receive()
    assert isinstance(rewind, Rewind)
    await channel.send(Position(rewind.round, ()))
    assert await channel.receive() == Start(rewind.round, 0)
    return 0


NOT_FINITE = r"step 0: the embeddings from feature contain numbers that are not finite"
OUT_OF_TURN = r"expected was step \d, part 0"
BAD_FOR_LABEL: dict[str, tuple[list[Message], str]] = {
    "NaN": ([Embeddings(0, 0, numbers(value=math.nan))], NOT_FINITE),
    "infinity": ([Embeddings(0, 0, numbers(value=math.inf))], NOT_FINITE),
    "minus infinity": ([Embeddings(0, 0, numbers(value=-math.inf))], NOT_FINITE),
    "all NaN": ([Embeddings(0, 0, torch.full((ROWS, WIDTH), math.nan))], NOT_FINITE),
    "a row too few": ([Embeddings(0, 0, numbers(ROWS - 1))], r"have shape \(19, 6\), not \(20, 6\)"),
    "a column too few": ([Embeddings(0, 0, numbers(ROWS, WIDTH - 1))], r"have shape \(20, 5\), not \(20, 6\)"),
    "lying on its side": ([Embeddings(0, 0, numbers(WIDTH, WIDTH))], r"have shape \(6, 6\), not \(20, 6\)"),
    "one number": ([Embeddings(0, 0, numbers(1, 1))], r"have shape \(1, 1\), not \(20, 6\)"),
    "no rows": ([Embeddings(0, 0, torch.empty(0, WIDTH))], r"have shape \(0, 6\), not \(20, 6\)"),
    "no columns": ([Embeddings(0, 0, torch.empty(ROWS, 0))], r"have shape \(20, 0\), not \(20, 6\)"),
    "a later step": ([Embeddings(1, 0, numbers())], OUT_OF_TURN),
    "an endless step": ([Embeddings((1 << 64) - 1, 0, numbers())], OUT_OF_TURN),
    "a part that there is not": ([Embeddings(0, 1, numbers())], OUT_OF_TURN),
    "a step again": ([Embeddings(0, 0, numbers()), Embeddings(0, 0, numbers())], OUT_OF_TURN),
    "steps in another order": ([Embeddings(1, 0, numbers()), Embeddings(0, 0, numbers())], OUT_OF_TURN),
    "gradients": ([Gradients(0, 0, numbers())], "sent gradients; expected was embeddings"),
    "estimates": ([Estimates(0, 0, numbers(ROWS, 1))], "sent estimates; expected was embeddings"),
    "test embeddings": ([TestEmbeddings(0, 0, numbers())], "sent test embeddings; expected was embeddings"),
    "head embeddings": ([HeadEmbeddings(0, 0, numbers())], "sent head embeddings; expected was embeddings"),
    "a rewind": ([Rewind(2)], "sent Rewind; expected was embeddings"),
    "a second position": ([Position(1, (3,))], "sent Position; expected was embeddings"),
    "a start": ([Start(1, 0)], "sent Start; expected was embeddings"),
    "a verdict": ([Verdict(0, True, True)], "sent Verdict; expected was embeddings"),
    "finished too early": ([Finished(STEPS)], "sent Finished; expected was embeddings"),
    "goodbye": ([Bye()], "sent Bye; expected was embeddings"),
}


@pytest.mark.parametrize("name", BAD_FOR_LABEL)
def test_the_label_party_stops_with_a_sentence_and_says_it_to_the_other(table: Table, name: str) -> None:
    messages, sentence = BAD_FOR_LABEL[name]
    told: list[str] = []

    async def feature(channel: Channel) -> None:
        await begun(channel)
        for message in messages:
            await channel.send(message)
        while not isinstance(answer := await channel.receive(), Stop):
            assert isinstance(answer, TensorMessage) and answer.topic == "gradients"
        told.append(answer.reason)

    with pytest.raises(BadMessage, match=sentence) as stopped:
        table.label_against(feature)
    assert told == [str(stopped.value)]


@pytest.mark.parametrize(("wire", "says"), [("bfloat16", "float16"), ("float16", "bfloat16"), ("int8", "float32")])
def test_another_type_of_number_is_not_read_as_the_job_s(table: Table, wire: str, says: str) -> None:
    async def feature(channel: Channel) -> None:
        await begun(channel)
        await channel.send(Embeddings(0, 0, numbers()))
        assert isinstance(await channel.receive(), Stop)

    with pytest.raises(BadMessage, match=f"sent embeddings in another type of number than the job's {wire}"):
        table.label_against(feature, wire, says)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("wire", ["bfloat16", "float16", "int8"])
def test_no_type_of_number_hides_what_is_not_finite(table: Table, wire: str, value: float) -> None:
    async def feature(channel: Channel) -> None:
        await begun(channel)
        await channel.send(Embeddings(0, 0, numbers(value=value)))
        assert isinstance(await channel.receive(), Stop)

    with pytest.raises(BadMessage, match=NOT_FINITE):
        table.label_against(feature, wire)


async def all_steps(channel: Channel, scale: float) -> list[tuple[float, torch.Tensor]]:
    """Go through the whole job with embeddings of this size; return how long each step took, and its gradients."""
    await begun(channel)
    steps = []
    for step in range(STEPS):
        begin = time.perf_counter()
        await channel.send(Embeddings(step, 0, numbers() * scale))
        gradients = await channel.receive()
        assert isinstance(gradients, TensorMessage) and gradients.topic == "gradients", gradients
        steps.append((time.perf_counter() - begin, gradients.tensor))
    await channel.send(TestEmbeddings(STEPS, 0, numbers(2 * ROWS) * scale))
    await channel.send(Finished(STEPS))
    assert await channel.receive() == Bye()
    await channel.send(Bye())
    assert await channel.receive() == Bye()
    return steps


def test_denormal_numbers_are_numbers_and_take_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {}
    for name, scale in (("normal", 1.0), ("denormal", 1e-40)):
        assert name == "normal" or 0 < float((numbers() * scale).abs().max()) < torch.finfo(torch.float32).tiny
        (tmp_path / name).mkdir()
        monkeypatch.setenv("TPSL_HOME", str(tmp_path / name / "home"))
        steps: list[tuple[float, torch.Tensor]] = []

        async def feature(channel: Channel, scale: float = scale, kept: Any = steps) -> None:
            kept += await all_steps(channel, scale)

        run = Table(tmp_path / name).label_against(feature)
        assert all(bool(torch.isfinite(gradients).all()) for _, gradients in steps)
        assert RunFolder(run).result() is not None
        taken[name] = min(seconds for seconds, _ in steps)
    assert taken["denormal"] < 20 * taken["normal"] + 0.1


BAD_FOR_FEATURE: dict[str, tuple[Message, str]] = {
    "NaN": (Gradients(0, 0, numbers(value=math.nan)), "the gradients from label contain numbers that are not finite"),
    "infinity": (Gradients(0, 0, numbers(value=math.inf)), "contain numbers that are not finite"),
    "minus infinity": (Gradients(0, 0, numbers(value=-math.inf)), "contain numbers that are not finite"),
    "a row too few": (Gradients(0, 0, numbers(ROWS - 1)), r"have shape \(19, 6\), not \(20, 6\)"),
    "no columns": (Gradients(0, 0, torch.empty(ROWS, 0)), r"have shape \(20, 0\), not \(20, 6\)"),
    "a later step": (Gradients(1, 0, numbers()), "step 1, part 0"),
    "a part that there is not": (Gradients(0, 1, numbers()), "step 0, part 1"),
    "embeddings": (Embeddings(0, 0, numbers()), "sent embeddings"),
    "estimates": (Estimates(0, 0, numbers(ROWS, 1)), "sent estimates"),
    "a verdict": (Verdict(0, True, True), "sent Verdict"),
    "a start": (Start(1, 0), "sent Start"),
    "a position": (Position(1, ()), "sent Position"),
    "finished": (Finished(STEPS), "sent Finished"),
    "goodbye": (Bye(), "sent Bye"),
}


@pytest.mark.parametrize("name", BAD_FOR_FEATURE)
def test_the_feature_party_stops_with_a_sentence_and_says_it_to_the_other(table: Table, name: str) -> None:
    message, sentence = BAD_FOR_FEATURE[name]
    told: list[str] = []

    async def label(channel: Channel) -> None:
        await channel.send(Rewind(1))
        assert isinstance(await channel.receive(), Position)
        await channel.send(Start(1, 0))
        await channel.send(message)
        while not isinstance(answer := await channel.receive(), Stop):
            assert isinstance(answer, TensorMessage) and answer.topic == "embeddings"
        told.append(answer.reason)

    with pytest.raises(BadMessage, match=sentence) as stopped:
        table.feature_against(label)
    assert told == [str(stopped.value)]
