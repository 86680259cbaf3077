"""Joint prediction over channels: equal to one process, and suspicious of the other side."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch

from tpsl.prediction.collecting import Collecting, Scoring
from tpsl.prediction.exchange import (
    EMBEDDINGS,
    MOST_NUMBERED,
    SCORES,
    PredictingFeatureParty,
    PredictingLabelParty,
)
from tpsl.prediction.local_head import load_embedder, load_predictor
from tpsl.prediction.model import TrainedModel
from tpsl.prediction.one_process import predict_records
from tpsl.prediction.records import NewRecords, read_records
from tpsl.training import schedule
from tpsl.training.job import PredictionConfig
from tpsl.training.observer import UNWATCHED
from tpsl.training.run_folder import RunFolder
from tpsl.transport.channel import Channel, JobStopped
from tpsl.transport.checks import BadMessage
from tpsl.transport.in_process import InProcessMeeting, pair, run_together
from tpsl.transport.messages import Announcement, Bye, Message, Start, Stop, TensorMessage

NAMES = ("0", "1")
Hostile = Callable[[Channel], Coroutine[Any, Any, None]]


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "TEST_ROWS_AT_ONCE", 16)


@pytest.fixture
def records(three_parties: Path, shops: Any, tmp_path: Path) -> dict[str, NewRecords]:
    paths = shops.write(tmp_path, shops.tables(40, seed=8, first=5000))
    return {party: read_records(RunFolder(three_parties), party, str(path)) for party, path in paths.items()}


class Office:
    """All parties of a prediction in one process; what the label party keeps goes to `written`."""

    def __init__(self, run: Path, records: dict[str, NewRecords], folder: Path, *, returns: str = "nothing") -> None:
        self.run, self.records, self.written = run, records, folder / "label.parquet"
        self.returned = PredictionConfig.model_validate({"returns": returns})

    def label(self, *, local_head: bool = False) -> PredictingLabelParty:
        predictor, own = load_predictor(self.run, local_head=local_head), load_embedder(self.run, "label")
        return PredictingLabelParty(
            Scoring(predictor, own, NAMES), self.records["label"], self.returned, self.keep, UNWATCHED
        )

    def keep(self, collected: Collecting, records: NewRecords) -> None:
        collected.scores().write(self.written, records)

    def feature(self, party: str) -> PredictingFeatureParty:
        embedder = load_embedder(self.run, party)
        return PredictingFeatureParty(embedder, self.records[party], self.returned, NAMES, UNWATCHED)

    def predict(self, **label: bool) -> list[Any]:
        """Let all parties predict; return what they return."""
        ends = {party: pair(("label", party), "float32") for party in ("shop", "bank")}
        meeting = InProcessMeeting({party: end for party, (end, _) in ends.items()})
        features = [self.feature(party).attend(InProcessMeeting({"label": end})) for party, (_, end) in ends.items()]
        return run_together(self.label(**label).attend(meeting), *features)

    def scores(self) -> dict[str, float]:
        return read(self.written)


def read(path: Path) -> dict[str, float]:
    table = pyarrow.parquet.read_table(path)
    return dict(zip(table["id"].to_pylist(), table["score"].to_pylist(), strict=True))


@pytest.mark.parametrize("local_head", [False, True], ids=["private head", "local head"])
def test_three_parties_compute_what_one_process_does(
    three_parties: Path, records: dict[str, NewRecords], tmp_path: Path, local_head: bool
) -> None:
    network = TrainedModel.open(three_parties).halves(local_head=local_head)
    predict_records(network, records, NAMES).write(tmp_path / "one.parquet", records["label"])
    office = Office(three_parties, records, tmp_path)
    office.predict(local_head=local_head)
    assert office.scores() == read(tmp_path / "one.parquet")
    assert len(office.scores()) == 40


@pytest.mark.parametrize("returns", ["rounded", "score"])
def test_scores_come_back_as_the_job_allows(
    three_parties: Path, records: dict[str, NewRecords], tmp_path: Path, returns: str
) -> None:
    office = Office(three_parties, records, tmp_path, returns=returns)
    _, shop, bank = office.predict()
    shop.write(tmp_path / "shop.parquet", records["shop"])
    bank.write(tmp_path / "bank.parquet", records["bank"])
    kept = {name: np.float32(score) for name, score in office.scores().items()}
    expected = {name: float(score.round(2)) if returns == "rounded" else float(score) for name, score in kept.items()}
    assert read(tmp_path / "shop.parquet") == read(tmp_path / "bank.parquet") == expected


def test_local_head_scores_are_not_returned(
    three_parties: Path, records: dict[str, NewRecords], tmp_path: Path
) -> None:
    """The setting is refused before anybody connects; here the party itself would send nothing either."""
    sent: list[Message] = []

    async def listen(channel: Channel) -> None:
        share = load_embedder(three_parties, "shop")
        held, parts = records["shop"].inputs, records["shop"].parts()
        assert held is not None
        while not isinstance(message := await channel.receive(), Bye):
            sent.append(message)
            if isinstance(message, Start):
                embeddings = share.embed(held, parts[message.step])
                await channel.send(TensorMessage(EMBEDDINGS, message.round, message.step, embeddings))

    office = Office(three_parties, records, tmp_path, returns="score")
    ends = {party: pair(("label", party), "float32") for party in ("shop", "bank")}
    meeting = InProcessMeeting({party: end for party, (end, _) in ends.items()})
    office.returned = PredictionConfig(returns="nothing")
    bank = office.feature("bank").attend(InProcessMeeting({"label": ends["bank"][1]}))
    office.returned = PredictionConfig(returns="score")
    run_together(office.label(local_head=True).attend(meeting), listen(ends["shop"][1]), bank)
    assert {type(message) for message in sent} == {Start}


def answering(*changes: tuple[int, Callable[[TensorMessage], Message]]) -> Hostile:
    """A feature party that answers each request with zeros, but for these parts with something else."""

    async def attend(channel: Channel) -> None:
        while isinstance(message := await channel.receive(), Start):
            rows = 16 if message.step < 2 else 8
            honest = TensorMessage(EMBEDDINGS, message.round, message.step, torch.zeros(rows, 6))
            await channel.send(dict(changes).get(message.step, lambda honest: honest)(honest))

    return attend


def changed(**fields: Any) -> Callable[[TensorMessage], Message]:
    return lambda honest: TensorMessage(**{**vars(honest), **fields})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ((1, changed(tensor=torch.zeros(16, 7))), r"from shop have shape \(16, 7\), not \(16, 6\)"),
        ((2, changed(tensor=torch.zeros(9, 6))), r"from shop have shape \(9, 6\), not \(8, 6\)"),
        ((0, changed(tensor=torch.full((16, 6), torch.nan))), "from shop contain numbers that are not finite"),
        ((0, changed(tensor=torch.full((16, 6), torch.inf))), "from shop contain numbers that are not finite"),
        ((1, changed(part=2)), "shop sent embeddings to predict of step 1, part 2; expected was step 1, part 1"),
        ((1, changed(step=0)), "shop sent embeddings to predict of step 0, part 1; expected was step 1, part 1"),
        ((1, changed(topic=SCORES)), "shop sent scores; expected was embeddings to predict"),
        ((0, lambda _: Stop("no more")), "shop stopped the job: no more"),
        ((0, lambda _: Bye()), "shop sent Bye; expected was embeddings to predict"),
    ],
)
def test_a_feature_party_is_not_believed(
    three_parties: Path,
    records: dict[str, NewRecords],
    tmp_path: Path,
    change: tuple[int, Callable[[TensorMessage], Message]],
    sentence: str,
) -> None:
    office = Office(three_parties, records, tmp_path)
    ends = {party: pair(("label", party), "float32") for party in ("shop", "bank")}
    meeting = InProcessMeeting({party: end for party, (end, _) in ends.items()})
    others = [answering(change)(ends["shop"][1]), answering()(ends["bank"][1])]
    with pytest.raises((BadMessage, JobStopped), match=sentence):
        run_together(office.label().attend(meeting), *others)
    assert not office.written.exists()


def asking(*messages: Message) -> Hostile:
    """A label party that sends these messages, one after each answer."""

    async def attend(channel: Channel) -> None:
        for message in messages:
            await channel.send(message)
            if isinstance(message, Start):
                await channel.receive()

    return attend


def scores(part: int, rows: int = 16, value: float = 0.5, width: int = 1) -> TensorMessage:
    return TensorMessage(SCORES, 1, part, torch.full((rows, width), value))


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ([Start(1, 1)], "label asks for part 1, which is not due"),
        ([Start(1, 0), scores(0), Start(1, 0)], "label asks for part 0, which is not due"),
        ([Start(1, 0), Start(1, 1)], "label asks for part 1, which is not due"),
        ([Bye()], "label says goodbye after 0 of 3 parts"),
        ([Start(1, 0), scores(0), Bye()], "label says goodbye after 1 of 3 parts"),
        ([scores(0)], "label sent scores, which are not due"),
        ([Start(1, 0), scores(0), scores(1)], "label sent scores, which are not due"),
        ([Start(1, 0), scores(0, value=1.5)], "label sent scores that do not lie between 0 and 1"),
        ([Start(1, 0), scores(0, value=-0.1)], "label sent scores that do not lie between 0 and 1"),
        ([Start(1, 0), scores(0, value=torch.nan)], "the scores from label contain numbers that are not finite"),
        ([Start(1, 0), scores(0, rows=15)], r"the scores from label have shape \(15, 1\), not \(16, 1\)"),
        ([Start(1, 0), scores(0, width=2)], r"the scores from label have shape \(16, 2\), not \(16, 1\)"),
        ([Start(1, 0), scores(1)], "label sent scores of step 1, part 1; expected was step 1, part 0"),
        ([Announcement(b"", (3,))], "label sent Announcement; expected was scores or Start or Bye"),
    ],
)
def test_a_label_party_is_not_believed(
    three_parties: Path, records: dict[str, NewRecords], tmp_path: Path, messages: Sequence[Message], sentence: str
) -> None:
    office = Office(three_parties, records, tmp_path, returns="score")
    label, feature = pair(("label", "shop"), "float32")
    party = office.feature("shop").attend(InProcessMeeting({"label": feature}))
    with pytest.raises(BadMessage, match=sentence):
        run_together(asking(*messages)(label), party)


def test_a_new_round_begins_with_the_first_part_and_forgets_the_scores_of_the_old_one(
    three_parties: Path, records: dict[str, NewRecords], tmp_path: Path
) -> None:
    office = Office(three_parties, records, tmp_path, returns="score")
    label, feature = pair(("label", "shop"), "float32")
    second = [
        message
        for part in range(3)
        for message in (
            Start(2, part),
            TensorMessage(SCORES, 2, part, torch.full((16 if part < 2 else 8, 1), 0.25)),
        )
    ]
    old = [Start(1, 0), scores(0), Start(1, 1)]
    party = office.feature("shop").attend(InProcessMeeting({"label": feature}))
    _, found = run_together(asking(*old, *second, Bye())(label), party)
    found.write(tmp_path / "shop.parquet", records["shop"])
    assert set(read(tmp_path / "shop.parquet").values()) == {0.25}


@pytest.mark.parametrize("announced", [(), (0,), (MOST_NUMBERED + 1,), (4, 4)])
def test_only_a_number_of_records_within_reason_is_taken(
    three_parties: Path, announced: tuple[int, ...], tmp_path: Path
) -> None:
    async def announce(channel: Channel) -> None:
        await channel.send(Announcement(b"", announced))

    label, feature = pair(("label", "shop"), "float32")
    scoring = Scoring(load_predictor(three_parties), None, NAMES)
    party = PredictingLabelParty(scoring, None, PredictionConfig(), lambda *_: None, UNWATCHED)
    with pytest.raises(BadMessage, match=r"shop announces .* records; from 1 to 10,000,000 are taken"):
        run_together(party.attend(InProcessMeeting({"shop": label})), announce(feature))
