"""The curves that loggers write, read back with the tools that users read them with."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tpsl.data.dataset import load
from tpsl.run.after_training import AfterTraining
from tpsl.run.alone import all_parties
from tpsl.run.job import Job, make_job
from tpsl.run.loggers import LOGGERS, Curves, LoggedRun, LoggerError, TensorBoard, run_logger
from tpsl.run.observer import Fact, Observer, Observers, Watching
from tpsl.run.role import FeatureRole, LabelRole
from tpsl.run.run_folder import RunFolder
from tpsl.run.setup import RunSetup
from tpsl.run.stages import attend_as_features
from tpsl.run.vaults import RunVault

SMALL: dict[str, Any] = {
    "data": {
        "source": "synthetic",
        "rows": 1000,
        "numeric_fields": 3,
        "categorical_fields": 2,
        "largest_vocabulary": 8,
    },
    "privacy": {"mechanism": "laplace", "epsilon": 8.0, "estimator": "linear", "noise_seed": 1},
    "model": {"embedding_dim": 4, "bottom": [8], "top": [8]},
    "training": {"batch_size": 50, "epochs": 3, "validation": 0.5, "patience": 0},
}


def logged(folder: Path, party: str = "label") -> LoggedRun:
    return LoggedRun("run", party, folder, {})


class Remembering(Curves):
    """A logger that keeps what it is told."""

    def __init__(self, party: str = "label", every: float = 1.0) -> None:
        super().__init__(logged(Path("nowhere"), party))
        self.every = every
        self.begun: list[int] = []
        self.points: list[tuple[int, dict[str, float]]] = []
        self.finished: bool | None = None

    def begin(self, step: int) -> None:
        self.begun.append(step)

    def write(self, step: int, when: float, values: Mapping[str, float]) -> None:
        self.points.append((step, dict(values)))

    def end(self, finished: bool) -> None:
        self.finished = finished

    @property
    def names(self) -> set[str]:
        return {name for _, values in self.points for name in values}


def train_watched(job: Job, path: Path, at_label: Observer, at_feature: Observer) -> None:
    """Train with both real roles, each with its own logger, as two processes would."""
    data, run = load(job.data), RunFolder(path)
    with run.started(job, ["feature", "label"]):
        side = data.label_side
        setup = RunSetup(job, run, watching=Watching(at_label))
        vault = RunVault(setup, side, run.label / "vault", scratch=True)
        label = LabelRole(setup, side.records, vault)
        feature = FeatureRole(setup.watched_by(at_feature), data.feature_sides["feature"])
        with all_parties(label, [feature]) as parties:
            attend_as_features(parties)
        AfterTraining(setup, side).complete()


@pytest.fixture(scope="module")
def job() -> Job:
    return make_job(SMALL, {}, "test")


@pytest.fixture(scope="module")
def watched(job: Job, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Remembering, Remembering]:
    """A run whose label party wrote for TensorBoard too."""
    path = tmp_path_factory.mktemp("runs") / "run"
    at_label, at_feature = Remembering(every=0.0), Remembering("feature", every=0.0)
    drawn = TensorBoard(logged(path / "label"))
    drawn.every = 0.0
    label = Observers("label", [("memory", at_label), ("tensorboard", drawn)], pytest.fail)
    train_watched(job, path, label, at_feature)
    label.close()
    at_feature.close()
    return path, at_label, at_feature


def curves_of(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Read the curves as TensorBoard itself does."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(point.step, point.value) for point in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_the_label_partys_curves_are_its_metrics(watched: tuple[Path, Remembering, Remembering]) -> None:
    path, at_label, _ = watched
    entries = RunFolder(path).metrics()
    assert len(entries) == 3
    told: dict[int, dict[str, float]] = {}
    for step, values in at_label.points:
        told[step] = {**told.get(step, {}), **{key: values[key] for key in values if key != "samples_per_second"}}
    expected = {entry["step"]: {key: entry[key] for key in entry if key != "step"} for entry in entries}
    assert {step: values for step, values in told.items() if values} == expected
    # As two processes do it: test metrics come when the roles have ended, at the steps that they belong to.
    tested = ["test_auc" in values for _, values in at_label.points]
    assert tested == [False] * (len(tested) - 3) + [True] * 3
    speeds = [values["samples_per_second"] for _, values in at_label.points if "samples_per_second" in values]
    assert speeds and all(speed > 0 for speed in speeds)
    assert at_label.begun == [1] and at_label.finished is True


def test_tensorboard_reads_them_back(watched: tuple[Path, Remembering, Remembering]) -> None:
    path, _, _ = watched
    curves = curves_of(path / "label" / "tensorboard")
    for name in ("test_auc", "test_log_loss", "validation_auc", "epoch"):
        expected = [(entry["step"], pytest.approx(entry[name], rel=1e-6)) for entry in RunFolder(path).metrics()]
        assert curves[name] == expected
    assert curves["samples_per_second"]


def test_a_feature_party_writes_nothing_but_steps_and_speed(watched: tuple[Path, Remembering, Remembering]) -> None:
    _, _, at_feature = watched
    assert at_feature.names == {"samples_per_second"}
    # Not even if its role told it more than it should.
    logger = Remembering("feature")
    logger.event("epoch", epoch=1, test_auc=0.75)
    logger.event("local head", test_auc=0.75)
    logger.close()
    assert logger.points == []


def test_what_an_interrupted_run_wrote_beyond_its_checkpoint_is_void(tmp_path: Path) -> None:
    def attempt(steps: range, metric: float) -> None:
        logger = TensorBoard(logged(tmp_path), str(tmp_path))
        logger.every = 3600.0
        for step in steps:
            logger.at_step(step, 9, 10 * step)
            logger.event("epoch", epoch=step, test_auc=metric)
        logger.close()

    attempt(range(1, 7), 0.25)  # was killed; its last checkpoint is that of step 3
    time.sleep(1 - time.time() % 1)  # TensorBoard reads files in the order of their seconds
    attempt(range(4, 10), 0.75)
    values = curves_of(tmp_path)["test_auc"]
    assert values == [(step, 0.25 if step < 4 else 0.75) for step in range(1, 10)]


def test_a_rewind_in_one_process_is_a_new_beginning() -> None:
    logger = Remembering()
    for step in (1, 2, 3, 2, 3, 4):
        logger.at_step(step, 4, step)
    logger.event("epoch", epoch=1, test_auc=float("nan"), validation_auc=0.5)
    logger.close()
    assert logger.begun == [1, 2]
    assert logger.points == [(4, {"epoch": 1.0, "validation_auc": 0.5})]
    assert logger.finished is False


def test_a_logger_that_fails_is_given_up_and_the_others_go_on() -> None:
    class Failing(Remembering):
        def write(self, step: int, when: float, values: Mapping[str, float]) -> None:
            raise OSError("the server\nis gone")

    told: list[str] = []
    good = Remembering()
    everybody = Observers("label", [("far", Failing()), ("near", good)], told.append)
    for epoch in (1, 2):
        everybody.event("epoch", epoch=epoch)
    everybody.close()
    assert told == ["the logger far is given up: the server is gone"]
    assert len(good.points) == 2 and good.finished is False


def test_training_does_not_wait_for_a_slow_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    class Slow(Remembering):
        def write(self, step: int, when: float, values: Mapping[str, float]) -> None:
            assert released.wait(60)

    monkeypatch.setattr("tpsl.run.loggers._PATIENCE", 0.05)
    logger = Slow()
    for epoch in range(100):
        logger.event("epoch", epoch=epoch)
    with pytest.raises(LoggerError):
        logger.close()
    released.set()


def test_a_missing_library_is_one_sentence(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with (
        pytest.raises(LoggerError, match=r"^MLflow is not installed: `pip install 'tpsl\[mlflow\]'` gets it$"),
        run_logger(job, tmp_path / "run", "label", pytest.fail, ["mlflow=http://127.0.0.1:1"]),
    ):
        pytest.fail("it began")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with (
        pytest.raises(LoggerError, match=r"^TensorBoard is not installed"),
        run_logger(job, tmp_path / "run", "label", pytest.fail, ["tensorboard"]),
    ):
        pytest.fail("it began")
    # It was not asked for: then nothing is missing.
    with run_logger(job, tmp_path / "run", "label", pytest.fail) as logger:
        logger.at_step(1, 2, 10)
    assert not (tmp_path / "run").exists()


def test_tensorboard_is_used_where_it_is_installed(job: Job, tmp_path: Path) -> None:
    with run_logger(job, tmp_path / "run", "airport", pytest.fail) as logger:
        assert not (tmp_path / "run").exists()  # training makes it, and refuses one that it has not made
        logger.at_step(1, 2, 10)
    assert list((tmp_path / "run" / "airport" / "tensorboard").glob("events.out.tfevents.*"))
    with run_logger(job, tmp_path / "other", "airport", pytest.fail, ["none"]) as logger:
        logger.at_step(1, 2, 10)
    assert not (tmp_path / "other").exists()


def test_mlflow_gets_the_agreement_and_the_metrics(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "server").as_uri()

    def attempt(step: int, last: bool) -> None:
        (tmp_path / "run" / "label").mkdir(parents=True, exist_ok=True)
        with run_logger(job, tmp_path / "run", "label", pytest.fail, [f"mlflow={uri}"]) as logger:
            logger.at_step(step, 2, 10)
            logger.event("epoch", epoch=step, test_auc=0.5 + step / 10)
            if last:
                logger.event("finished")

    client = mlflow.MlflowClient(tracking_uri=uri)
    attempt(1, last=False)
    experiment = client.get_experiment_by_name("tpsl").experiment_id
    assert [run.info.status for run in client.search_runs([experiment])] == ["KILLED"]
    attempt(2, last=True)
    (run,) = client.search_runs([experiment])
    assert run.info.status == "FINISHED" and run.info.run_name == "run, label"
    with run_logger(job, tmp_path / "run", "label", pytest.fail, [f"mlflow={uri}"]):
        pass  # a finished run that is only read says nothing
    assert len(client.search_runs([experiment])) == 1
    assert (
        run.data.params["party"] == "label"
        and run.data.params["privacy.epsilon"] == "8.0"
        and run.data.params["job"] == job.digest()
    )
    history = client.get_metric_history(run.info.run_id, "test_auc")
    assert sorted((point.step, point.value) for point in history) == [(1, 0.6), (2, 0.7)]


def test_a_store_on_this_machine_is_made_for_its_owner_only(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason="MLflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.chdir(tmp_path)
    stores = {
        tmp_path / "plain": "plain",
        tmp_path / "named": (tmp_path / "named" / "store").as_uri(),
        tmp_path / "near.db": "sqlite:///near.db",
        tmp_path / "far": f"sqlite:///{tmp_path / 'far' / 'far.db'}",
    }
    before = os.umask(0)
    try:
        for uri in stores.values():
            # MLflow without SQLAlchemy cannot use a database, whose file is there by then.
            with suppress(LoggerError), run_logger(job, tmp_path / "run", "label", pytest.fail, [f"mlflow={uri}"]):
                pass
    finally:
        os.umask(before)
    made = {path: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert made == {path: 0o600 if path.suffix else 0o700 for path in stores}


def test_a_server_that_is_not_there_is_one_sentence_without_the_password(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason="MLflow is not installed")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with (
        pytest.raises(LoggerError, match=r"^MLflow cannot be used at http://127\.0\.0\.1:1 \(") as refused,
        run_logger(job, tmp_path, "label", pytest.fail, ["mlflow=http://me:secret@127.0.0.1:1"]),
    ):
        pytest.fail("it began")
    assert "secret" not in str(refused.value)


@pytest.fixture
def registered() -> list[Any]:
    """Loggers of a user's own, and what they were made from and told."""
    seen: list[Any] = []

    class Hearing(Observer):
        def at_step(self, done: int, total: int, records: int) -> None:
            if done == 3:
                raise KeyError("three")

        def event(self, name: str, **facts: Fact) -> None:
            seen.append((name, facts))

    def curves(run: LoggedRun, argument: str) -> Remembering:
        logger = Remembering()
        seen.extend([run, argument, logger])
        return logger

    LOGGERS.register("curves", curves)
    LOGGERS.register("hearing", lambda run, argument: Hearing())
    LOGGERS.register("broken", lambda run, argument: {}[argument])
    return seen


