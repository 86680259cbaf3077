from datetime import date
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tpsl.data.config import OwnData, SyntheticData, TableData
from tpsl.data.dataset import Dataset, load, load_feature_party, load_label_party
from tpsl.data.features import Features, table_features
from tpsl.data.own import SourceInputs
from tpsl.data.sides import Relabelling
from tpsl.data.true_labels import reveal
from tpsl.tables import DataError

CONFIG = OwnData(parties=("left", "right"), classes=3)
RECORDS = 40


class Images:
    """Gives batches; record i has the pixel values of its id, wherever it stands."""

    def __init__(self, order: np.ndarray | None = None) -> None:
        self.numbers = np.arange(RECORDS) if order is None else order
        self.ids: Any = [f"image {number}" for number in self.numbers]

    def batch(self, rows: np.ndarray) -> Any:
        return torch.from_numpy(self.numbers[rows]).float()[:, None].expand(-1, 4)


class Sentences(torch.utils.data.Dataset):
    """A map-style dataset: tokens and their number."""

    def __init__(self) -> None:
        self.ids = [f"image {number}" for number in range(RECORDS)]

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([row, row + 1]), 2


class Answers:
    def __init__(self, order: np.ndarray | None = None) -> None:
        self.numbers = np.arange(RECORDS) if order is None else order
        self.ids = [f"image {number}" for number in self.numbers]
        self.labels: Any = self.numbers % 3
        self.units = [f"person {number // 4}" for number in self.numbers]

    def batch(self, rows: np.ndarray) -> np.ndarray:
        return np.asarray(self.labels)[rows][:, None].astype(np.float32)


def loaded(config: OwnData = CONFIG, **changes: Any) -> Dataset:
    return load(config, sources={"left": Images, "right": Sentences(), "label": Answers(), **changes})


def numbers_of(data: Dataset) -> np.ndarray:
    return np.array([int(text.split()[1]) for text in data.ids.to_pylist()])


def test_every_record_has_its_own_inputs_and_label() -> None:
    rng = np.random.default_rng(0)
    data = loaded(left=Images(rng.permutation(RECORDS)), label=Answers(rng.permutation(RECORDS)))
    numbers, rows = numbers_of(data), rng.permutation(RECORDS)[:7]
    assert data.ids.to_pylist() == sorted(data.ids.to_pylist())
    assert (reveal(data.labels) == numbers % 3).all()
    assert data.label_side.records.units.to_pylist() == [f"person {number // 4}" for number in numbers]
    (pixels,) = data.feature_parties["left"].batch(rows)
    assert (pixels == numbers[rows][:, None]).all()
    assert pixels.dtype == np.float32
    tokens, lengths = data.feature_parties["right"].batch(rows)
    assert (tokens == np.stack([numbers[rows], numbers[rows] + 1], axis=1)).all()
    assert (lengths == 2).all()
    assert len(data.feature_parties["left"]) == RECORDS
    assert data.label_features is None


def test_order_and_split_are_those_of_a_table_with_the_same_ids(tmp_path: Any) -> None:
    data = loaded()
    rows = "".join(f"image {number},{number % 3}\n" for number in range(RECORDS))
    (tmp_path / "table.csv").write_text(f"id,label\n{rows}")
    file = {"path": tmp_path / "table.csv"}
    content = {"features": [{**file, "numeric": ["label"]}], "label": {"path": tmp_path / "table.csv"}, "classes": 3}
    table = load(TableData.model_validate(content))
    assert table.ids.equals(data.ids)
    assert (table.train == data.train).all()
    assert (table.test == data.test).all()
    assert (reveal(table.labels) == reveal(data.labels)).all()


def test_a_class_makes_a_source_also_where_its_ids_are_the_class_s_own() -> None:
    class Shared(Images):
        ids = [f"image {number}" for number in range(RECORDS)]  # noqa: RUF012

    assert load_feature_party(CONFIG, "left", source=Shared).ids.equals(loaded().ids)


def test_a_party_alone_has_what_it_has_together() -> None:
    whole, left = loaded(), load_feature_party(CONFIG, "left", source=Images)
    label = load_label_party(CONFIG, source=Answers)
    assert left.ids.equals(whole.ids) and label.records.ids.equals(whole.ids)
    assert (left.train == whole.train).all()
    assert (label.records.test == whole.test).all()


def test_a_chronological_split_goes_by_times() -> None:
    def with_times(source: Any) -> Any:
        source.times = [date(2026, 1, 1 + int(text.split()[1]) % 28) for text in source.ids]
        return source

    config = OwnData(parties=("left",), classes=3, split="chronological")
    data = load(config, sources={"left": with_times(Images()), "label": with_times(Answers())})
    days = numbers_of(data) % 28
    assert (np.diff(days) >= 0).all()
    assert data.test.tolist() == list(range(32, 40))
    with pytest.raises(DataError, match=r"the inputs of 'left': has no `times`"):
        load_feature_party(config, "left", source=Images)


