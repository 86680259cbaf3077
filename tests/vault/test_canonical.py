import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tpsl.tables.columns import Place
from tpsl.vault import VaultError
from tpsl.vault.canonical import ids_as_text, labels_as_integers, names_of_classes

BINARY = names_of_classes(2)


@pytest.mark.parametrize(
    "ids",
    [
        np.array([123, 7], np.int8),
        np.array([123, 7], np.uint64),
        ["123", "7"],
        [123, "7"],
        (np.int32(123), 7),
        np.array(["123", "7"]),
        np.array(["123", 7], object),
        pa.array([123, 7], pa.int16()),
        pa.array(["123", "7"], pa.large_string()),
        pa.array(["123", "7"], pa.string_view()),
        pa.array(["123", "7"]).dictionary_encode(),
        pa.chunked_array([[123], [7]]),
        pd.Series([123, 7]),
        pd.Series(["123", "7"], dtype="category"),
    ],
    ids=lambda ids: f"{type(ids).__name__}-{getattr(ids, 'dtype', getattr(ids, 'type', ''))}",
)
def test_integers_and_their_texts_are_the_same_id(ids: object) -> None:
    assert ids_as_text(ids).to_list() == ["123", "7"]


def test_no_ids_are_no_texts() -> None:
    for none in ([], np.array([], "U3"), np.array([], np.int64), pa.array([], pa.string())):
        assert ids_as_text(none).to_list() == []


def test_ids_keep_their_spelling() -> None:
    assert ids_as_text(["007", " a ", "Ä", "é", 2**80]).to_list() == ["007", " a ", "Ä", "é", str(2**80)]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a", None], "row 12: the id is missing"),
        (np.array(["a", np.nan], object), "row 12: the id"),
        (["a", ""], "row 12: the id is missing"),
        (["a" * 1024, "ä" * 513], "row 12: the id has more than 1,024 bytes"),
        ([10**1023, "b" * 1025], "row 12: the id has more than 1,024 bytes"),
        (["a", "b\0"], "row 12: the id 'b\\\\x00' contains a zero"),
        (np.array(["a", "b\0c"]), "row 12: the id 'b\\\\x00c' contains a zero"),
        (["a", "\ud800"], "row 12: the id .* is not valid Unicode"),
        ([1, 2.5], "column 'id' is of type double"),
        (np.array([1.0, 2.0]), "of type double"),
        ([True, False], "of type bool"),
        (["a", 2.5], "row 12: the id 2.5 is neither"),
        (["a", True], "row 12: the id True is neither"),
        ("ab", "single text 'ab'"),
        (np.zeros((2, 2), int), "shape \\(2, 2\\)"),
    ],
)
def test_bad_ids_are_named(ids: object, message: str) -> None:
    with pytest.raises(VaultError, match=message):
        ids_as_text(ids, place=Place("f.csv", "id", 11))


@pytest.mark.parametrize(
    "labels",
    [
        [0, 1, 1],
        np.array([0, 1, 1], np.uint8),
        np.array([0.0, 1.0, 1.0], np.float32),
        [False, True, True],
        ["0", "1", "1"],
        ["0.0", "1.0", " 1 "],
        ["false", "TRUE", "True"],
        ["-0", 1, 1.0],
        pa.array(["0", "1", "1"]).dictionary_encode(),
        pd.Series([0, 1, 1]),
    ],
    ids=str,
)
def test_labels_are_read_in_any_sensible_spelling(labels: object) -> None:
    read = labels_as_integers(labels, BINARY)
    assert read.dtype == np.int64
    assert read.tolist() == [0, 1, 1]


@pytest.mark.parametrize("bad", [2, -1, 0.5, float("inf"), "yes", "", "nan", "2", "1e400", "0x1", "1_0", "١", 2**63])
def test_a_label_that_is_none_is_named_with_its_row(bad: object) -> None:
    with pytest.raises(VaultError, match=r"f\.csv: column 'y', row 7: .*; labels are 0, 1 ") as error:
        labels_as_integers([bad, bad], BINARY, place=Place("f.csv", "y", 7))
    assert str(bad) in str(error.value)


@pytest.mark.parametrize("missing", [[1, None], [1.0, float("nan")], ["1", None], np.array([1.0, np.nan])])
def test_a_missing_label_is_named(missing: object) -> None:
    with pytest.raises(VaultError, match="row 2: the label is missing"):
        labels_as_integers(missing, BINARY)


def test_labels_of_many_classes() -> None:
    ten = names_of_classes(10)
    assert labels_as_integers(["9", "0"], ten).tolist() == [9, 0]
    assert labels_as_integers(["yes", "NO"], ("no", "yes")).tolist() == [1, 0]
    with pytest.raises(VaultError, match=r"'10' is not a label; labels are 0, 1, \.\.\., 9"):
        labels_as_integers(["9", "10"], ten)
    with pytest.raises(VaultError, match=r"row 1: .*2020"):
        labels_as_integers(np.array(["2020-01-01"], "datetime64[s]"), BINARY)
