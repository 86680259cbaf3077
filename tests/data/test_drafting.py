"""A first description of tables: guesses, and what is named instead."""

from pathlib import Path

import pytest

from tpsl.data.guessing import DataDraft, draft_data, sample_of
from tpsl.tables import DataError

ROWS = 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = [f"c{i},{i % 7},{'ab'[i % 2]},{1 + i % 28}/0{1 + i % 9}/2024,{i % 3}" for i in range(ROWS)]
    (tmp_path / "shop.csv").write_text("\n".join(["customer,visits,plan,day,level", *lines, ""]))
    labels = [f"c{i},{['no', 'yes'][i % 2]},{i},{1 + i % 28}/0{1 + i % 9}/2024" for i in reversed(range(ROWS))]
    (tmp_path / "bank.csv").write_text("\n".join(["client,paid,amount,day", *labels, ""]))
    return tmp_path


def draft(folder: Path, *ids: str, label: str | None = None) -> DataDraft:
    shop, bank = sample_of(folder / "shop.csv"), sample_of(folder / "bank.csv")
    return draft_data([shop], bank, ids, label)


def test_guesses_become_the_data_of_a_job(folder: Path) -> None:
    assert draft(folder).content(folder / "jobs") == {
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


def test_ids_and_the_label_can_be_named(folder: Path) -> None:
    found = draft(folder, "customer", "amount", label="paid").content(None)
    assert [found["features"][0]["id"], found["label"]["id"], found["label"]["label"]] == [
        "customer",
        "amount",
        "paid",
    ]
    assert [found["features"][0]["path"], found["label"]["path"]] == ["shop.csv", "bank.csv"]


def test_one_table_may_hold_features_and_labels(folder: Path) -> None:
    bank = sample_of(folder / "bank.csv")
    (shop,) = draft_data([bank], bank).content(None)["features"]
    assert (shop["path"], shop["id"], shop["numeric"], shop["dates"]) == ("bank.csv", "client", ["amount"], ["day"])
    assert "categorical" not in shop


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
    drafted = draft_data(samples, sample_of(folder / "bank.csv"))
    assert [file.party for file in drafted.files] == ["shop", "web-shop", "label"]


def test_what_cannot_be_is_said_in_a_sentence(folder: Path) -> None:
    with pytest.raises(DataError, match="there is no column 'custmer'; the columns are 'customer', 'visits'"):
        draft(folder, "custmer")
    with pytest.raises(DataError, match=r"bank\.csv: has no column 'customer'; name its id too"):
        draft(folder, "customer")
    (folder / "shop.csv").write_text("customer,level\n" + "".join(f"c{i},1\n" for i in range(ROWS)))
    with pytest.raises(DataError, match=r"shop\.csv: no column can be learned from"):
        draft(folder)
