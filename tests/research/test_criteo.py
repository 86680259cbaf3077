import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpsl.data.dataset import load, load_feature_party, load_label_party
from tpsl.data.true_labels import reveal
from tpsl.tables import DataError
from tpsl_research.clicklog import AvazuData, CriteoData

Lines = Callable[..., list[str]]


def written(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines))
    return path


@pytest.fixture
def lines(criteo_lines: Lines) -> list[str]:
    return criteo_lines(200)


@pytest.fixture
def path(tmp_path: Path, lines: list[str]) -> Path:
    return written(tmp_path / "train.txt", lines)


def test_labels_and_ids_are_those_of_the_lines(path: Path, lines: list[str]) -> None:
    dataset = load(CriteoData(path=path))
    assert reveal(dataset.labels).tolist() == [int(line[0]) for line in lines]
    assert dataset.ids.to_pylist() == [f"{number:012d}" for number in range(1, 201)]
    assert dataset.labels.class_names == ("0", "1")
    assert dataset.label_features is None


def test_the_last_lines_are_the_test_set_unless_asked_otherwise(path: Path) -> None:
    dataset = load(CriteoData(path=path))
    assert dataset.test.tolist() == list(range(160, 200))
    shuffled = load(CriteoData(path=path, split="random", split_seed=4))
    assert len(shuffled.test) == 40
    assert shuffled.test.tolist() != dataset.test.tolist()


def test_numbers_become_standardised_signed_logarithms(path: Path, lines: list[str]) -> None:
    dataset = load(CriteoData(path=path))
    features = dataset.feature_parties["feature"]
    assert features.numeric_fields == tuple(n for i in range(1, 14) for n in (f"I{i}", f"I{i} missing"))
    for field in range(13):
        texts = [line.split("\t")[1 + field] for line in lines]
        values = [math.copysign(math.log(1 + abs(int(t))), int(t)) if t else math.nan for t in texts]
        known = np.array([value for value in values[:160] if not math.isnan(value)])
        expected = (np.array(values) - known.mean()) / known.std()
        assert np.allclose(features.numeric[:, 2 * field], np.nan_to_num(expected, nan=0), atol=1e-5)
        assert features.numeric[:, 2 * field + 1].tolist() == [float(not t) for t in texts]


def test_frequent_training_values_have_rows_of_their_own(path: Path, lines: list[str]) -> None:
    features = load(CriteoData(path=path, min_count=8)).feature_parties["feature"]
    assert features.categorical_fields == tuple(f"C{i}" for i in range(1, 27))
    first_row = 0
    for field in range(26):
        texts = [line.split("\t")[14 + field] for line in lines]
        kept = sorted({text for text in texts if text and texts[:160].count(text) >= 8})
        rows = [1 if not text else 2 + kept.index(text) if text in kept else 0 for text in texts]
        assert (features.categorical[:, field] - first_row).tolist() == rows
        first_row += 2 + len(kept)
    assert features.embedding_rows == first_row


def test_hashing_depends_on_the_value_alone(path: Path, lines: list[str], tmp_path: Path) -> None:
    config = CriteoData(path=path, categories="hash", hash_buckets=50)
    features = load(config).feature_parties["feature"]
    assert features.embedding_rows == 26 * 51
    missing = np.array([[not text for text in line.split("\t")[14:]] for line in lines])
    assert np.array_equal(features.categorical % 51 == 0, missing)
    backwards = config.model_copy(update={"path": written(tmp_path / "backwards.txt", lines[::-1])})
    assert np.array_equal(load(backwards).feature_parties["feature"].categorical[::-1], features.categorical)


def test_test_lines_do_not_influence_the_encoding(path: Path, lines: list[str], tmp_path: Path) -> None:
    config = CriteoData(path=path, min_count=2)
    others = ["\t".join(["1", *["12345"] * 13, *["abcdef01"] * 26])] * 40
    changed = load(config.model_copy(update={"path": written(tmp_path / "changed.txt", lines[:160] + others)}))
    before, after = load(config).feature_parties["feature"], changed.feature_parties["feature"]
    assert np.array_equal(before.categorical[:160], after.categorical[:160])
    assert np.array_equal(before.numeric[:160], after.numeric[:160])
    assert len(np.unique(after.categorical[160:])) == 26  # the row of unseen values of each field


def test_each_party_loads_by_itself(path: Path) -> None:
    config = CriteoData(path=path)
    both, feature, label = load(config), load_feature_party(config), load_label_party(config)
    assert np.array_equal(feature.features.categorical, both.feature_parties["feature"].categorical)
    assert np.array_equal(feature.features.numeric, both.feature_parties["feature"].numeric)
    assert np.array_equal(reveal(label.labels), reveal(both.labels))
    assert feature.ids.equals(label.records.ids) and label.records.ids.equals(both.ids)
    assert np.array_equal(feature.train, label.records.train)
    assert label.records.features is None


