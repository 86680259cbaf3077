from pathlib import Path

import pytest

from tpsl.data.check import id_warnings
from tpsl.data.config import FlightsData, SyntheticData, TableData
from tpsl.data.dataset import load, load_feature_party, load_label_party

ROWS = 300


@pytest.mark.parametrize("min_count", [1, 2])
def test_columns_like_ids_are_told(tmp_path: Path, min_count: int) -> None:
    rows = "".join(f"{i},user{i},town{i % 40},{i % 2}\n" for i in range(ROWS))
    (tmp_path / "table.csv").write_text(f"id,user,town,label\n{rows}")
    file = {"path": tmp_path / "table.csv", "categorical": ["user", "town"]}
    config = TableData.model_validate({"features": [file], "label": file, "min_count": min_count})
    of_feature, of_label = id_warnings(load(config))
    assert of_feature.startswith("the column 'user' of feature hardly repeats a value")
    assert of_label.startswith("the column 'user' of label hardly repeats a value")
    assert list(id_warnings(load_feature_party(config))) == [of_feature]
    assert list(id_warnings(load_label_party(config))) == [of_label]


def test_built_in_data_have_none() -> None:
    assert not list(id_warnings(load(FlightsData(rows=2000, layout="natural"))))
    assert not list(id_warnings(load(SyntheticData(rows=2000))))
