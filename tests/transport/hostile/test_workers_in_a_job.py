"""Whole parties, over TLS, against one of several workers that sends on one of its links what none would.

The label party and the feature party `weather` are those of the program; `airport` has two workers and is hostile.
"""

import random
import re
import secrets
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
import torch
from safetensors.torch import load_file
from tests.transport.hostile import test_in_a_job as one_link
from tests.transport.hostile.test_in_a_job import Embeddings, Listening, TestEmbeddings, ignore

from tpsl.data.dataset import load_feature_party
from tpsl.training.agreement import agreement, limits
from tpsl.training.job import Job, make_job
from tpsl.training.join import join
from tpsl.training.local import Local
from tpsl.training.observer import UNWATCHED, Watching
from tpsl.training.one_process import train
from tpsl.training.schedule import Schedule
from tpsl.training.serve import serve
from tpsl.transport.certificates import create_authority, issue
from tpsl.transport.channel import Channel, JobStopped, run_alone
from tpsl.transport.checks import BadMessage
from tpsl.transport.credentials import Certificates
from tpsl.transport.feature_client import FeatureClient
from tpsl.transport.link import Patience, Terms
from tpsl.transport.messages import Bye, Message, Position, Rewind, Start, Stop, TensorMessage
from tpsl.transport.peers import WorkerPlace
from tpsl.vault import Vault

ROWS, WIDTH, STEPS = 10, 6, 8  # of a part; two parts are a batch

NAMES = ("label", "airport", "weather")

Workers = list[Channel]
Script = Callable[[Workers], Coroutine[Any, Any, Any]]


def three_parties(folder: Path) -> Job:
    draw, rows = random.Random(7), 200
    columns: dict[str, dict[str, list[Any]]] = {
        "airport": {"delay": [draw.gauss(0, 1) for _ in range(rows)]},
        "weather": {"wind": [draw.gauss(0, 1) for _ in range(rows)]},
        "label": {"label": [draw.randrange(2) for _ in range(rows)]},
    }
    for name, own in columns.items():
        pa_csv.write_csv(pa.table({"id": list(range(rows)), **own}), folder / f"{name}.csv")
    content = {
        "data": {
            "source": "table",
            "features": [
                {"party": "airport", "path": str(folder / "airport.csv"), "numeric": ["delay"]},
                {"party": "weather", "path": str(folder / "weather.csv"), "numeric": ["wind"]},
            ],
            "label": {"path": str(folder / "label.csv")},
        },
        "privacy": {"mechanism": "discrete", "epsilon": 1.0},
        "model": {"embedding_dim": 2, "bottom": [WIDTH], "top": [4]},
        "training": {"batch_size": 2 * ROWS, "epochs": 1, "checkpoint_every": 3},
    }
    return make_job(content, {}, "test")


