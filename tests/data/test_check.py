from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from tpsl.data.check import DataReport, check_data
from tpsl.data.config import OwnData, SyntheticData, TableData
from tpsl.tables import DataError, reading
from tpsl_research.clicklog import CriteoData

ROWS = 400
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 2, ROWS)
IDS = [f"c{number:03}" for number in range(ROWS)]
FEATURES: dict[str, Any] = {
    "id": IDS,
    "colour": RNG.choice(["red", "green", "blue"], ROWS),
    "size": RNG.normal(size=ROWS),
}


def report(folder: Path, features: dict[str, Any] | None = None, label: dict[str, Any] | None = None) -> DataReport:
    """Check two tables; `features` and `label` are columns beside the usual ones, or in their place."""
    held = {**FEATURES, **(features or {})}
    pyarrow.csv.write_csv(pa.table(held), folder / "feature.csv")
    pyarrow.csv.write_csv(pa.table({"id": IDS[::-1], "label": LABELS[::-1], **(label or {})}), folder / "label.csv")
    numeric = [name for name in held if name.startswith(("size", "number"))]
    categorical = [name for name in held if name not in ("id", *numeric)]
    content = {
        "features": [{"path": folder / "feature.csv", "numeric": numeric, "categorical": categorical}],
        "label": {"path": folder / "label.csv", "categorical": [name for name in label or {} if name == "own"]},
    }
    return check_data(TableData.model_validate(content))


def texts(found: DataReport, level: str = "warning") -> list[str]:
    return [finding.text for finding in found.findings if finding.level == level]


def test_sound_tables_pass_without_a_word(tmp_path: Path) -> None:
    found = report(tmp_path)
    assert found.passed and not found.findings and not found.not_here
    assert [(party.party, party.records) for party in found.parties] == [("label", ROWS), ("feature", ROWS)]
    assert found.classes == {"0": int((LABELS == 0).sum()), "1": int((LABELS == 1).sum())}
    colour, size = found.parties[1].columns
    assert (colour.name, colour.kind, colour.missing, colour.distinct) == ("colour", "category", 0, 3)
    assert (size.name, size.kind, size.missing, size.distinct) == ("size", "number", 0, None)


@pytest.mark.parametrize(
    ("column", "values", "sentence"),
    [
        ("size", [1.5] * ROWS, "column 'size' has the same value in every record"),
        ("colour", ["red"] * ROWS, "column 'colour' has the same value in every record"),
        ("size", [None] * ROWS, "column 'size' has no values, only missing ones"),
        ("colour", [*["red"] * 10, *[""] * (ROWS - 10)], "column 'colour' is missing in 390 of 400 records"),
        ("colour", [f"x{i}" for i in range(ROWS)], "column 'colour' hardly repeats a value, as an id"),
        ("colour", [f"2026-01-{1 + i % 28:02}" for i in range(ROWS)], "column 'colour' holds dates, which are read as"),
        ("colour", [str(i % 60) for i in range(ROWS)], "column 'colour' holds 60 different numbers, read as categor"),
        ("size", LABELS + RNG.normal(0, 0.01, ROWS), "column 'size' alone tells the label almost perfectly (1.000"),
        (
            "size",
            [None if y else 0.5 + i for i, y in enumerate(LABELS)],
            "column 'size missing' alone tells the label almost",
        ),
        ("colour", [f"{'ab'[y]}{i % 9}" for i, y in enumerate(LABELS)], "column 'colour' alone tells the label almost"),
    ],
)
def test_what_is_strange_about_a_column_is_warned_about(
    tmp_path: Path, column: str, values: Any, sentence: str
) -> None:
    found = report(tmp_path, {column: values})
    assert found.passed
    (text,) = texts(found)
    assert f"{tmp_path / 'feature.csv'}: {sentence}" in text