def test_a_logger_of_a_users_own_gets_the_curves_and_what_the_party_may_know(
    job: Job, tmp_path: Path, registered: list[Any]
) -> None:
    with run_logger(job, tmp_path / "run", "label", pytest.fail, ["curves=a=b"]) as logger:
        logger.event("epoch", epoch=1, test_auc=0.75)
    run, argument, curves = registered
    assert (run.name, run.party, run.folder) == ("run", "label", tmp_path / "run" / "label")
    assert run.agreement["privacy.epsilon"] == "8.0"
    assert argument == "a=b"
    assert curves.points == [(0, {"epoch": 1.0, "test_auc": 0.75})]


def test_an_observer_at_a_feature_party_hears_nothing_that_could_depend_on_labels(
    job: Job, tmp_path: Path, registered: list[Any]
) -> None:
    told: list[str] = []
    with run_logger(job, tmp_path / "run", "airport", told.append, ["hearing"]) as logger:
        logger.event("epoch", epoch=1, test_auc=0.75)
        logger.at_step(2, 4, 20)
        logger.event("checkpoint", step=2)
        logger.at_step(3, 4, 30)
        logger.event("checkpoint", step=3)
    assert registered == [("epoch", {"epoch": 1}), ("checkpoint", {"step": 2})]
    assert told == ["the logger hearing is given up: 'three'"]