class Table:
    """Where two honest parties meet the workers of one that follow a script."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.job = folder, three_parties(folder)
        create_authority(folder / "authority")
        for name in NAMES:
            issue(folder / "authority", folder / name, name, label=name == "label")

    def local(self, name: str, **place: Any) -> Local:
        return Local(certificates=self.folder / name, vault=self.folder / "vault", wait=60, **place)

    def against(self, script: Script | None) -> list[Any]:
        """Let label party and weather train, with an honest airport if there is no script; return how each ends."""
        listening = Listening()
        with ThreadPoolExecutor(3) as threads:
            served = self.local("label", listen="127.0.0.1:0")
            ends = [threads.submit(serve, self.job, served, self.folder / "run", watching=Watching(listening))]
            assert listening.known.wait(60)
            for name in ["weather"] if script else ["weather", "airport"]:
                local = self.local(name, connect=listening.address)
                ends.append(
                    threads.submit(join, self.job, name, local, self.folder / f"run-{name}", watching=UNWATCHED)
                )
            if script is not None:
                with ExitStack() as closing:
                    crew = secrets.token_bytes(16)
                    self.come = partial(self._worker, closing, listening.address, crew)
                    clients = [self.come(number) for number in range(2)]
                    run_alone(script([run_alone(client.gather())["label"] for client in clients]))
            return [end.exception() or end.result() for end in ends]

    def _worker(self, closing: ExitStack, address: str, crew: bytes, number: int) -> FeatureClient:
        side = load_feature_party(self.job.data, "airport")
        schedule = Schedule(self.job, side.train, side.test)
        patience = Patience(silence=2, wait=60)
        terms = Terms(limits(self.job, schedule), "float32", patience, ignore, worker=WorkerPlace(number, 2, crew))
        agreed = agreement(self.job, side.ids, schedule).with_party("airport")
        credentials = Certificates.load(self.folder / "airport").channel()
        return closing.enter_context(FeatureClient(address, "airport", agreed, terms, credentials=credentials))

    def vault(self) -> Path:
        vault = self.folder / "vault"
        return vault


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    """One run for all attacks: each begins where the one before was stopped, and labels are released once."""
    table = Table(tmp_path_factory.mktemp("table"))
    yield table
    with Vault.open(table.vault()) as vault:
        assert vault.verify() == []
        assert [entry.kind for entry in vault.ledger().entries].count("released") == 1


def numbers(rows: int = ROWS) -> torch.Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(0))


async def begun(workers: Workers) -> Start:
    """The part of both workers, which have no checkpoint, in an agreement on a step."""
    for worker in workers:
        while not isinstance(rewind := await worker.receive(), Rewind):
            assert isinstance(rewind, TensorMessage)  # gradients that were under way
        await worker.send(Position(rewind.round, ()))
    starts = [await worker.receive() for worker in workers]
    assert starts == [Start(rewind.round, 0, division=2)] * 2
    return starts[0]


async def step(workers: Workers, number: int) -> list[torch.Tensor]:
    """Both workers' part of a step; return the gradients that they are sent."""
    for part, worker in enumerate(workers):
        await worker.send(Embeddings(number, part, numbers()))
    gradients = [await worker.receive() for worker in workers]
    assert [(each.topic, each.step, each.part) for each in gradients] == [
        ("gradients", number, part) for part in (0, 1)
    ]
    return [each.tensor for each in gradients]


async def sent(worker: Channel, *messages: Message) -> None:
    for message in messages:
        await worker.send(message)


FIRST, SECOND = (r"airport \(worker 0 of 2\)", r"airport \(worker 1 of 2\)")
OUT_OF_TURN = "sent embeddings of step {}, part {}; expected was step {}, part {}"
ON_EACH: dict[str, tuple[list[list[Message]], str]] = {
    "the parts of each other": (
        [[Embeddings(0, 1, numbers())], [Embeddings(0, 0, numbers())]],
        f"{FIRST} {OUT_OF_TURN.format(0, 1, 0, 0)}",
    ),
    "the same frame": (
        [[Embeddings(0, 0, numbers())], [Embeddings(0, 0, numbers())]],
        f"{SECOND} {OUT_OF_TURN.format(0, 0, 0, 1)}",
    ),
    "the whole batch from the first": (
        [[Embeddings(0, 0, numbers()), Embeddings(0, 1, numbers())], [Embeddings(1, 1, numbers())]],
        f"{SECOND} {OUT_OF_TURN.format(1, 1, 0, 1)}",
    ),
    "a step ahead on one link": (
        [[Embeddings(0, 0, numbers())], [Embeddings(1, 1, numbers())]],
        f"{SECOND} {OUT_OF_TURN.format(1, 1, 0, 1)}",
    ),
    "numbers that are none": (
        [[Embeddings(0, 0, numbers())], [Embeddings(0, 1, numbers() / 0)]],
        f"step 0: the embeddings from {SECOND} contain numbers that are not finite",
    ),
    "more rows than its part": (
        [[Embeddings(0, 0, numbers())], [Embeddings(0, 1, numbers(2 * ROWS))]],
        rf"step 0: the embeddings from {SECOND} have shape \(20, 6\), not \(10, 6\)",
    ),
    "a later stage on one link": (
        [[Embeddings(0, 0, numbers())], [TestEmbeddings(STEPS, 1, numbers())]],
        f"{SECOND} sent test embeddings; expected was embeddings",
    ),
    "goodbye on one link": (
        [[Embeddings(0, 0, numbers())], [Bye()]],
        f"{SECOND} sent Bye; expected was embeddings",
    ),
    "a huge size while the other link says nothing": (
        [[], [Embeddings(0, 1, numbers(300))]],
        "worker 1 of 2 of feature party 'airport' sent embeddings of 300 rows of 6 numbers, more than 200",
    ),
}


