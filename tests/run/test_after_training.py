"""True labels over real mutual TLS: from the moment that the port is open, the label party's process reads none.

A feature party that could measure how long the evaluation or the local head takes, by the port or by the end of the
process, would learn of labels what ε does not allow. So each look at true labels is caught here, and what can be seen
of the label party at that moment is noted. `evaluate_run` computes the metrics and the head, in another process.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tpsl import metrics
from tpsl.data.dataset import load
from tpsl.data.true_labels import TrueLabels
from tpsl.model.predictors import PredictionError
from tpsl.model.trained import TrainedModel
from tpsl.net.certificates import Certificates
from tpsl.net.client import LabelClient
from tpsl.net.connection import Patience, Terms
from tpsl.net.failures import BadMessage, JobStopped, PeerMissing
from tpsl.net.messages import Message
from tpsl.run import after_training
from tpsl.run.after_training import evaluate_run
from tpsl.run.evaluation import TEST_METRICS
from tpsl.run.job import Job, make_job
from tpsl.run.job_agreement import agreement, limits
from tpsl.run.local import Local
from tpsl.run.observer import Observer, Watching
from tpsl.run.one_process import train
from tpsl.run.over_network import serve
from tpsl.run.result import TrainResult
from tpsl.run.role import FeatureRole, FeatureRun
from tpsl.run.run_folder import RunError, RunFolder
from tpsl.run.setup import RunSetup
from tpsl.run.stages import attend_as_features
from tpsl.vault import Vault

LIMIT = 60.0
ESTABLISHED, CLOSE_WAIT, LISTENING = "01", "08", "0A"
"""States of a socket that this machine has not closed, as Linux writes them."""


@pytest.fixture
def job() -> Job:
    content = {
        "data": {"source": "synthetic", "rows": 400, "numeric_fields": 3, "categorical_fields": 2},
        "privacy": {"mechanism": "discrete", "epsilon": 1.0},
        "model": {"embedding_dim": 4, "bottom": [8], "top": [8]},
        "training": {"batch_size": 80, "epochs": 2, "checkpoint_every": 3, "head": "local", "patience": 0},
    }
    return make_job(content, {}, "test")


class Interrupted(Exception):
    pass


@dataclass(frozen=True)
class Sight:
    """What a peer can see while the label party does something with true labels."""

    what: str
    listens: bool
    connections: int


STORED = [Sight("labels stored", False, 0)]


class LabelParty:
    """`serve` in a thread, and what could be seen of it at each look at true labels."""

    def __init__(self, job: Job, folder: Path, certificates: Path) -> None:
        self.job, self.run = job, folder / "label"
        self.local = Local(certificates=certificates / "label", listen="127.0.0.1:0", silence=2.0, wait=1.0)
        self.port: int | None = None
        self.sights: list[Sight] = []
        self.crashes = False
        self._opened = threading.Event()

    def looks(self, what: str) -> None:
        """Note what can be seen; with `crashes`, end the process as far as a test can."""
        sight = Sight(what, self.port is not None and can_connect(self.port), open_connections(self.port))
        if sight not in self.sights:
            self.sights.append(sight)
        if self.crashes:
            raise Interrupted

    def starts(self, threads: ThreadPoolExecutor) -> Future[TrainResult]:
        party = self

        class Heard(Observer):
            def event(self, name: str, **facts: Any) -> None:
                if name == "listening":
                    party.port = int(str(facts["address"]).rpartition(":")[2])
                    party._opened.set()

        self.port = None
        self._opened.clear()
        return threads.submit(serve, self.job, self.local, self.run, watching=Watching(Heard()))

    def evaluated(self) -> TrainResult:
        """Do what the label party does when it likes, in another process than this; its looks are nobody's concern."""
        seen, self.sights = self.sights, []
        try:
            return evaluate_run(RunFolder(self.run), self.local)
        finally:
            self.sights = seen

    def listening(self) -> int:
        assert self._opened.wait(LIMIT)
        assert self.port is not None
        return self.port


def can_connect(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def open_connections(port: int | None) -> int:
    """How many sockets with this local port this machine has not closed: its end is what the other side sees."""
    count = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):  # gRPC listens with sockets of the second kind
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            count += int(local.rpartition(":")[2], 16) == port and state in (ESTABLISHED, CLOSE_WAIT, LISTENING)
    return count


