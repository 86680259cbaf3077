"""Tables from files: alignment, encoding, and one clear sentence for everything that can be wrong with a file."""

import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tpsl.data.config import LabelFile, TableData, TableFile
from tpsl.data.dataset import load, load_feature_party, load_label_party
from tpsl.data.row_encoder import stable_hash
from tpsl.data.true_labels import reveal
from tpsl.tables import DataError

ROWS = 40


def columns() -> dict[str, list[Any]]:
    return {
        "id": [f"{(7 * i) % ROWS:03d}" for i in range(ROWS)],
        "colour": [["red", "green", "blue", None][i % 4] for i in range(ROWS)],
        "size": [float(i) if i % 5 else None for i in range(ROWS)],
        "when": [(3 * i) % 11 for i in range(ROWS)],
    }


def write(path: Path, content: dict[str, list[Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.table(content), path)
        return path
    cell = {None: ""}
    lines = [",".join(content)]
    lines += [",".join(str(cell.get(value, value)) for value in row) for row in zip(*content.values(), strict=True)]
    text = "\n".join(lines) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def config(folder: Path, feature: str = "feature.parquet", label: str = "label.csv", **options: Any) -> TableData:
    """Two files: the label party has the rows in reverse order, so that only the ids can bring them together."""
    feature_path, label_path = folder / feature, folder / label
    if not feature_path.exists():
        write(feature_path, columns())
    if not label_path.exists():
        mine = columns()
        content = {name: list(reversed(mine[name])) for name in ("id", "when")}
        content["label"] = [int(key) % 2 for key in content["id"]]
        write(label_path, content)
    time = "when" if options.get("split") == "chronological" else None
    roles = TableFile(path=feature_path, categorical=("colour",), numeric=("size",), time=time)
    return TableData(features=(roles,), label=LabelFile(path=label_path, time=time), **options)


def test_parties_meet_by_id_whatever_the_order_of_their_rows(tmp_path: Path) -> None:
    dataset = load(config(tmp_path))
    assert dataset.ids.to_pylist() == [f"{i:03d}" for i in range(ROWS)]
    assert reveal(dataset.labels).tolist() == [i % 2 for i in range(ROWS)]
    original = columns()
    row_of_id = {key: row for row, key in enumerate(original["id"])}
    missing = dataset.feature_parties["feature"].numeric[:, 1]
    expected = [original["size"][row_of_id[key]] is None for key in dataset.ids.to_pylist()]
    assert missing.tolist() == expected


@pytest.mark.parametrize("feature", ["feature.csv", "feature.csv.gz"])
def test_csv_and_parquet_give_the_same_data(tmp_path: Path, feature: str) -> None:
    from_parquet, from_csv = load(config(tmp_path)), load(config(tmp_path, feature=feature))
    ours, theirs = from_parquet.feature_parties["feature"], from_csv.feature_parties["feature"]
    assert np.array_equal(ours.categorical, theirs.categorical)
    assert np.array_equal(ours.numeric, theirs.numeric)
    assert ours.embedding_rows == theirs.embedding_rows


@pytest.mark.parametrize("split", ["random", "chronological"])
def test_one_side_alone_equals_its_part_of_the_whole(tmp_path: Path, split: str) -> None:
    both = config(tmp_path, split=split)
    whole = load(both)
    both.label.path.rename(tmp_path / "elsewhere.csv")
    feature = load_feature_party(both, "feature")  # the label party's file is out of reach
    assert feature.ids.equals(whole.ids)
    assert np.array_equal(feature.train, whole.train)
    assert np.array_equal(feature.test, whole.test)
    assert np.array_equal(feature.features.categorical, whole.feature_parties["feature"].categorical)
    (tmp_path / "elsewhere.csv").rename(both.label.path)
    both.features[0].path.unlink()
    label = load_label_party(both)
    assert label.records.ids.equals(whole.ids)
    assert np.array_equal(label.records.test, whole.test)
    assert np.array_equal(reveal(label.labels), reveal(whole.labels))
    assert label.records.features is None


def test_chronological_order_is_by_time_then_id(tmp_path: Path) -> None:
    dataset = load(config(tmp_path, split="chronological"))
    original = columns()
    expected = [key for _, key in sorted(zip(original["when"], original["id"], strict=True))]
    assert dataset.ids.to_pylist() == expected
    assert dataset.test.tolist() == list(range(32, 40))


def test_integer_ids_and_their_text_are_the_same_record_but_zeros_count(tmp_path: Path) -> None:
    write(tmp_path / "feature.parquet", {"id": [10, 9, 123], "colour": ["a", "b", "c"], "size": [1, 2, 3]})
    write(tmp_path / "label.csv", {"id": ["9", "123", "10"], "label": [0, 1, 0]})
    dataset = load(config(tmp_path, test_fraction=0.34))
    assert dataset.ids.to_pylist() == ["10", "123", "9"]
    assert reveal(dataset.labels).tolist() == [0, 1, 0]
    write(tmp_path / "label.csv", {"id": ["9", "123", "010"], "label": [0, 1, 0]})
    with pytest.raises(DataError, match=r"1 of 3 are only in the first and 1 of 3 only in the second, .*'10'"):
        load(config(tmp_path, test_fraction=0.34))


def test_several_feature_parties_and_features_at_the_label_party(tmp_path: Path) -> None:
    base = config(tmp_path)
    label_content = {"id": columns()["id"], "label": [0] * ROWS, "kind": ["x", "y"] * (ROWS // 2)}
    write(tmp_path / "own.csv", label_content)
    shop = base.features[0].model_copy(update={"party": "shop", "categorical": (), "path": base.features[0].path})
    label = LabelFile(path=tmp_path / "own.csv", categorical=("kind",))
    dataset = load(TableData(features=(*base.features, shop), label=label))
    assert list(dataset.feature_parties) == ["feature", "shop"]
    assert dataset.feature_parties["shop"].categorical.shape == (ROWS, 0)
    assert dataset.label_features is not None
    assert dataset.label_features.categorical_fields == ("kind",)
    with pytest.raises(DataError, match=r"no feature party 'bank' .* only feature"):
        load_feature_party(base, "bank")


def test_different_ids_are_an_error_with_counts_and_an_example(tmp_path: Path) -> None:
    write(tmp_path / "label.csv", {"id": [*columns()["id"][3:], "999"], "label": [0] * (ROWS - 2)})
    with pytest.raises(DataError) as error:
        load(config(tmp_path))
    assert "3 of 40 are only in the first and 1 of 38 only in the second" in str(error.value)
    assert "'000' only in party 'feature'" in str(error.value)


def test_times_that_disagree_are_an_error(tmp_path: Path) -> None:
    original = columns()
    when = [time + (key == "004") * 50 for time, key in zip(original["when"], original["id"], strict=True)]
    write(tmp_path / "label.csv", {"id": original["id"], "when": when, "label": [0] * ROWS})
    with pytest.raises(DataError, match="the times disagree"):
        load(config(tmp_path, split="chronological"))


def test_vocabulary_and_statistics_come_from_training_rows_only(tmp_path: Path) -> None:
    first = load(config(tmp_path))
    changed = columns()
    test_ids = {first.ids[int(row)].as_py() for row in first.test}
    for row, key in enumerate(changed["id"]):
        if key in test_ids:
            changed["colour"][row], changed["size"][row] = "never seen", 1e9
    write(tmp_path / "feature.parquet", changed)
    second = load(config(tmp_path))
    before, after = first.feature_parties["feature"], second.feature_parties["feature"]
    assert np.array_equal(before.take(first.train).categorical, after.take(first.train).categorical)
    assert np.array_equal(before.take(first.train).numeric, after.take(first.train).numeric)
    assert before.embedding_rows == after.embedding_rows
    assert (after.take(first.test).categorical == 0).all()  # the reserved row
    known = after.numeric[first.train, 0][after.numeric[first.train, 1] == 0]
    assert math.isclose(float(known.mean()), 0, abs_tol=1e-6)
    assert math.isclose(float(known.std()), 1, abs_tol=1e-6)


def test_rare_values_share_a_row_and_missing_has_its_own(tmp_path: Path) -> None:
    colour = ["common"] * 30 + [f"rare {i}" for i in range(6)] + [None] * 4
    write(tmp_path / "feature.parquet", columns() | {"colour": colour, "id": [f"{i:03d}" for i in range(ROWS)]})
    features = load(config(tmp_path, min_count=2)).feature_parties["feature"]
    assert features.categorical[:, 0].tolist() == [2] * 30 + [0] * 6 + [1] * 4
    assert features.embedding_rows == 3


def test_hashed_categories_use_the_documented_hash(tmp_path: Path) -> None:
    assert stable_hash("red") == 11765665226422741261
    dataset = load(config(tmp_path, categories="hash", hash_buckets=7))
    features = dataset.feature_parties["feature"]
    assert features.embedding_rows == 8
    original = columns()
    colour_of_id = dict(zip(original["id"], original["colour"], strict=True))
    for key, row in zip(dataset.ids.to_pylist(), features.categorical[:, 0].tolist(), strict=True):
        colour = colour_of_id[key]
        assert row == (0 if colour is None else 1 + stable_hash(colour) % 7)


def test_a_missing_number_is_the_training_mean_with_an_indicator(tmp_path: Path) -> None:
    features = load(config(tmp_path)).feature_parties["feature"]
    assert features.numeric_fields == ("size", "size missing")
    missing = features.numeric[:, 1] == 1
    assert missing.sum() == 8
    assert (features.numeric[missing, 0] == 0).all()
    assert (features.numeric[~missing, 1] == 0).all()


def test_constant_and_empty_columns_are_harmless(tmp_path: Path) -> None:
    for size in ([0.1] * ROWS, [None] * ROWS):
        write(tmp_path / "feature.csv", columns() | {"size": size})
        numeric = load(config(tmp_path, feature="feature.csv")).feature_parties["feature"].numeric
        assert (np.abs(numeric[:, 0]) < 1e-6).all()


def test_labels_by_name(tmp_path: Path) -> None:
    labels = ["no", "yes", "perhaps", "yes"] * 10
    write(tmp_path / "label.csv", {"id": columns()["id"], "label": labels})
    dataset = load(config(tmp_path, classes=3, class_values=("no", "perhaps", "yes")))
    assert dataset.labels.class_names == ("no", "perhaps", "yes")
    assert dataset.classes == 3
    assert np.bincount(reveal(dataset.labels)).tolist() == [10, 10, 20]
    assert (reveal(dataset.labels) == dataset.labels.class_names.index("yes")).mean() == 0.5
    in_capitals = [*labels[:-1], "YES"]
    write(tmp_path / "label.csv", {"id": columns()["id"], "label": in_capitals})
    assert reveal(load(config(tmp_path, classes=3, class_values=("No", "perhaps", "yes"))).labels).tolist() == (
        reveal(dataset.labels).tolist()
    )
    with pytest.raises(DataError, match="row 40: 'YES' is not a label; labels are no, perhaps, Yes, yes"):
        load(config(tmp_path, classes=4, class_values=("no", "perhaps", "Yes", "yes")))


@pytest.mark.parametrize(
    "labels",
    [
        [True, False] * 20,
        [1.0, 0.0] * 20,
        ["1", "0"] * 20,
        pa.array([1, 0] * 20, pa.int8()),
        ["1.0", "0"] * 20,
        ["True", "false"] * 20,
    ],
)
def test_labels_of_any_type_are_the_same_labels(tmp_path: Path, labels: Any) -> None:
    pq.write_table(pa.table({"id": [f"{i:03d}" for i in range(ROWS)], "label": labels}), tmp_path / "label.parquet")
    assert reveal(load_label_party(config(tmp_path, label="label.parquet")).labels).tolist() == [1, 0] * 20


BAD_FEATURE_FILES: list[tuple[dict[str, list[Any]], str]] = [
    ({"size": [1.0] * 6 + ["tall"] + [2.0] * 33}, r"column 'size', row 7: 'tall' is not a number"),
    ({"size": [1.0] * 6 + ["NA"] + [2.0] * 33}, r"row 7: 'NA' is not a number \(if it stands for a missing value"),
    ({"size": [1.0] * 6 + ["inf"] + [2.0] * 33}, r"column 'size', row 7: the number inf is too large"),
    ({"size": [1.0] * 6 + ["-1e39"] + [2.0] * 33}, r"column 'size', row 7: the number -1e\+39 is too large"),
    ({"id": ["5"] + [str(i) for i in range(ROWS - 1)]}, r"id '5' stands in row 1 and in row 7; 1 rows repeat an id"),
    ({"id": ["a", "", *(str(i) for i in range(ROWS - 2))]}, r"column 'id', row 2: the id is missing"),
    ({"when": [1] * 39 + ["noon"]}, r"column 'when', row 40: 'noon' is not a number"),
    ({"when": [1] * 38 + [None, 1]}, r"column 'when', row 39: the time is missing"),
    ({"when": [1] * 38 + ["NaN", 1]}, r"column 'when', row 39: the time is missing"),
]


@pytest.mark.parametrize(("change", "message"), BAD_FEATURE_FILES)
def test_a_bad_value_is_named_by_file_column_and_row(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    write(tmp_path / "feature.csv", columns() | change)
    chronological = config(tmp_path, feature="feature.csv", split="chronological")
    with pytest.raises(DataError, match=r"feature\.csv: .*" + message) as error:
        load_feature_party(chronological, "feature")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, 2, *[0] * 37], r"column 'label', row 3: '2' is not a label; labels are 0, 1"),
        ([0, -1, *[0] * 38], r"row 2: '-1' is not a label"),
        ([0, 0.5, *[0] * 38], r"row 2: '0\.5' is not a label"),
        ([0, 0, 0, None, *[0] * 36], r"row 4: the label is missing"),
        ([*[0] * 39, "nan"], r"row 40: 'nan' is not a label"),
    ],
)
def test_a_label_out_of_range_is_named(tmp_path: Path, labels: list[Any], message: str) -> None:
    write(tmp_path / "label.csv", {"id": columns()["id"], "label": labels})
    with pytest.raises(DataError, match=r"label\.csv: .*" + message):
        load_label_party(config(tmp_path))


@pytest.mark.parametrize("value", [math.nan, 2.0, None])
def test_a_bad_label_in_parquet_is_named(tmp_path: Path, value: float | None) -> None:
    write(tmp_path / "label.parquet", {"id": columns()["id"], "label": [0.0, value, *[1.0] * 38]})
    with pytest.raises(DataError, match=r"label\.parquet: column 'label', row 2"):
        load_label_party(config(tmp_path, label="label.parquet"))


def test_types_that_cannot_serve_are_named(tmp_path: Path) -> None:
    dates = pa.array([0] * ROWS, pa.date32())
    for name, values, message in (
        ("id", pa.array([float(i) for i in range(ROWS)]), "'id' is of type double, and ids must be integers or text"),
        ("size", dates, r"'size' is of type date32\[day\], which is not numeric"),
        ("colour", pa.array([[1]] * ROWS), "'colour' is of type list.*, which cannot be read as text"),
        ("when", pa.array([True] * ROWS), "'when' is of type bool, and times must be"),
    ):
        pq.write_table(pa.table(columns() | {name: values}), tmp_path / "feature.parquet")
        with pytest.raises(DataError, match=message):
            load_feature_party(config(tmp_path, split="chronological"), "feature")


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    good = config(tmp_path)
    whole = good.features[0].path.read_bytes()

    def refused(name: str, content: bytes | None, message: str) -> None:
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        feature = good.features[0].model_copy(update={"path": path})
        with pytest.raises(DataError, match=message) as error:
            load_feature_party(good.model_copy(update={"features": (feature,)}), "feature")
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)

    refused("nowhere.csv", None, "there is no such file")
    refused("data.txt", b"id,colour,size\n", "the ending of a file tells its kind")
    refused("cut.parquet", whole[: len(whole) // 2], "cannot be read")
    refused("empty.parquet", b"", "cannot be read")
    refused("empty.csv", b"", "there is no column 'id'; the columns are none")
    refused("header.csv", b"id,colour,size\n", "the file has no records")
    refused(
        "other.csv", b"id,color,size\n1,red,2\n", "there is no column 'colour'; the columns are 'id', 'color', 'size'"
    )
    refused("twice.csv", b"id,colour,size,size\n1,red,2,3\n", "there are 2 columns called 'size'")
    refused("ragged.csv", b"id,colour,size\n1,red,2\n2,red\n", "cannot be read")
    refused(
        "latin.csv", b"id,colour,size\n1,r\xf6t,2\n", "cannot be read, it is not UTF-8 text; save it as CSV in UTF-8"
    )
    refused(
        "gr\u00f6\u00dfe.csv", "id,colour,gr\u00f6\u00dfe\n".encode("latin-1"), "cannot be read, it is not UTF-8 text"
    )
    refused("book.xlsx", b"PK", "the ending of a file tells its kind.*; save it as CSV in UTF-8")
    refused("cut.csv.gz", gzip.compress(b"id,colour,size\n" + b"1,red,2\n" * 5000)[:60], "cannot be read")


def test_quoted_text_may_hold_commas_and_line_breaks(tmp_path: Path) -> None:
    text = 'id,colour,size\n1,"red, dark\nor not",2\n2,"a ""b""",3\n3,x,4\n'
    (tmp_path / "feature.csv").write_text(text)
    (tmp_path / "label.csv").write_text("id,label\n3,1\n2,0\n1,1\n")
    dataset = load(config(tmp_path, feature="feature.csv", min_count=1, test_fraction=0.34))
    assert reveal(dataset.labels).tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    "values",
    [
        [2.5, 10.0, -1.0],
        ["2", "10", "-1"],
        ["2024-01-02", "2024-10-01", "2023-12-31"],
        ["2024-01-02T05:00:00Z", "2024-01-02T06:00:00Z", "2024-01-01T23:00:00Z"],
        pa.array([2000, 10000, -1000], pa.timestamp("ns", tz="Europe/Paris")),
        pa.array([2, 10, -1], pa.date32()),
        pa.array(["2", "10", "-1"]).dictionary_encode(),
    ],
)
def test_times_of_any_type_are_ordered_as_times(tmp_path: Path, values: Any) -> None:
    content = {"id": ["a", "b", "c"], "colour": ["x"] * 3, "size": [1, 2, 3], "when": values}
    pq.write_table(pa.table(content), tmp_path / "feature.parquet")
    side = load_feature_party(config(tmp_path, split="chronological", test_fraction=0.34), "feature")
    assert side.ids.to_pylist() == ["c", "a", "b"]


@pytest.mark.parametrize(("order", "first"), [("day", ["a", "c", "b"]), ("month", ["c", "a", "b"])])
def test_dates_are_read_in_the_order_that_the_job_says(tmp_path: Path, order: str, first: list[str]) -> None:
    dates = ["02/03/2024", "2024-10-01", "1.4.2024 23:00"]
    write(tmp_path / "feature.csv", {"id": ["a", "b", "c"], "when": dates, "since": ["00.00.0000", *dates[1:]]})
    write(tmp_path / "label.csv", {"id": ["a", "b", "c"], "when": dates, "label": [0, 1, 0]})
    shop = TableFile(path=tmp_path / "feature.csv", dates=("when", "since"), time="when", date_order=order)
    shop = shop.model_copy(update={"missing": ("", "00.00.0000")})
    bank = LabelFile(path=tmp_path / "label.csv", time="when", date_order=order)
    tables = TableData(features=(shop,), label=bank, split="chronological", test_fraction=0.34)
    assert load(tables).ids.to_pylist() == first
    assert load_feature_party(tables, "feature").encoder.columns == dict.fromkeys(
        ("when", "since"), f"{order}_first_date"
    )  # type: ignore[union-attr]
    with pytest.raises(DataError, match=r"column 'when', row 1: '02/03/2024' cannot be read as a time"):
        load(tables.model_copy(update={"features": (shop.model_copy(update={"date_order": "year"}),)}))


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_values_may_be_separated_in_other_ways(tmp_path: Path, delimiter: str) -> None:
    mine, decimal = columns(), "," if delimiter == ";" else "."
    mine["size"] = [None if size is None else size + 0.5 for size in mine["size"]]
    write(tmp_path / "feature.parquet", mine)
    expected = load(config(tmp_path)).feature_parties["feature"]
    rows = zip(mine["id"], mine["colour"], mine["size"], strict=True)
    lines = [[key, colour or "", "" if size is None else str(size).replace(".", decimal)] for key, colour, size in rows]
    text = "\n".join(delimiter.join(line) for line in [["id", "colour", "size"], *lines])
    (tmp_path / "feature.csv").write_text("\ufeff" + text + "\n")
    found = load(config(tmp_path, feature="feature.csv")).feature_parties["feature"]
    assert np.array_equal(found.numeric, expected.numeric)
    assert np.array_equal(found.categorical, expected.categorical)


def test_a_decimal_comma_between_quotes_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "feature.csv").write_text('id,colour,size\n001,red,"1,5"\n')
    with pytest.raises(
        DataError, match=r"row 1: '1,5' is not a number \(numbers have a decimal point, or a comma where"
    ):
        load_feature_party(config(tmp_path, feature="feature.csv"), "feature")


@pytest.mark.parametrize("values", [["1", "", "0"], [1, None, 0], [None] * 3], ids=["text", "numbers", "none at all"])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_no_label_may_be_missing(tmp_path: Path, values: list[Any], suffix: str) -> None:
    write(tmp_path / "feature.parquet", {"id": ["a", "b", "c"], "colour": ["x"] * 3, "size": [1, 2, 3]})
    write(tmp_path / f"label.{suffix}", {"id": ["a", "b", "c"], "label": values})
    tables = config(tmp_path, label=f"label.{suffix}", test_fraction=0.34)
    for loading in (load, load_label_party):
        with pytest.raises(DataError, match=r"row [12]: the label is missing"):
            loading(tables)