@pytest.mark.parametrize("name", ON_EACH)
def test_what_a_worker_sends_on_the_wrong_link_stops_the_job_at_all_parties(table: Table, name: str) -> None:
    each, sentence = ON_EACH[name]
    told = []

    async def airport(workers: Workers) -> None:
        await begun(workers)
        for worker, messages in zip(workers, each, strict=True):
            await sent(worker, *messages)
        for worker in workers:
            while not isinstance(answer := await worker.receive(), Stop):
                assert isinstance(answer, TensorMessage) and answer.topic == "gradients"
            told.append(answer.reason)

    label, weather = table.against(airport)
    assert isinstance(label, BadMessage) and re.match(sentence, str(label))
    assert told == [str(label)] * 2
    assert isinstance(weather, JobStopped) and str(weather) == f"label stopped the job: {label}"


def weights(run: Path) -> dict[str, torch.Tensor]:
    files = sorted(run.glob("*/*.safetensors"))
    return {f"{file.parent.name}: {name}": weight for file in files for name, weight in load_file(file).items()}


def test_a_worker_that_comes_again_with_an_older_state_gets_the_same_gradients_and_changes_no_honest_run(
    table: Table,
) -> None:
    seen: list[list[list[torch.Tensor]]] = []

    async def airport(workers: Workers) -> None:
        await begun(workers)
        seen.append([await step(workers, number) for number in range(4)])  # beyond a checkpoint of the others
        workers[1] = (await table.come(1).gather())["label"]
        await sent(workers[0], Embeddings(4, 0, numbers()))
        await begun(workers)
        seen.append([await step(workers, number) for number in range(4)])
        await sent(workers[1], Stop("that is enough"))

    label, weather = table.against(airport)
    assert isinstance(label, JobStopped) and "worker 1 of 2" in str(label) and "that is enough" in str(label)
    assert isinstance(weather, JobStopped) and str(label) in str(weather)
    first, again = ([gradient for pair in steps for gradient in pair] for steps in seen)
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))

    ended = table.against(None)
    assert not [end for end in ended if isinstance(end, Exception)]
    train(table.job, table.folder / "undisturbed", vault=table.vault())
    expected = weights(table.folder / "undisturbed")
    found = (
        weights(table.folder / "run") | weights(table.folder / "run-weather") | weights(table.folder / "run-airport")
    )
    assert found.keys() == expected.keys() and {name.partition(":")[0] for name in found} == set(NAMES)
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


def with_another_count_for_each(workers: Any, table: one_link.Table) -> str:
    """Be one of two workers of a label party, and those of its feature party that it meets; return how it ends."""
    job, listening, local = one_link.job(), Listening(), {"listen": "127.0.0.1:0", "vault": table.folder / "vault"}
    agreed, accepted = table.terms(job)
    serving = ThreadPoolExecutor(1).submit(
        serve,
        job,
        Local(certificates=table.folder / "label", wait=60, **local),
        table.folder / "run",
        watching=Watching(listening),
    )
    assert listening.known.wait(60)
    with ExitStack() as closing:
        for number, count in [[(0, 2)], [(1, 4), (3, 4)]][workers.rank]:
            place = WorkerPlace(number, count, b"started together")
            client = FeatureClient(
                listening.address,
                "feature",
                agreed,
                Terms(accepted, "float32", one_link.PATIENCE, ignore, worker=place),
                credentials=Certificates.load(table.folder / "feature").channel(),
                expected=(workers.rank, 2),
            )
            closing.enter_context(client)
            label = run_alone(client.gather())["label"]
            run_alone(sent(label, Position(1, ()), Bye()))  # so that the first one ends, however far it gets
        return str(serving.exception())


def test_a_party_that_tells_each_worker_another_number_of_its_own_is_named(in_workers: Any, tmp_path: Path) -> None:
    _, second = in_workers(2, with_another_count_for_each, one_link.Table(tmp_path))
    assert second == "feature has come with 4 workers, and to worker 0 of this party with 2"