@pytest.fixture
def label(job: Job, tmp_path: Path, certificates: Path, monkeypatch: pytest.MonkeyPatch) -> LabelParty:
    party = LabelParty(job, tmp_path, certificates)
    for what, place, name in (
        ("labels stored", Vault, "create"),
        ("evaluation", metrics, "log_loss"),
        ("local head", after_training, "train_local_head"),
    ):
        monkeypatch.setattr(place, name, looking(party, what, getattr(place, name)))
    opened = TrueLabels._open

    def read(labels: TrueLabels) -> Any:
        if party.port is not None:
            party.looks("true labels")
        return opened(labels)

    monkeypatch.setattr(TrueLabels, "_open", staticmethod(read))
    return party


def looking(party: LabelParty, what: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def looked(*arguments: Any, **named: Any) -> Any:
        party.looks(what)
        return real(*arguments, **named)

    return looked


@contextlib.contextmanager
def feature_party(label: LabelParty, folder: Path, certificates: Path) -> Iterator[tuple[FeatureRole, LabelClient]]:
    """A feature party that stays connected until the block ends, whatever it was told."""
    job = label.job
    side, run = load(job.data).feature_sides["feature"], RunFolder(folder / "feature")
    with run.started(job, ["feature"]):
        role = FeatureRole(RunSetup(job, run), side)
        with LabelClient(
            f"127.0.0.1:{label.listening()}",
            "feature",
            agreement(job, side.ids, role.schedule),
            Terms(limits(job, role.schedule), job.training.wire, Patience(2.0, 1.0)),
            certificates=Certificates.load(certificates / "feature"),
        ) as client:
            yield role, client


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


class Gone(Exception):
    pass


def leave_before_the_last_word(role: FeatureRole, client: LabelClient) -> None:
    """Hear that all is done, and never answer."""

    def gone(result: Any) -> None:
        raise Gone

    role.run.finish_party = gone  # type: ignore[method-assign]
    with pytest.raises(Gone):
        attend_as_features(FeatureRun([role], client))


def saw_nothing(label: LabelParty, result: TrainResult) -> None:
    """What has served has read no true label since its port was opened, and has left nothing computed from one."""
    assert label.sights == STORED
    written = RunFolder(label.run)
    assert all(math.isnan(getattr(result, name)) for name in TEST_METRICS)
    assert written.metrics() and not any(set(TEST_METRICS) & set(entry) for entry in written.metrics())
    assert {path.name for path in (label.run / "label" / "NOT-PRIVATE").iterdir()} == {"README.txt", "inputs.f32"}


def same_as_one_process(label: LabelParty, folder: Path) -> None:
    """Evaluated, the numbers are those of `train` with the same vault."""
    result, seen = label.evaluated(), list(label.sights)
    one = train(label.job, folder / "one", vault=RunFolder(label.run).vault())
    label.sights = seen
    measured = {"run": "", "seconds": 0.0, "samples_per_second": 0.0}
    assert replace(result, **measured) == replace(one, **measured)
    assert RunFolder(label.run).result() == result
    for name in ("label/metrics.jsonl", "label/NOT-PRIVATE/result.json", "label/NOT-PRIVATE/local_head.safetensors"):
        assert (label.run / name).read_bytes() == (folder / "one" / name).read_bytes()


def test_a_party_that_stays_after_the_goodbye_sees_nothing(
    label: LabelParty, tmp_path: Path, certificates: Path, threads: ThreadPoolExecutor
) -> None:
    serving = label.starts(threads)
    with feature_party(label, tmp_path, certificates) as (role, client):
        # Two that only watch the port: neither says a word.
        watching = [socket.create_connection(("127.0.0.1", label.listening())) for _ in range(2)]
        attend_as_features(FeatureRun([role], client))
        result = serving.result(LIMIT)
        for connection in watching:
            connection.close()
    saw_nothing(label, result)
    same_as_one_process(label, tmp_path)


def test_nothing_is_seen_when_a_party_is_missing_at_the_end(
    label: LabelParty, tmp_path: Path, certificates: Path, threads: ThreadPoolExecutor
) -> None:
    serving = label.starts(threads)
    with feature_party(label, tmp_path, certificates) as (role, client):
        leave_before_the_last_word(role, client)
    result = serving.result(LIMIT)
    saw_nothing(label, result)
    same_as_one_process(label, tmp_path)


def test_a_second_start_opens_no_port_if_all_have_confirmed(
    label: LabelParty, tmp_path: Path, certificates: Path, threads: ThreadPoolExecutor
) -> None:
    serving = label.starts(threads)
    with feature_party(label, tmp_path, certificates) as (role, client):
        attend_as_features(FeatureRun([role], client))
        trained = serving.result(LIMIT)
    for _ in range(2):  # the second time the run is evaluated, which changes nothing for who serves
        label.crashes = True
        assert repr(label.starts(threads).result(LIMIT)) == repr(trained)
        assert label.port is None
        assert label.sights == STORED
        label.crashes = False
        same_as_one_process(label, tmp_path)


def test_an_evaluation_that_was_interrupted_is_done_again(
    label: LabelParty, tmp_path: Path, certificates: Path, threads: ThreadPoolExecutor
) -> None:
    serving = label.starts(threads)
    with feature_party(label, tmp_path, certificates) as (role, client):
        attend_as_features(FeatureRun([role], client))
        trained = serving.result(LIMIT)
    label.crashes = True
    with pytest.raises(Interrupted):
        label.evaluated()
    label.crashes = False
    saw_nothing(label, trained)
    with pytest.raises(PredictionError, match=r"the local head is not trained yet: `tpsl label evaluate "):
        TrainedModel.open(label.run).predictor(local_head=True)
    same_as_one_process(label, tmp_path)


def test_a_second_start_says_goodbye_and_looks_at_no_label(
    label: LabelParty, tmp_path: Path, certificates: Path, threads: ThreadPoolExecutor
) -> None:
    serving = label.starts(threads)
    with feature_party(label, tmp_path, certificates) as (role, client):
        leave_before_the_last_word(role, client)
    serving.result(LIMIT)
    serving = label.starts(threads)
    with feature_party(label, tmp_path, certificates) as (role, client):
        attend_as_features(FeatureRun([role], client))
        result = serving.result(LIMIT)
    saw_nothing(label, result)
    same_as_one_process(label, tmp_path)


def test_other_records_than_those_of_the_run_are_not_evaluated(
    label: LabelParty, tmp_path: Path, certificates: Path, threads: ThreadPoolExecutor
) -> None:
    with pytest.raises(RunError, match="has no job"):
        label.evaluated()
    serving = label.starts(threads)
    with feature_party(label, tmp_path, certificates) as (role, client):
        attend_as_features(FeatureRun([role], client))
        result = serving.result(LIMIT)
    noted = label.run / "label" / "records.json"
    noted.write_text(noted.read_text().replace('"digest": "', '"digest": "0'))
    with pytest.raises(RunError, match="was trained on other records than these"):
        label.evaluated()
    saw_nothing(label, result)


def test_an_error_ends_the_job_before_any_look_at_labels(
    label: LabelParty,
    tmp_path: Path,
    certificates: Path,
    threads: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serving = label.starts(threads)
    with feature_party(label, tmp_path, certificates) as (role, client):
        ask = client.ask

        def out_of_turn(method: str, step: int, part: int, said: Any) -> Any:
            return ask("Finish" if (method, step) == ("Step", 5) else method, step, part, said)

        monkeypatch.setattr(client, "ask", out_of_turn)
        with pytest.raises(JobStopped):
            attend_as_features(FeatureRun([role], client))
    with pytest.raises(BadMessage):
        serving.result(LIMIT)
    assert [entry["epoch"] for entry in RunFolder(label.run).metrics()] == [1]
    assert label.sights == STORED


def test_the_label_role_is_given_no_labels(job: Job) -> None:
    side = load(job.data).label_side
    assert not hasattr(side.records, "labels")
    assert not hasattr(side.records, "facts")


def test_nobody_can_keep_the_label_party_from_the_metrics_of_a_finished_run(
    label: LabelParty, tmp_path: Path, certificates: Path, threads: ThreadPoolExecutor
) -> None:
    serving = label.starts(threads)
    with feature_party(label, tmp_path, certificates) as (role, client):
        finish_party = role.run.finish_party

        def answer_with_rubbish(result: Any) -> None:
            finish_party(result)
            client.ask("Step", 7, 7, {"feature": Message()})

        role.run.finish_party = answer_with_rubbish  # type: ignore[method-assign]
        with pytest.raises((PeerMissing, JobStopped)):
            attend_as_features(FeatureRun([role], client))
    result = serving.result(LIMIT)
    saw_nothing(label, result)
    same_as_one_process(label, tmp_path)