def test_a_column_of_the_label_party_that_tells_the_label(tmp_path: Path) -> None:
    (text,) = texts(report(tmp_path, label={"own": [f"{y}{i % 3}" for i, y in enumerate(LABELS[::-1])]}))
    assert "label.csv: column 'own' alone tells the label" in text


def test_a_category_tells_the_label_also_where_records_are_in_the_order_of_labels(tmp_path: Path) -> None:
    labels = sorted(LABELS.tolist(), reverse=True)
    told = {"id": IDS[::-1], "colour": [f"{'ab'[y]}{i % 9}" for i, y in enumerate(labels)]}
    (text,) = texts(report(tmp_path, told, {"label": labels}))
    assert "column 'colour' alone tells the label" in text


def test_numbers_with_leading_zeros_are_codes(tmp_path: Path) -> None:
    assert not report(tmp_path, {"colour": [f"{i % 60:03}" for i in range(ROWS)]}).findings


def test_a_column_that_helps_but_does_not_tell_is_not_accused(tmp_path: Path) -> None:
    noisy = np.where(RNG.random(ROWS) < 0.9, LABELS, 1 - LABELS)
    assert not report(tmp_path, {"size": noisy + RNG.normal(0, 0.01, ROWS), "colour": noisy.astype(str)}).findings


@pytest.mark.parametrize(
    ("labels", "level", "sentence"),
    [
        ([1] * ROWS, "error", "every record has the label '1': there is nothing to learn"),
        ([0] * 398 + [1] * 2, "warning", "the label '1' is rare: 2 of 400 records have it"),
        ([0, 1, 7] + [1] * 397, "error", "column 'label', row 3: '7' is not a label; labels are 0, 1"),
    ],
)
def test_labels_that_are_constant_rare_or_none(tmp_path: Path, labels: Any, level: str, sentence: str) -> None:
    found = report(tmp_path, label={"label": labels})
    assert found.passed == (level == "warning")
    assert sentence in texts(found, level)[0]


def test_the_first_error_of_each_party_is_told(tmp_path: Path) -> None:
    found = report(tmp_path, {"size": ["1"] * 399 + ["abc"]}, {"label": [*[0, 1] * 199, 0, 7]})
    of_label, of_feature = texts(found, "error")
    assert "column 'label', row 400: '7' is not a label" in of_label
    assert "column 'size', row 400: 'abc' is not a number" in of_feature
    assert not found.passed and not found.parties


def test_ids_that_differ_are_counted(tmp_path: Path) -> None:
    found = report(tmp_path, {"id": [*IDS[:-2], "another", "other"]})
    (error,) = texts(found, "error")
    assert "2 of 400 are only in the first and 2 of 400 only in the second" in error
    assert found.common_ids == {"feature": 398} and len(found.parties) == 2
    (repeated,) = texts(report(tmp_path, {"id": [*IDS[:-1], IDS[0]]}), "error")
    assert "id 'c000' stands in row 1 and in row 400; 1 rows repeat an id" in repeated


def test_blocks_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"size": LABELS + RNG.normal(0, 0.01, ROWS), "colour": [f"x{i}" for i in range(ROWS)]}
    whole = report(tmp_path, columns)
    monkeypatch.setattr(reading, "BLOCK_BYTES", 1000)
    assert report(tmp_path, columns).as_dict() == whole.as_dict()


def test_a_party_whose_file_is_not_here_is_left_out(tmp_path: Path) -> None:
    report(tmp_path)
    (tmp_path / "label.csv").unlink()
    content = {
        "features": [{"path": tmp_path / "feature.csv", "numeric": ["size"]}],
        "label": {"path": tmp_path / "label.csv"},
    }
    found = check_data(TableData.model_validate(content))
    assert found.not_here == {"label": f"{tmp_path}/label.csv: there is no such file"}
    assert found.passed and not found.classes
    (tmp_path / "feature.csv").unlink()
    with pytest.raises(DataError, match="nothing to check: the data of label, feature is not here") as refused:
        check_data(TableData.model_validate(content))
    sentences = [f"{tmp_path}/{party}.csv: there is no such file" for party in ("label", "feature")]
    assert str(refused.value).endswith("; ".join(sentences))


