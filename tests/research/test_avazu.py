from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from tpsl.data.dataset import load, load_feature_party, load_label_party
from tpsl.data.true_labels import reveal
from tpsl.tables import DataError
from tpsl_research.clicklog import AvazuData, convert

Lines = Callable[..., list[str]]


def written(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines))
    return path


@pytest.fixture
def lines(avazu_lines: Lines) -> list[str]:
    return avazu_lines(120)


def test_records_are_those_of_the_lines(tmp_path: Path, lines: list[str]) -> None:
    config = AvazuData(path=written(tmp_path / "train.csv", lines), min_count=1)
    dataset = load(config)
    values = [line.split(",") for line in lines[1:]]
    assert dataset.ids.to_pylist() == [record[0] for record in values]
    assert reveal(dataset.labels).tolist() == [int(record[1]) for record in values]
    assert dataset.test.tolist() == list(range(96, 120))
    features = dataset.feature_parties["feature"]
    assert features.numeric.shape == (120, 0)
    assert len(features.categorical_fields) == 23
    first_row = 0
    for field, name in enumerate(features.categorical_fields):
        if name == "hour hour":
            keys = [str(int(record[2][6:])) for record in values]
        elif name == "hour weekday":
            keys = [str(date(2014, 10, int(record[2][4:6])).weekday()) for record in values]
        else:
            keys = [record[lines[0].split(",").index(name)] for record in values]
        kept = sorted(set(keys[:96]))
        expected = [2 + kept.index(key) if key in kept else 0 for key in keys]
        assert (features.categorical[:, field] - first_row).tolist() == expected
        first_row += 2 + len(kept)
    assert features.embedding_rows == first_row


def test_each_party_loads_by_itself(tmp_path: Path, lines: list[str]) -> None:
    config = AvazuData(path=written(tmp_path / "train.csv", lines), rows=60)
    both, feature, label = load(config), load_feature_party(config), load_label_party(config)
    assert len(both) == 60
    assert np.array_equal(feature.features.categorical, both.feature_parties["feature"].categorical)
    assert np.array_equal(reveal(label.labels), reveal(both.labels))
    assert feature.ids.equals(label.records.ids)


def replaced(lines: list[str], number: int, column: str, value: str) -> None:
    values = lines[number - 1].split(",")
    values[lines[0].split(",").index(column)] = value
    lines[number - 1] = ",".join(values)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("id", "", "the id is missing"),
        ("id", "-5", "'-5' is not a record id"),
        ("id", "1e19", "'1e19' is not a record id"),
        ("id", str(2**64), "'18446744073709551616' is not a record id, a whole number of up to 64 bits"),
        ("click", "2", "'2' is not a label; labels are 0, 1"),
        ("hour", "14102124", "'14102124' cannot be read as a time"),
        ("hour", "14023000", "'14023000' cannot be read as a time"),
        ("hour", "2014102100", "'2014102100' cannot be read as a time"),
        ("hour", "", "the time is missing"),
        ("C21", "79,1", "25 columns instead of 24"),
    ],
)
def test_an_error_names_the_line(tmp_path: Path, lines: list[str], column: str, value: str, message: str) -> None:
    replaced(lines, 78, column, value)
    with pytest.raises(DataError, match=rf"train\.csv: (column '{column}'|cannot be read), row 77: {message}"):
        load(AvazuData(path=written(tmp_path / "train.csv", lines)))


def test_a_repeated_id_is_named_with_both_lines(tmp_path: Path, lines: list[str]) -> None:
    replaced(lines, 102, "id", lines[7].split(",")[0])
    path = written(tmp_path / "train.csv", lines)
    message = rf"train\.csv: id '{lines[7].split(',')[0]}' stands in row 7 and in row 101; 1 rows repeat an id"
    for of_party in (load, load_feature_party, load_label_party):
        with pytest.raises(DataError, match=message):
            of_party(AvazuData(path=path))
    assert len(load(AvazuData(path=path, rows=100))) == 100


def test_the_header_must_be_the_genuine_one(tmp_path: Path, lines: list[str]) -> None:
    for changed in (lines[1:], ["id,click", *lines[1:]], []):
        with pytest.raises(DataError, match=r"train\.csv: there is no column '(id|hour)'; the columns are"):
            load(AvazuData(path=written(tmp_path / "train.csv", changed)))
    with pytest.raises(DataError, match=r"train\.csv: the file has no records"):
        load(AvazuData(path=written(tmp_path / "train.csv", lines[:1])))


LOADERS = [load, load_feature_party, load_label_party]


@pytest.mark.parametrize("converted", [False, True], ids=["file", "converted"])
def test_a_file_that_is_not_in_order_of_time_is_not_split_by_time(
    tmp_path: Path, lines: list[str], converted: bool
) -> None:
    header, *records = lines
    shuffled = [*records[:70], records[110], *records[70:110], *records[111:]]  # record 72 is earlier than record 71
    config = AvazuData(path=written(tmp_path / "train.csv", [header, *shuffled]))
    if converted:
        config = convert(config, tmp_path / "converted")
    sentence = f"^{config.path}.*: record 72 is earlier than the one before it, .* set data.split to random$"
    for loader in LOADERS:
        with pytest.raises(DataError, match=sentence):
            loader(config)
        assert loader(config.model_copy(update={"split": "random"}))
        assert loader(config.model_copy(update={"rows": 71}))
        with pytest.raises(DataError, match=sentence):
            loader(config.model_copy(update={"rows": 72}))


def test_a_folder_that_does_not_say_whether_it_is_in_order_is_not_split_by_time(
    tmp_path: Path, lines: list[str]
) -> None:
    config = convert(AvazuData(path=written(tmp_path / "train.csv", lines)), tmp_path / "converted")
    path = config.path / "label.parquet"
    pyarrow.parquet.write_table(pyarrow.parquet.read_table(path).drop_columns("hour"), path)
    with pytest.raises(DataError, match="there is no column 'hour'"):
        load_label_party(config)
    assert load_label_party(config.model_copy(update={"split": "random"}))
