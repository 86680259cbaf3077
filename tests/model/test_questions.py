"""Questions and answers of a joint prediction: equal to one process, and suspicious of the other side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from tests.at_desk import LIMIT, AtDesk, attending

from tpsl.model.joint_prediction import (
    FINISH,
    MOST_NUMBERED,
    PREDICT,
    Collected,
    PredictingFeatureParty,
    PredictingLabelParty,
)
from tpsl.model.records import NewRecords, Scores, predict_records, read_records
from tpsl.model.trained import TrainedModel
from tpsl.net.agreement import Agreement
from tpsl.net.asking import NOTHING, AtHome, Due, Script
from tpsl.net.connection import Terms
from tpsl.net.desk import Desk
from tpsl.net.failures import NOT_FINITE, BadMessage, NetError
from tpsl.net.messages import Limits, Message
from tpsl.run import schedule
from tpsl.run.job_sections import PredictionConfig
from tpsl.run.observer import UNWATCHED
from tpsl.run.run_folder import RunFolder

NAMES = ("0", "1")
PARTIES = ("shop", "bank")
AGREED = Agreement({}, b"ids")


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "TEST_ROWS_AT_ONCE", 16)


@pytest.fixture
def records(three_parties: Path, shops: Any, tmp_path: Path) -> dict[str, NewRecords]:
    paths = shops.write(tmp_path, shops.tables(40, seed=8, first=5000))
    return {party: read_records(RunFolder(three_parties), party, str(path)) for party, path in paths.items()}


class Office:
    """All parties of a prediction at one desk; what the label party keeps goes to `written`."""

    def __init__(self, run: Path, records: dict[str, NewRecords], folder: Path, *, returns: str = "nothing") -> None:
        self.run, self.records, self.written = run, records, folder / "label.parquet"
        self.returned = PredictionConfig.model_validate({"returns": returns})
        self.desk = Desk(PARTIES, AGREED, Terms(Limits(16, 6), "float32"))

    def label(self, *, local_head: bool = False) -> PredictingLabelParty:
        model = TrainedModel.open(self.run)
        predictor, own = model.predictor(local_head=local_head), model.embedder("label")
        return PredictingLabelParty(
            predictor, own, self.records["label"], self.returned, self.keep, UNWATCHED, class_names=NAMES
        )

    def keep(self, collected: Collected, records: NewRecords) -> None:
        collected.scores().write(self.written, records)

    def feature(self, party: str) -> PredictingFeatureParty:
        embedder = TrainedModel.open(self.run).embedder(party)
        return PredictingFeatureParty(party, embedder, self.records[party], self.returned, NAMES, UNWATCHED)

    def at_desk(self, party: str) -> AtDesk:
        return AtDesk(self.desk, party, AGREED)

    def predict(self, act: Callable[[str], Any], **label: bool) -> list[Any]:
        """Let the feature parties act while the label party predicts; return what they return."""
        predicting = self.label(**label)
        attended = attending(self.desk, lambda: predicting.attend(self.desk))
        with ThreadPoolExecutor(2) as pool:
            results = [pool.submit(act, party) for party in PARTIES]
            attended.result(LIMIT)
            return [result.result(LIMIT) for result in results]

    def honestly(self, party: str) -> Scores:
        return self.feature(party).attend(self.at_desk(party))

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
    office.predict(office.honestly, local_head=local_head)
    assert office.scores() == read(tmp_path / "one.parquet")
    assert len(office.scores()) == 40


@pytest.mark.parametrize("returns", ["rounded", "score"])
def test_scores_come_back_as_the_job_allows(
    three_parties: Path, records: dict[str, NewRecords], tmp_path: Path, returns: str
) -> None:
    office = Office(three_parties, records, tmp_path, returns=returns)
    shop, bank = office.predict(office.honestly)
    shop.write(tmp_path / "shop.parquet", records["shop"])
    bank.write(tmp_path / "bank.parquet", records["bank"])
    kept = {name: np.float32(score) for name, score in office.scores().items()}
    expected = {name: float(score.round(2)) if returns == "rounded" else float(score) for name, score in kept.items()}
    assert read(tmp_path / "shop.parquet") == read(tmp_path / "bank.parquet") == expected


def zeros(rows: int, width: int = 6) -> Message:
    return Message(tensor=torch.zeros(rows, width))


HONEST = [(PREDICT, 0, 0, zeros(16)), (PREDICT, 0, 1, zeros(16)), (PREDICT, 0, 2, zeros(8)), (FINISH, 0, 0, NOTHING)]


def test_local_head_scores_are_not_returned(
    three_parties: Path, records: dict[str, NewRecords], tmp_path: Path
) -> None:
    """The setting is refused before anybody connects; here the party itself would send nothing either."""
    office = Office(three_parties, records, tmp_path, returns="score")

    def ask(party: str) -> list[Message]:
        desk = office.at_desk(party)
        desk.agree({party: NOTHING})
        return [desk.ask(*asked, {party: said})[party] for *asked, said in HONEST]

    for answers in office.predict(ask, local_head=True):
        assert len(answers) == 4 and all(answer.tensor is None for answer in answers)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({1: (PREDICT, 0, 1, zeros(16, 5))}, r"shape \(16, 5\), not \(16, 6\)"),
        ({1: (PREDICT, 0, 1, zeros(16, 7))}, r" sent 16 rows of 7 numbers, more than 16 rows of 6"),
        ({2: (PREDICT, 0, 2, zeros(9))}, r"shape \(9, 6\), not \(8, 6\)"),
        ({1: (PREDICT, 0, 1, NOTHING)}, "are missing"),
        ({1: (PREDICT, 0, 2, zeros(16))}, "sent Predict of step 0, part 2; expected was Predict of step 0, part 1"),
        ({1: (PREDICT, 1, 1, zeros(16))}, "sent Predict of step 1, part 1; expected was Predict of step 0, part 1"),
        ({1: (FINISH, 0, 0, NOTHING)}, "sent Finish of step 0, part 0; expected was Predict of step 0, part 1"),
        ({3: (PREDICT, 0, 3, zeros(8))}, "sent Predict of step 0, part 3; expected was Finish of step 0, part 0"),
        ({0: (PREDICT, 0, 0, Message(tensor=torch.full((16, 6), torch.nan)))}, "numbers that are not finite"),
        ({0: (PREDICT, 0, 0, Message(tensor=torch.full((16, 6), torch.inf)))}, "numbers that are not finite"),
    ],
)
def test_a_feature_party_is_not_believed(
    three_parties: Path, records: dict[str, NewRecords], tmp_path: Path, change: Mapping[int, Any], sentence: str
) -> None:
    office = Office(three_parties, records, tmp_path)

    def ask(party: str) -> None:
        desk = office.at_desk(party)
        with suppress(NetError):
            desk.agree({party: NOTHING})
            for place, honest in enumerate(HONEST):
                *asked, said = change.get(place, honest) if party == "shop" else honest
                desk.ask(*asked, {party: said})

    with pytest.raises(BadMessage, match=f"shop.*{sentence}") as refused:
        office.predict(ask)
    assert (refused.value.code == NOT_FINITE) == ("finite" in sentence)
    assert not office.written.exists()


def scores(rows: int = 16, value: float = 0.5, width: int = 1) -> Message:
    return Message(tensor=torch.full((rows, width), value))


def answering(*answers: Message) -> AtHome:
    """A label party that answers the parts with these."""

    def script() -> Script:
        for part, answer in enumerate(answers):
            question = yield Due(PREDICT, 0, part)
            question.answer_all(answer)
        question = yield Due(FINISH)
        question.answer_all()

    return AtHome(lambda said: (said, script()), "float32")


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        ([scores(value=1.5)], "the label party sent scores that do not lie between 0 and 1"),
        ([scores(), scores(value=-0.1)], "the label party sent scores that do not lie between 0 and 1"),
        ([scores(value=torch.nan)], "the label party contain numbers that are not finite"),
        ([scores(15)], r"the scores from the label party have shape \(15, 1\), not \(16, 1\)"),
        ([scores(width=2)], r"the scores from the label party have shape \(16, 2\), not \(16, 1\)"),
        ([scores(), NOTHING], "the scores from the label party are missing"),
    ],
)
def test_a_label_party_is_not_believed(
    three_parties: Path, records: dict[str, NewRecords], tmp_path: Path, answers: list[Message], sentence: str
) -> None:
    office = Office(three_parties, records, tmp_path, returns="score")
    honest = [scores(), scores(), scores(8)]
    with pytest.raises(BadMessage, match=sentence):
        office.feature("shop").attend(answering(*answers, *honest[len(answers) :]))
    assert office.feature("shop").attend(answering(*honest))
    with pytest.raises(BadMessage, match="the label party sent scores, and none are returned"):
        Office(three_parties, records, tmp_path).feature("shop").attend(answering(*honest))


def test_all_begin_again_with_the_first_part_and_forget_the_scores_that_came(
    three_parties: Path, records: dict[str, NewRecords], tmp_path: Path
) -> None:
    office = Office(three_parties, records, tmp_path, returns="score")
    parties = {party: office.feature(party) for party in PARTIES}
    predicting = office.label()
    attended = attending(office.desk, lambda: predicting.attend(office.desk))
    with ThreadPoolExecutor(2) as pool:
        bank = pool.submit(parties["bank"].attend, office.at_desk("bank"))
        first = office.at_desk("shop")
        first.agree({"shop": NOTHING})
        first.ask(PREDICT, 0, 0, {"shop": zeros(16)})
        shop = pool.submit(parties["shop"].attend, AtDesk(office.desk, "shop", AGREED, b"second"))
        attended.result(LIMIT)
    for party, found in (("shop", shop), ("bank", bank)):
        found.result(LIMIT).write(tmp_path / f"{party}.parquet", records[party])
        assert read(tmp_path / f"{party}.parquet") == office.scores()


@pytest.mark.parametrize("announced", [(), (0,), (MOST_NUMBERED + 1,), (4, 4)])
def test_only_a_number_of_records_within_reason_is_taken(three_parties: Path, announced: tuple[int, ...]) -> None:
    predictor, returned = TrainedModel.open(three_parties).predictor(), PredictionConfig()
    party = PredictingLabelParty(predictor, None, None, returned, lambda *_: None, UNWATCHED, class_names=NAMES)
    with pytest.raises(BadMessage, match=r"'shop' announces .* records; from 1 to 10,000,000 are taken"):
        party.begin({"shop": Message(numbers=announced)})