def test_the_display_hears_what_the_loggers_hear(job: Job, tmp_path: Path) -> None:
    heard: list[Any] = []

    class Display(Observer):
        def gathered(self, channels: Mapping[str, Any]) -> None:
            heard.append(dict(channels))

        def at_step(self, done: int, total: int, records: int) -> None:
            heard.append((done, total, records))

        def waiting_for(self, peer: str | None) -> None:
            heard.append(peer)

        def event(self, name: str, **facts: Fact) -> None:
            heard.append((name, facts))

    for party in ("label", "airport"):
        with run_logger(job, tmp_path, party, pytest.fail, ["none"], {"display": Display()}) as observer:
            observer.gathered({})
            observer.at_step(1, 2, 50)
            observer.waiting_for("bank")
            observer.event("epoch", epoch=1, test_auc=0.75)
    steps = [{}, (1, 2, 50), "bank"]
    assert heard == [*steps, ("epoch", {"epoch": 1, "test_auc": 0.75}), *steps, ("epoch", {"epoch": 1})]


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("curvs", "unknown logger 'curvs'; known are tensorboard, mlflow, curves, hearing, broken, none"),
        ("broken=x", r"the logger 'broken' fails \(KeyError: 'x'\)"),
        ("mlflow", "MLflow needs the address of its server or store: mlflow=URI"),
    ],
)
def test_a_logger_that_cannot_be_had_is_one_sentence(job: Job, tmp_path: Path, name: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint), run_logger(job, tmp_path, "label", pytest.fail, [name]):
        pytest.fail("it began")