def test_labels_by_name_and_labels_that_are_none() -> None:
    answers = Answers()
    answers.labels = ["cat", "dog", None, "cat"] * 10
    config = OwnData(parties=("left",), class_values=("cat", "dog"))
    with pytest.raises(DataError, match=r"the inputs of 'label': column 'labels', row 3: the label is missing"):
        load_label_party(config, source=answers)
    answers.labels = ["cat", "dog"] * 20
    assert np.bincount(reveal(load_label_party(config, source=answers).labels)).tolist() == [20, 20]
    answers.labels = [7] * RECORDS
    with pytest.raises(DataError, match=r"row 1: 7 is not a label; labels are 0, 1, 2"):
        load_label_party(CONFIG, source=answers)


@pytest.mark.parametrize("kind", [list, np.asarray, torch.as_tensor, tuple])
def test_other_labels_begin_at_the_source(kind: Any) -> None:
    answers = Answers()
    answers.labels = kind(answers.labels.tolist())
    config = CONFIG.model_copy(update={"label_features": True})
    before = load_label_party(config, source=answers)
    after = load_label_party(config, source=answers, relabelling=Relabelling(1))
    moved = reveal(before.labels) != reveal(after.labels)
    assert 0.2 < moved.mean() < 0.8
    rows = np.arange(RECORDS)
    leaked = before.records.features.batch(rows)[0] != after.records.features.batch(rows)[0]  # type: ignore[union-attr]
    assert (leaked[:, 0] == moved).all() or kind is tuple  # a tuple cannot be replaced in place
    assert (reveal(load_label_party(config, source=answers).labels) == reveal(before.labels)).all()


class Broken(Images):
    def __init__(self, give: Any) -> None:
        super().__init__()
        self.give = give

    def batch(self, rows: np.ndarray) -> Any:
        return self.give(rows)


@pytest.mark.parametrize(
    ("give", "sentence"),
    [
        (lambda rows: np.zeros((len(rows) + 1, 2)), r"gives an array of shape \(3, 2\) for a batch of 2 rows"),
        (lambda rows: np.float32(1), r"gives an array of shape \(\) for a batch of 2 rows"),
        (lambda rows: np.full((len(rows), 2), np.nan), "gives numbers in a batch that are not finite"),
        (lambda rows: np.array(["a"] * len(rows)), "gives <U1 in a batch, and inputs must be numbers"),
        (lambda rows: 1 / 0, r"fails to give a batch \(ZeroDivisionError: division by zero\)"),
    ],
)
def test_a_batch_that_cannot_be_used_is_refused_at_once(give: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=f"^the inputs of 'left': {sentence}$"):
        load_feature_party(CONFIG, "left", source=Broken(give))


def test_batches_stay_of_one_kind() -> None:
    side = load_feature_party(CONFIG, "left", source=Broken(lambda rows: np.zeros((len(rows), len(rows)))))
    with pytest.raises(
        DataError, match=r"gives float64 of shape \(rows, 3\) in a batch, and gave float64 of shape \(rows, 2\) before"
    ):
        side.features.batch(np.arange(3))  # type: ignore[union-attr]


def test_sources_that_cannot_be_used_are_named() -> None:
    source = Images()
    for ids, sentence in (
        ([*source.ids[:-1], "image 3"], "id 'image 3' stands in row 4 and in row 40"),
        ([1.5] * RECORDS, "must be integers or text"),
        ([1, "two"], "`ids` are not all of one type"),
        ([""] * RECORDS, "the id is missing"),
        (None, "has no `ids`"),
    ):
        source.ids = ids
        with pytest.raises(DataError, match=f"^the inputs of 'left': .*{sentence}"):
            load_feature_party(CONFIG, "left", source=source)
    answers = Answers()
    answers.labels = [0, 1]
    with pytest.raises(DataError, match="the inputs of 'label': has 40 ids and 2 labels"):
        load_label_party(CONFIG, source=answers)
    with pytest.raises(DataError, match=r"the inputs of 'left' are its own .* and it brings none"):
        load_feature_party(CONFIG, "left")
    with pytest.raises(DataError, match="the job's data are 'synthetic', not own"):
        load_feature_party(SyntheticData(), source=Images())
    with pytest.raises(DataError, match="has neither batch"):
        SourceInputs("the inputs of 'left'", object(), np.arange(3))
    with pytest.raises(DataError, match="'left' and the label party must have the same ids, but 1 of 40"):
        other = Images()
        other.ids[0] = "another"
        loaded(left=other)


def test_what_needs_a_table_says_so() -> None:
    with pytest.raises(DataError, match=r"^the wide part needs the features of a table"):
        table_features(loaded().feature_parties["left"], "the wide part")
    features = load(SyntheticData(rows=10)).feature_parties["feature"]
    assert isinstance(table_features(features, "the wide part"), Features)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"parties": ["a", "a"]}, "each feature party needs a name of its own"),
        ({"parties": ["label"]}, "each feature party needs a name of its own"),
        ({"parties": []}, "at least 1 item"),
        ({"parties": ["a"], "class_values": ["x"]}, "class_values needs 2 different values"),
        ({"parties": ["a"], "class_values": [True, False]}, "put such values in quotes"),
    ],
)
def test_configurations_that_make_no_sense(content: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        OwnData.model_validate(content)
