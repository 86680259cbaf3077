"""Joint prediction over mutual TLS: each party with a folder of its own, in a thread of its own."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch

from tpsl.heads.local_training import LocalHead
from tpsl.model.joint_prediction import METHODS, PREDICT, PredictionSetup, predict_as_feature, predict_as_label
from tpsl.model.predictors import PredictionError
from tpsl.model.records import NewRecords, predict_records, read_records
from tpsl.model.trained import TrainedModel
from tpsl.net.asking import NOTHING, Due
from tpsl.net.client import LabelClient
from tpsl.net.desk import Desk
from tpsl.net.failures import Refused
from tpsl.net.messages import Message
from tpsl.net.server import LabelServer
from tpsl.run import schedule
from tpsl.run.local import Local, LocalError, certificates_of
from tpsl.run.observer import Watching
from tpsl.run.one_process import train
from tpsl.run.run_folder import RunFolder
from tpsl.run.vaults import VaultChoice
from tpsl.vault import NO_LIMITS

PARTIES = ("shop", "bank", "label")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, shops: Any) -> Callable[..., Path]:
    """Runs of one process, by their parties and what they return; each is trained once."""
    made: dict[tuple[Any, ...], Path] = {}

    def run(*parties: str, returns: str = "nothing", number: int = 0) -> Path:
        key = (*parties, returns, number)
        if key not in made:
            folder = tmp_path_factory.mktemp("trained")
            found = shops.tables(300, seed=1)
            paths = shops.write(folder, {party: found[party] for party in (*parties, "label")})
            parts = {"prediction": {"returns": returns}, "training": {"head": "local"}}
            job = shops.table_job(paths, label_features=len(parties) > 1, **parts)
            train(job, folder / "run", vault=VaultChoice(policy=NO_LIMITS, scratch=number > 0))  # noise of its own
            made[key] = folder / "run"
        return made[key]

    return run


class Office:
    """The parties of a run, each with a folder that holds its own half and nothing else."""

    def __init__(self, run: Path, folder: Path, certificates: Path) -> None:
        self.whole, self.folder, self.certificates = run, folder, certificates
        self.notices: list[str] = []
        self.port, self._listening = "", threading.Event()
        folder.mkdir(mode=0o700)
        for party in PARTIES:
            if (run / party).exists():
                (folder / party).mkdir()
                shutil.copy(run / "job.yaml", folder / party)
                shutil.copytree(run / party, folder / party / party)
        shutil.copy(run / "result.json", folder / "label")

    def setup(self, party: str, **local: Any) -> PredictionSetup:
        place = {"listen": "127.0.0.1:0"} if party == "label" else {"connect": f"127.0.0.1:{self.port}"}
        mine = Local(certificates=self.certificates / party, silence=5.0, wait=20.0, **{**place, **local})
        return PredictionSetup(TrainedModel.open(self.folder / party), mine, Watching(notice=self._notice))

    def _notice(self, text: str) -> None:
        self.notices.append(text)
        if text.startswith("listening at "):
            self.port = text.rpartition(":")[2]
            self._listening.set()

    def label(self, records: NewRecords | None, **options: Any) -> Future[Any]:
        """Be the label party in another thread; return when it listens, or has failed."""
        local = options.pop("local", {})
        out, self._listening = self.folder / "label.parquet", threading.Event()
        pool = ThreadPoolExecutor(1)
        future = pool.submit(predict_as_label, self.setup("label", **local), records, out, **options)
        future.add_done_callback(lambda _: self._listening.set())
        assert self._listening.wait(60)
        pool.shutdown(wait=False)
        return future

    def feature(self, party: str, records: NewRecords, **options: Any) -> Future[Any]:
        local = options.pop("local", {})
        pool = ThreadPoolExecutor(1)
        out = self.folder / f"{party}.parquet"
        future = pool.submit(predict_as_feature, self.setup(party, **local), party, records, out, **options)
        pool.shutdown(wait=False)
        return future


def read(path: Path) -> dict[str, float]:
    table = pyarrow.parquet.read_table(path)
    return dict(zip(table["id"].to_pylist(), table["score"].to_pylist(), strict=True))


def new_records(shops: Any, run: Path, folder: Path, count: int = 50, first: int = 5000) -> dict[str, NewRecords]:
    found = shops.tables(count, seed=7, first=first)
    paths = shops.write(folder, {party: table for party, table in found.items() if (run / party).exists()})
    return {party: read_records(RunFolder(run), party, str(path)) for party, path in paths.items()}


def test_three_parties_compute_over_tls_what_one_process_does(
    trained: Callable[..., Path], shops: Any, certificates: Path, tmp_path: Path
) -> None:
    run = trained("shop", "bank")
    records, office = new_records(shops, run, tmp_path), Office(run, tmp_path / "office", certificates)
    label = office.label(records["label"])
    features = [office.feature(party, records[party]) for party in ("shop", "bank")]
    assert [feature.result(60) for feature in features] == [None, None]
    place, scored = label.result(60)
    predict_records(TrainedModel.open(run).halves(), records, ("0", "1")).write(tmp_path / "one.parquet", scored)
    assert read(place) == read(tmp_path / "one.parquet")
    assert not any("trained on" in notice for notice in office.notices)


def test_the_local_head_scores_after_everybody_has_left(
    trained: Callable[..., Path], shops: Any, certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained("shop", "bank")
    records, office = new_records(shops, run, tmp_path), Office(run, tmp_path / "office", certificates)
    predict, port_was_open = LocalHead.predict, []

    def watched(head: LocalHead, inputs: Any) -> Any:
        with socket.socket() as visitor:
            port_was_open.append(visitor.connect_ex(("127.0.0.1", int(office.port))) == 0)
        return predict(head, inputs)

    monkeypatch.setattr(LocalHead, "predict", watched)
    label = office.label(records["label"], local_head=True)
    for party in ("shop", "bank"):
        office.feature(party, records[party])
    place, scored = label.result(60)
    assert port_was_open == [False]
    assert place.name == "NOT-PRIVATE-label.parquet"
    predict_records(TrainedModel.open(run).halves(local_head=True), records, ("0", "1")).write(
        tmp_path / "one.parquet", scored
    )
    assert read(place) == read(tmp_path / "one.parquet")


def test_a_label_party_without_a_list_numbers_the_records_and_returns_scores(
    trained: Callable[..., Path], shops: Any, certificates: Path, tmp_path: Path
) -> None:
    run = trained("shop", returns="rounded")
    records, office = new_records(shops, run, tmp_path), Office(run, tmp_path / "office", certificates)
    label = office.label(None)
    returned = office.feature("shop", records["shop"], numbered=True).result(60)
    place, _ = label.result(60)
    scores = read(place)
    assert list(scores) == [f"{number:012d}" for number in range(1, 51)]
    rounded = [round(score, 2) for score in scores.values()]
    assert list(read(returned)) == records["shop"].ids.to_pylist()
    assert list(read(returned).values()) == pytest.approx(rounded, abs=1e-7)
    assert any("nobody can tell whether of records that were trained on" in notice for notice in office.notices)


def test_scores_of_training_records_are_warned_about_and_refused_of_a_local_head(
    trained: Callable[..., Path], shops: Any, certificates: Path, tmp_path: Path
) -> None:
    run = trained("shop", returns="score")
    office = Office(run, tmp_path / "office", certificates)
    records = new_records(shops, run, tmp_path, count=300, first=200)
    label = office.label(records["label"])
    office.feature("shop", records["shop"]).result(60)
    label.result(60)
    (warning,) = [notice for notice in office.notices if "were trained on" in notice]
    assert 40 < int(warning.split()[1]) <= 100
    with pytest.raises(PredictionError, match="trained on true labels, so its scores stay here"):
        office.label(records["label"], local_head=True).result(60)


def test_a_side_that_returns_less_is_named(
    trained: Callable[..., Path], shops: Any, certificates: Path, tmp_path: Path
) -> None:
    run = trained("shop", returns="score")
    records, office = new_records(shops, run, tmp_path), Office(run, tmp_path / "office", certificates)
    less: dict[str, Any] = {"local": {"returns": "nothing"}}
    label = office.label(records["label"], **less)
    with pytest.raises(
        Refused, match="returned differs: the label party has 'nothing', feature party 'shop' has 'score'"
    ):
        office.feature("shop", records["shop"]).result(60)
    assert office.feature("shop", records["shop"], **less).result(60) is None
    label.result(60)
    assert not (office.folder / "shop.parquet").exists()


def test_halves_of_different_runs_and_other_records_are_refused(
    trained: Callable[..., Path], shops: Any, certificates: Path, tmp_path: Path
) -> None:
    run, other = trained("shop"), trained("shop", number=1)
    records, office = new_records(shops, run, tmp_path), Office(run, tmp_path / "office", certificates)
    stranger = Office(other, tmp_path / "stranger", certificates)
    label = office.label(records["label"])
    stranger.port = office.port
    with pytest.raises(Refused, match=r"version of the half differs: .*these halves are of different runs"):
        stranger.feature("shop", records["shop"]).result(60)
    fewer = new_records(shops, run, tmp_path / "fewer", count=49)["shop"]
    with pytest.raises(
        Refused, match="number of records differs: the label party has '50', feature party 'shop' has '49'"
    ):
        office.feature("shop", fewer).result(60)
    others = new_records(shops, run, tmp_path / "others", first=5001)["shop"]
    with pytest.raises(Refused, match=r"the record ids differ: .*give both sides the same records, or align them"):
        office.feature("shop", others).result(60)
    with pytest.raises(Refused, match=r"records known by differs: .*needs a feature party with --numbered"):
        office.feature("shop", records["shop"], numbered=True).result(60)
    office.feature("shop", records["shop"]).result(60)
    label.result(60)


def test_a_feature_party_that_is_killed_comes_back_and_all_begin_again(
    trained: Callable[..., Path], shops: Any, certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "TEST_ROWS_AT_ONCE", 16)
    run = trained("shop", "bank")
    records, office = new_records(shops, run, tmp_path), Office(run, tmp_path / "office", certificates)
    label = office.label(records["label"])
    bank = office.feature("bank", records["bank"])
    setup = office.setup("shop")
    version = {"version of the half": setup.run.version("shop")}
    agreed, terms = setup.agreement(records["shop"], version, {}), setup.terms(setup.job.widest_share)
    certificates = certificates_of(setup.local, "shop")
    with LabelClient(str(setup.local.connect), "shop", agreed, terms, certificates=certificates) as client:
        client.agree({"shop": NOTHING})
        half = TrainedModel.open(run).halves().bottoms["shop"]
        assert records["shop"].inputs is not None
        share = half.embed(records["shop"].inputs, records["shop"].parts()[0])
        client.ask(PREDICT, 0, 0, {"shop": Message(tensor=share)})
    office.feature("shop", records["shop"]).result(60)
    bank.result(60)
    place, scored = label.result(60)
    predict_records(TrainedModel.open(run).halves(), records, ("0", "1")).write(tmp_path / "one.parquet", scored)
    assert read(place) == read(tmp_path / "one.parquet")
    assert "shop was restarted: beginning again" in office.notices


def test_a_label_party_that_is_killed_comes_back_and_all_begin_again(
    trained: Callable[..., Path], shops: Any, certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "TEST_ROWS_AT_ONCE", 16)
    run = trained("shop", returns="score")
    records, office = new_records(shops, run, tmp_path), Office(run, tmp_path / "office", certificates)
    setup = office.setup("label")
    version = {party: {"version of the half": found} for party, found in setup.run.versions().items()}
    agreed, terms = setup.agreement(records["label"], {}, version), setup.terms(setup.job.widest_share)
    desk = Desk(["shop"], agreed, terms)
    with LabelServer("127.0.0.1:0", desk, METHODS, certificates=certificates_of(setup.local, "label")) as server:
        office.port = str(server.port)
        shop = office.feature("shop", records["shop"])
        desk.start(dict.fromkeys(desk.gather(), NOTHING))
        due = Due(PREDICT, 0, 0, rows=16, widths={"shop": setup.job.model.cut_width("shop")})
        desk.take(due).answer_all(Message(tensor=torch.full((16, 1), 0.125)))
    label = office.label(records["label"], local={"listen": f"127.0.0.1:{server.port}"})
    returned = shop.result(60)
    place, _ = label.result(60)
    assert read(returned) == read(place)
    assert "label was restarted: beginning again" in office.notices


def test_what_is_missing_is_said_before_anybody_connects(
    trained: Callable[..., Path], shops: Any, certificates: Path, tmp_path: Path
) -> None:
    run = trained("shop", "bank")
    records, office = new_records(shops, run, tmp_path), Office(run, tmp_path / "office", certificates)
    with pytest.raises(PredictionError, match="the label party needs --records"):
        office.label(None).result(60)
    setup, nowhere = office.setup("label"), Local(certificates=certificates / "label")
    with pytest.raises(LocalError, match="needs an address to listen at"):
        predict_as_label(replace(setup, local=nowhere), records["label"], tmp_path / "scores.csv")
    alone = Local(certificates=certificates / "shop")
    with pytest.raises(LocalError, match="needs the label party's address"):
        predict_as_feature(replace(setup, local=alone), "shop", records["shop"], None)
    one = trained("shop", returns="score")
    with pytest.raises(PredictionError, match="the label party returns score: name a file for them with --out"):
        predict_as_feature(replace(setup, model=TrainedModel.open(one), local=alone), "shop", records["shop"], None)
