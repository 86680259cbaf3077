"""Whole parties, over TLS, against a peer that agrees as an honest one and then says what none would."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tpsl.data.dataset import load_feature_party
from tpsl.net.asking import Due, Script
from tpsl.net.certificates import Certificates, create_authority, issue
from tpsl.net.client import LabelClient
from tpsl.net.connection import Patience, Terms
from tpsl.net.desk import Desk
from tpsl.net.failures import BadMessage, JobStopped, NetError
from tpsl.net.messages import Message
from tpsl.net.server import LabelServer
from tpsl.run.job import Job, make_job
from tpsl.run.job_agreement import agreement, limits
from tpsl.run.local import Local
from tpsl.run.observer import UNWATCHED, Fact, Observer, Watching
from tpsl.run.over_network import join, serve
from tpsl.run.run_folder import RunFolder
from tpsl.run.schedule import Schedule
from tpsl.run.stages import METHODS
from tpsl.vault import Vault

ROWS, WIDTH, STEPS = 20, 6, 8


def job(wire: str = "float32", **training: Any) -> Job:
    content = {
        "data": {"source": "synthetic", "rows": 200, "numeric_fields": 2, "categorical_fields": 1},
        "privacy": {"mechanism": "discrete", "epsilon": 1.0},
        "model": {"embedding_dim": 2, "bottom": [WIDTH], "top": [4], "wide": training.pop("wide", False)},
        "training": {"batch_size": ROWS, "epochs": 1, "checkpoint_every": 3, "wire": wire, **training},
    }
    return make_job(content, {}, "test")


class Listening(Observer):
    """Says where the label party listens."""

    def __init__(self) -> None:
        self.address, self.known = "", threading.Event()

    def event(self, name: str, **facts: Fact) -> None:
        if name == "listening":
            self.address = str(facts["address"])
            self.known.set()


class Table:
    """Where an honest party, as its program runs it, meets one that does what it is told to."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.patience = folder, Patience(silence=2, wait=20)
        create_authority(folder / "authority")
        issue(folder / "authority", folder / "label", "label")
        issue(folder / "authority", folder / "feature", "feature")

    def terms(self, agreed: Job) -> tuple[Any, Terms]:
        side = load_feature_party(agreed.data, "feature")
        schedule = Schedule(agreed, side.train, side.test)
        return agreement(agreed, side.ids, schedule), Terms(limits(agreed, schedule), agreed.wire_type, self.patience)

    def label_against(self, feature: Callable[[LabelClient], None], agreed: Job, says: str | None = None) -> Path:
        """Be the label party of a job with this feature party; return the run, or raise why it ended.

        `says` is the type of number that the feature party uses, if not the job's.
        """
        agreement, terms = self.terms(agreed)
        vault = self.folder / "vault"
        local = Local(listen="127.0.0.1:0", certificates=self.folder / "label", vault=vault, silence=2, wait=20)
        run, where = self.folder / f"run-{agreed.wire_type}", Listening()
        own = Certificates.load(self.folder / "feature")
        with ThreadPoolExecutor(1) as thread:
            serving = thread.submit(serve, agreed, local, run, watching=Watching(where))
            assert where.known.wait(60)
            terms = replace(terms, dtype=says or agreed.wire_type)
            with LabelClient(where.address, "feature", agreement, terms, certificates=own) as client:
                feature(client)
            serving.result(60)
        return run

    def feature_against(self, start: Message, script: Callable[[], Script], agreed: Job) -> tuple[Exception, NetError]:
        """Be the feature party of a job with this label party; return why each ends."""
        agreement, terms = self.terms(agreed)
        desk = Desk(("feature",), agreement, terms)
        own, run = Certificates.load(self.folder / "label"), self.folder / f"run-feature-{agreed.digest()[:8]}"
        with (
            LabelServer("127.0.0.1:0", desk, METHODS, certificates=own) as server,
            ThreadPoolExecutor(1) as thread,
        ):
            local = Local(connect=f"127.0.0.1:{server.port}", certificates=self.folder / "feature", silence=2, wait=20)
            joining = thread.submit(join, agreed, "feature", local, run, watching=UNWATCHED)
            desk.start(dict.fromkeys(desk.gather(), start))
            with pytest.raises(NetError) as stopped:
                desk.answer_all(script())
                desk.take(Due("Nothing"))
            error = joining.exception(60)
            assert isinstance(error, Exception)
            return error, stopped.value


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