def test_only_the_first_lines(path: Path, lines: list[str]) -> None:
    dataset = load(CriteoData(path=path, rows=50))
    assert reveal(dataset.labels).tolist() == [int(line[0]) for line in lines[:50]]
    assert dataset.test.tolist() == list(range(40, 50))
    with pytest.raises(DataError, match=r"train\.txt: rows: 201 records were asked for, there are 200"):
        load(CriteoData(path=path, rows=201))


def test_what_stands_after_the_wanted_lines_is_not_looked_at(tmp_path: Path, lines: list[str]) -> None:
    assert len(load(CriteoData(path=written(tmp_path / "train.txt", [*lines, "rubbish"]), rows=200))) == 200


def test_a_field_that_is_always_missing_is_harmless(tmp_path: Path, lines: list[str]) -> None:
    emptied = ["\t".join(["" if at in (1, 14) else v for at, v in enumerate(line.split("\t"))]) for line in lines]
    features = load(CriteoData(path=written(tmp_path / "train.txt", emptied))).feature_parties["feature"]
    assert (features.numeric[:, :2] == [0, 1]).all()
    assert (features.categorical[:, 0] == 1).all()


def replaced(line: str, column: int, value: str) -> str:
    values = line.split("\t")
    values[column] = value
    return "\t".join(values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda line: line + "\t", "cannot be read, row #: 41 columns instead of 40"),
        (lambda line: line[: line.rindex("\t")], "cannot be read, row #: 39 columns instead of 40"),
        (lambda line: replaced(line, 0, "2"), "column 'label', row #: '2' is not a label; labels are 0, 1"),
        (lambda line: replaced(line, 0, "-1"), "column 'label', row #: '-1' is not a label"),
        (lambda line: replaced(line, 0, ""), "column 'label', row #: the label is missing"),
        (lambda line: replaced(line, 0, "yes"), "column 'label', row #: 'yes' is not a label"),
        (lambda line: replaced(line, 13, "NA"), "column 'I13', row #: 'NA' is not a number"),
    ],
)
@pytest.mark.parametrize("number", [1, 137, 200])
def test_an_error_names_the_line(
    tmp_path: Path, lines: list[str], change: Callable[[str], str], message: str, number: int
) -> None:
    lines[number - 1] = change(lines[number - 1])
    with pytest.raises(DataError, match=rf"train\.txt: {message.replace('#', str(number))}") as error:
        load(CriteoData(path=written(tmp_path / "train.txt", lines)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"\n", b"\r\n"])
def test_a_file_without_records_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "train.txt").write_bytes(content)
    with pytest.raises(DataError, match=r"train\.txt: .*"):
        load(CriteoData(path=tmp_path / "train.txt"))


def test_files_that_are_something_else_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.txt: there is no such file"):
        load(CriteoData(path=tmp_path / "nowhere.txt"))
    (tmp_path / "zeros").write_bytes(bytes(20 << 20))
    with pytest.raises(DataError, match="zeros: cannot be read"):
        load(CriteoData(path=tmp_path / "zeros"))


def test_the_configuration_is_closed(tmp_path: Path) -> None:
    options: dict[str, Any] = {"source": "criteo", "path": str(tmp_path), "hash_buckets": 2**30, "categories": "hash"}
    assert CriteoData.model_validate_json(CriteoData.model_validate(options).model_dump_json()).path == tmp_path
    for wrong in ({"min_count": 0}, {"rows": 3}, {"buckets": 5}, {"categories": "both"}, {"test_fraction": 1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            CriteoData.model_validate(options | wrong)


def test_a_table_beyond_32_bits_is_refused(path: Path) -> None:
    with pytest.raises(DataError, match=r"train\.txt: with column 'C2' the embedding table has more than 2\*\*31 rows"):
        load(CriteoData(path=path, categories="hash", hash_buckets=2**30))


def test_the_order_of_a_file_without_times_is_taken_on_trust_and_says_so(tmp_path: Path) -> None:
    config = CriteoData(path=tmp_path / "train.txt")
    assert config.unverified_assumption == (
        f"{tmp_path / 'train.txt'}: has no times, so its order is taken for that of time; "
        "if the records were shuffled, the chronological split is a random one"
    )
    assert config.model_copy(update={"split": "random"}).unverified_assumption is None
    assert AvazuData(path=tmp_path / "train.csv").unverified_assumption is None  # its hours are checked
