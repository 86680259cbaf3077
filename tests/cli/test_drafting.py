"""A first description of tables: guesses, and what a person says instead."""

from pathlib import Path

import pytest

from tpsl.cli.drafting import JobDraft, Wishes, draft_tables
from tpsl.cli.guessing import sample_of
from tpsl.tables import DataError

ROWS = 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = [f"c{i},{i % 7},{'ab'[i % 2]},{1 + i % 28}/0{1 + i % 9}/2024,{i % 3}" for i in range(ROWS)]
    (tmp_path / "shop.csv").write_text("\n".join(["customer,visits,plan,day,level", *lines, ""]))
    labels = [f"c{i},{['no', 'yes'][i % 2]},{i},{1 + i % 28}/0{1 + i % 9}/2024" for i in reversed(range(ROWS))]
    (tmp_path / "bank.csv").write_text("\n".join(["client,paid,amount,day", *labels, ""]))
    return tmp_path


def draft(folder: Path, **wishes: object) -> JobDraft:
    shop, bank = sample_of(folder / "shop.csv"), sample_of(folder / "bank.csv")
    return draft_tables([shop], bank, Wishes.model_validate(wishes))


def test_guesses_become_the_data_of_a_job(folder: Path) -> None:
    assert draft(folder).data(folder / "jobs") == {
        "source": "table",
        "features": [
            {
                "party": "feature",
                "path": "../shop.csv",
                "id": "customer",
                "categorical": ["plan"],
                "numeric": ["visits", "level"],
                "dates": ["day"],
                "date_order": "day",
            }
        ],
        "label": {"party": "label", "path": "../bank.csv", "id": "client", "label": "paid"},
        "class_values": ["no", "yes"],
    }


def test_what_a_person_says_takes_the_place_of_guesses(folder: Path) -> None:
    said = draft(
        folder,
        id=("customer", "client"),
        positive="no",
        categorical=("level",),
        numeric=("amount",),
        drop=("visits",),
        time="day",
        date_order="day",
    )
    found = said.data(None)
    (shop,) = found["features"]
    assert (shop["categorical"], shop.get("numeric"), shop["path"]) == (["plan", "level"], None, "shop.csv")
    assert found["label"]["numeric"] == ["amount"]
    assert [shop["time"], found["label"]["time"], found["label"]["date_order"]] == ["day", "day", "day"]
    assert found["split"] == "chronological"
    assert found["class_values"] == ["yes", "no"]


def test_one_table_may_hold_features_and_labels(folder: Path) -> None:
    bank = sample_of(folder / "bank.csv")
    found = draft_tables([bank], bank, Wishes(drop=("day",))).data(None)
    assert found["features"] == [{"party": "feature", "path": "bank.csv", "id": "client", "numeric": ["amount"]}]
    assert found["label"]["label"] == "paid"


def test_records_without_a_label_are_refused(folder: Path) -> None:
    text = (folder / "bank.csv").read_text().replace(",yes,39,", ",NA,39,").replace(",no,2,", ",,2,")
    (folder / "bank.csv").write_text(text)
    with pytest.raises(
        DataError, match=r"bank\.csv: 2 of 40 records have no label in column 'paid', and training needs one: remove"
    ):
        draft(folder)


def test_several_feature_parties_are_called_as_their_files_are(folder: Path) -> None:
    (folder / "Web shop.csv").write_bytes((folder / "shop.csv").read_bytes())
    samples = [sample_of(folder / name) for name in ("shop.csv", "Web shop.csv")]
    drafted = draft_tables(samples, sample_of(folder / "bank.csv"), Wishes())
    assert [file.party for file in drafted.files] == ["shop", "web-shop", "label"]


@pytest.mark.parametrize(
    ("wishes", "sentence"),
    [
        ({"drop": ("vists",)}, "there is no column 'vists'; the columns are 'customer', 'visits'"),
        ({"id": ("customer",)}, r"bank\.csv: has no column 'customer'; name its id too"),
        ({"time": "amount"}, r"shop\.csv: there is no column 'amount', and the time is one at each party"),
        ({"drop": ("plan",), "numeric": ("plan",)}, "column 'plan' is given more than one kind"),
        ({"drop": ("plan", "visits", "level", "day")}, r"shop\.csv: no column can be learned from"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(folder: Path, wishes: dict[str, object], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        draft(folder, **wishes)