def test_times_and_units_are_checked_too(tmp_path: Path) -> None:
    rows = "".join(f"{i},{i},{i % 2},2026-01-{1 + i % 28:02},u{i}\n" for i in range(40))
    (tmp_path / "table.csv").write_text(f"id,x,label,day,who\n{rows}40,1,1,soon,\n")
    path = {"path": tmp_path / "table.csv", "time": "day"}
    content = {"features": [{**path, "numeric": ["x"]}], "label": {**path, "unit": "who"}, "split": "chronological"}
    errors = texts(check_data(TableData.model_validate(content)), "error")
    assert ["'soon' cannot be read as a time" in text for text in errors] == [True, True]
    (tmp_path / "table.csv").write_text(f"id,x,label,day,who\n{rows}40,1,1,2026-01-30,\n")
    (error,) = texts(check_data(TableData.model_validate(content)), "error")
    assert "column 'who', row 41: the unit is missing" in error


@pytest.mark.parametrize("block_bytes", [60, 1 << 22])
def test_only_records_since_then_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    rows = "".join(f"{i},{'' if i < 30 else i},{int(i >= 20 and i % 2)},{i}\n" for i in range(40))
    (tmp_path / "table.csv").write_text(f"id,x,label,when\n{rows}")
    path = {"path": tmp_path / "table.csv", "time": "when"}
    content = {"features": [{**path, "numeric": ["x"]}], "label": path, "since": 30}
    monkeypatch.setattr(reading, "BLOCK_BYTES", block_bytes)
    found = check_data(TableData.model_validate(content))
    assert [party.records for party in found.parties] == [10, 10]
    assert found.classes == {"0": 5, "1": 5}
    assert found.parties[1].columns[0].missing == 0, "what is missing before then does not matter"
    assert found.passed
    (tmp_path / "table.csv").write_text(f"id,x,label,when\n{rows}0,1,1,35\n")
    repeated, *_ = texts(check_data(TableData.model_validate(content)), "error")
    assert "id '0' stands in row 1 and in row 41" in repeated, "as a run would find"
    late, *_ = texts(check_data(TableData.model_validate({**content, "since": 50})), "error")
    assert "column 'when' has no time at or after 50" in late


def test_click_logs_and_built_in_data(tmp_path: Path) -> None:
    lines = ["\t".join([str(i % 2), *[str(i)] * 13, *[f"{i % 7:08x}"] * 26]) for i in range(60)]
    (tmp_path / "train.txt").write_text("\n".join(lines) + "\n")
    found = check_data(CriteoData(path=tmp_path / "train.txt"))
    assert found.passed and found.classes == {"0": 30, "1": 30}
    assert len(found.parties[1].columns) == 39
    assert check_data(SyntheticData(rows=500)).passed


class Own:
    def __init__(self, ids: Any, value: float = 0.0) -> None:
        self.ids, self.labels, self._value = ids, [i % 2 for i in range(len(ids))], value

    def batch(self, rows: np.ndarray) -> np.ndarray:
        values = np.stack([rows, rows], axis=1).astype(np.float32)
        values[rows == 70] = self._value
        return values


def test_own_sources_are_asked_for_every_batch() -> None:
    config = OwnData(parties=("left", "right"))
    ids = list(range(100))
    sound = check_data(config, sources={"left": Own(ids), "label": Own(ids)})
    assert sound.passed and not sound.findings and list(sound.not_here) == ["right"]
    assert sound.classes == {"0": 50, "1": 50}
    broken = check_data(config, sources={"left": Own(ids, np.nan), "right": Own(ids[1:]), "label": Own(ids)})
    assert [(finding.level, finding.party) for finding in broken.findings] == [("error", "left"), ("error", "right")]
    assert "not finite" in broken.findings[0].text and "must have the same ids" in broken.findings[1].text