Asked = tuple[str, int, int, torch.Tensor | None]
STEP = ("Step", 0, 0, numbers())
NOT_FINITE, OUT_OF_TURN = "contain numbers that are not finite", "expected was Step of step"
BAD_FOR_LABEL: dict[str, tuple[list[Asked], str]] = {
    "NaN": ([("Step", 0, 0, numbers(value=math.nan))], NOT_FINITE),
    "infinity": ([("Step", 0, 0, numbers(value=math.inf))], NOT_FINITE),
    "minus infinity": ([("Step", 0, 0, numbers(value=-math.inf))], NOT_FINITE),
    "all NaN": ([("Step", 0, 0, torch.full((ROWS, WIDTH), math.nan))], NOT_FINITE),
    "a row too few": ([("Step", 0, 0, numbers(ROWS - 1))], r"have shape \(19, 6\), not \(20, 6\)"),
    "a column too few": ([("Step", 0, 0, numbers(ROWS, WIDTH - 1))], r"have shape \(20, 5\), not \(20, 6\)"),
    "lying on its side": ([("Step", 0, 0, numbers(WIDTH, WIDTH))], r"have shape \(6, 6\), not \(20, 6\)"),
    "one number": ([("Step", 0, 0, numbers(1, 1))], r"have shape \(1, 1\), not \(20, 6\)"),
    "no rows": ([("Step", 0, 0, torch.empty(0, WIDTH))], r"have shape \(0, 6\), not \(20, 6\)"),
    "no columns": ([("Step", 0, 0, torch.empty(ROWS, 0))], r"have shape \(20, 0\), not \(20, 6\)"),
    "no numbers": ([("Step", 0, 0, None)], "are missing"),
    "a later step": ([("Step", 1, 0, numbers())], OUT_OF_TURN),
    "an endless step": ([("Step", (1 << 64) - 1, 0, numbers())], OUT_OF_TURN),
    "a part that there is not": ([("Step", 0, 1, numbers())], OUT_OF_TURN),
    "a step again": ([STEP, STEP], OUT_OF_TURN),
    "estimates": ([("Estimates", 0, 0, None)], "sent Estimates of step 0, part 0; " + OUT_OF_TURN),
    "an evaluation": ([("Evaluate", 0, 0, numbers())], "sent Evaluate of step 0, part 0; " + OUT_OF_TURN),
    "a statistic": ([("Statistic", 0, 0, numbers())], "sent Statistic of step 0, part 0; " + OUT_OF_TURN),
    "embeddings for a head": ([("Head", 0, 0, numbers())], "sent Head of step 0, part 0; " + OUT_OF_TURN),
    "noisy labels": ([("NoisyLabels", 0, 0, None)], "sent NoisyLabels of step 0, part 0; " + OUT_OF_TURN),
    "finished too early": ([("Finish", STEPS, 0, None)], "sent Finish of step 8, part 0; " + OUT_OF_TURN),
    "goodbye": ([("Finish", STEPS, 1, None)], "sent Finish of step 8, part 1; " + OUT_OF_TURN),
    "numbers at the end": (
        [*(("Step", step, 0, numbers()) for step in range(STEPS)), ("Evaluate", STEPS, 0, numbers(2 * ROWS)),
         ("Finish", STEPS, 0, numbers(1, 1))],
        "sent numbers with Finish",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FOR_LABEL)
def test_the_label_party_stops_and_says_so_to_the_other(table: Table, name: str) -> None:
    asked, sentence = BAD_FOR_LABEL[name]
    told: list[JobStopped] = []

    def feature(client: LabelClient) -> None:
        assert client.agree({"feature": Message()})["feature"].step == 0
        with pytest.raises(JobStopped) as stopped:
            for method, step, part, tensor in asked:
                client.ask(method, step, part, {"feature": Message(tensor=tensor)})
        told.append(stopped.value)

    with pytest.raises(BadMessage, match=sentence) as stopped:
        table.label_against(feature, job())
    assert "feature" in str(stopped.value) and str(stopped.value) in str(told[0])
    assert stopped.value.code == told[0].code == ("not-finite" if sentence == NOT_FINITE else "bad-message")


@pytest.mark.parametrize(("wire", "says"), [("bfloat16", "float16"), ("float16", "bfloat16"), ("int8", "float32")])
def test_another_type_of_number_is_not_read_as_the_job_s(table: Table, wire: str, says: str) -> None:
    def feature(client: LabelClient) -> None:
        client.agree({"feature": Message()})
        with pytest.raises(JobStopped):
            client.ask("Step", 0, 0, {"feature": Message(tensor=numbers())})

    with pytest.raises(BadMessage, match=f"another type of number than the job's {wire}"):
        table.label_against(feature, job(wire), says)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("wire", ["bfloat16", "float16", "int8"])
def test_no_type_of_number_hides_what_is_not_finite(table: Table, wire: str, value: float) -> None:
    def feature(client: LabelClient) -> None:
        client.agree({"feature": Message()})
        with pytest.raises(JobStopped):
            client.ask("Step", 0, 0, {"feature": Message(tensor=numbers(value=value))})

    with pytest.raises(BadMessage) as stopped:
        table.label_against(feature, job(wire))
    assert stopped.value.code == "not-finite"


def test_checkpoints_that_only_one_side_claims_are_not_used(table: Table) -> None:
    def feature(client: LabelClient) -> None:
        assert client.agree({"feature": Message(numbers=(4, 7, 1 << 40))})["feature"].step == 0
        client.stop("enough")

    with pytest.raises(JobStopped, match="feature party 'feature' stopped the job: enough"):
        table.label_against(feature, job())


def test_who_begins_anew_gets_the_same_gradients(table: Table) -> None:
    seen: list[torch.Tensor] = []

    def feature(client: LabelClient) -> None:
        for _ in range(2):
            assert client.agree({"feature": Message()})["feature"].step == 0
            for step in range(4):  # beyond a checkpoint of the label party
                seen.append(client.ask("Step", step, 0, {"feature": Message(tensor=numbers())})["feature"].tensor)
        client.stop("enough")

    with pytest.raises(JobStopped):
        table.label_against(feature, job())
    assert all(torch.equal(*pair) for pair in zip(seen[:4], seen[4:], strict=True))


def all_steps(client: LabelClient, scale: float) -> list[tuple[float, torch.Tensor]]:
    """Go through the whole job with embeddings of this size; return how long each step took, and its gradients."""
    client.agree({"feature": Message()})
    steps = []
    for step in range(STEPS):
        begin = time.perf_counter()
        answer = client.ask("Step", step, 0, {"feature": Message(tensor=numbers() * scale)})["feature"]
        steps.append((time.perf_counter() - begin, answer.tensor))
    client.ask("Evaluate", STEPS, 0, {"feature": Message(tensor=numbers(2 * ROWS) * scale)})
    for part in range(2):
        client.ask("Finish", STEPS, part, {"feature": Message()})
    return steps


def test_denormal_numbers_are_numbers_and_take_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {}
    for name, scale in (("normal", 1.0), ("denormal", 1e-40)):
        assert name == "normal" or 0 < float((numbers() * scale).abs().max()) < torch.finfo(torch.float32).tiny
        (tmp_path / name).mkdir()
        monkeypatch.setenv("TPSL_HOME", str(tmp_path / name / "home"))
        steps: list[tuple[float, torch.Tensor]] = []

        def feature(client: LabelClient, scale: float = scale, kept: Any = steps) -> None:
            kept += all_steps(client, scale)

        run = Table(tmp_path / name).label_against(feature, job())
        assert all(bool(torch.isfinite(gradients).all()) for _, gradients in steps)
        assert RunFolder(run).result() is not None
        taken[name] = min(seconds for seconds, _ in steps)
    assert taken["denormal"] < 20 * taken["normal"] + 0.1


def answering(agreed: Job, last: Message) -> Callable[[], Script]:
    """A label party whose answer to the first question is this one; to the evaluation, if the job stops early."""
    side = load_feature_party(agreed.data, "feature")
    schedule = Schedule(agreed, side.train, side.test)

    def script() -> Script:
        for step in range(schedule.total_steps if schedule.patience else 0):
            rows = len(schedule.batch(step))
            question = yield Due("Step", step, 0, rows=rows, widths={"feature": WIDTH})
            question.answer_all(Message(tensor=numbers(rows)))
        if schedule.patience:
            (rows,) = map(len, schedule.test_parts())
            due = Due("Evaluate", schedule.total_steps, 0, rows=rows, widths={"feature": WIDTH})
        elif agreed.model.wide:
            due = Due("Estimates", 0, 0)
        else:
            due = Due("Step", 0, 0, rows=ROWS, widths={"feature": WIDTH})
        question = yield due
        question.give({"feature": replace(last, step=due.step + last.step)})

    return script


BAD_FOR_FEATURE: dict[str, tuple[Message, str]] = {
    "NaN": (Message(tensor=numbers(value=math.nan)), "not finite"),
    "infinity": (Message(tensor=numbers(value=math.inf)), "not finite"),
    "minus infinity": (Message(tensor=numbers(value=-math.inf)), "not finite"),
    "a row too few": (Message(tensor=numbers(ROWS - 1)), r"have shape \(19, 6\), not \(20, 6\)"),
    "no rows": (Message(tensor=torch.empty(0, WIDTH)), r"have shape \(0, 6\), not \(20, 6\)"),
    "no columns": (Message(tensor=torch.empty(ROWS, 0)), r"have shape \(20, 0\), not \(20, 6\)"),
    "too many rows": (Message(tensor=numbers(300)), "300 rows of 6 numbers, more than"),
    "nothing": (Message(), "are missing"),
    "a later step": (Message(step=1, tensor=numbers()), "with another one"),
    "a part that there is not": (Message(part=1, tensor=numbers()), "with another one"),
}


def stops(table: Table, agreed: Job, last: Message, sentence: str, start: Message | None = None) -> None:
    error, told = table.feature_against(start or Message(), answering(agreed, last), agreed)
    assert isinstance(error, BadMessage) and isinstance(told, JobStopped)
    assert error.code == told.code == ("not-finite" if sentence == "not finite" else "bad-message")
    assert str(error) in str(told)
    with pytest.raises(BadMessage, match=sentence):
        raise error


@pytest.mark.parametrize("name", BAD_FOR_FEATURE)
def test_the_feature_party_stops_and_says_so_to_the_other(table: Table, name: str) -> None:
    message, sentence = BAD_FOR_FEATURE[name]
    stops(table, job(), message, sentence)


@pytest.mark.parametrize("step", [3, 1 << 60])
def test_a_feature_party_starts_only_where_it_offered(table: Table, step: int) -> None:
    stops(table, job(), Message(), f"start at step {step}, which was not offered", Message(step=step))


@pytest.mark.parametrize("numbers", [(), (1,), (1, 0, 0), (2, 0), (0, 1 << 60), (0, 0)])
def test_a_verdict_that_there_cannot_be_stops_the_feature_party(table: Table, numbers: tuple[int, ...]) -> None:
    sentence = "an earlier epoch was better, and none was" if numbers == (0, 0) else "as the verdict on step"
    stops(table, job(patience=1, validation=0.2), Message(numbers=numbers), sentence)


@pytest.mark.parametrize("shape", [(0, 1), (159, 1), (161, 1), (160, 2)])
def test_estimates_of_a_wrong_shape_stop_the_feature_party(table: Table, shape: tuple[int, int]) -> None:
    estimates = Message(tensor=torch.zeros(shape))
    stops(table, job(wide=True), estimates, r"have shape|more than")
