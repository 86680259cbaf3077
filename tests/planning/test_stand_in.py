from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from tpsl.data.dataset import load
from tpsl.data.features import table_features
from tpsl.data.true_labels import reveal
from tpsl.planning.stand_in import INVENTED_CATEGORIES, field_counts, planned_job, records_of, stand_in
from tpsl.training.job import Job, make_job
from tpsl.training.local import Local

ROWS = 50


def job(folder: Path, ending: str = "csv", **data: Any) -> Job:
    features = {"categorical": ["carrier"], "numeric": ["distance"], "dates": ["day"], "time": "day"}
    content = {
        "source": "table",
        "features": [{"path": str(folder / f"airport.{ending}"), "party": "airport", **features}],
        "label": {"path": str(folder / "airline.csv"), "unit": "customer", "time": "day"},
        "class_values": ["on time", "late"],
        "split": "chronological",
    }
    return make_job({"data": {**content, **data}}, {}, "a test")


def write_airport(folder: Path, ending: str) -> None:
    columns = {
        "id": [f"flight {number}" for number in range(ROWS)],
        "carrier": [f"only {number % 3}" for number in range(ROWS)],
        "distance": np.arange(ROWS) + 1000.0,
        "day": ["2026-11-16"] * ROWS,
    }
    table = pa.table(columns)
    if ending == "csv":
        pyarrow.csv.write_csv(table, folder / "airport.csv")
    else:
        pyarrow.parquet.write_table(table, folder / "airport.parquet")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_values_are_those_of_the_file_that_is_here(ending: str, tmp_path: Path) -> None:
    write_airport(tmp_path, ending)
    assert records_of(job(tmp_path, ending), {}) == ROWS
    planned = stand_in(job(tmp_path, ending), 200, tmp_path / "invented")
    data = load(planned.data)
    assert len(data.train) + len(data.test) == 200
    written = {path.name for path in (tmp_path / "invented").iterdir()}
    assert written == {f"airport.{ending}", "label.csv"}
    features = table_features(data.feature_parties["airport"], "a test")
    # Three carriers, hour and weekday of one day; each field has two rows more, for what is missing or not known.
    assert features.embedding_rows == 3 + 1 + 1 + 3 * 2
    counts = field_counts(planned, {"airport": Local(), "label": Local()})
    assert counts == {"airport": 3 + len(features.numeric_fields), "label": 0}


def test_a_label_party_has_fields_of_its_own(tmp_path: Path) -> None:
    label = {"path": str(tmp_path / "airline.csv"), "time": "day", "numeric": ["seats"]}
    planned = stand_in(job(tmp_path, label=label), 200, tmp_path / "invented")
    assert field_counts(planned, {"label": Local()}) == {"label": 1}


def test_labels_are_invented_although_there_are_true_ones(tmp_path: Path) -> None:
    write_airport(tmp_path, "csv")
    (tmp_path / "airline.csv").write_text("id,label,customer,day\n" + "x,never read,1,2026-11-16\n" * ROWS)
    data = load(stand_in(job(tmp_path), 200, tmp_path / "invented").data)
    assert set(reveal(data.labels)) == {0, 1}


def test_columns_of_a_file_that_is_elsewhere_are_invented(tmp_path: Path) -> None:
    planned = stand_in(job(tmp_path, "parquet"), 5000, tmp_path / "invented")
    (features,) = (table_features(each, "a test") for each in load(planned.data).feature_parties.values())
    assert 100 < features.embedding_rows < INVENTED_CATEGORIES + 100
    with pytest.raises(ValueError, match="no file of the job is within reach: say with --rows"):
        records_of(job(tmp_path), {})


def test_storage_of_another_party_need_not_answer(tmp_path: Path) -> None:
    write_airport(tmp_path, "csv")
    planned = stand_in(
        job(tmp_path, label={"path": "nobody://airline/labels", "time": "day"}), 200, tmp_path / "invented"
    )
    assert {path.name for path in (tmp_path / "invented").iterdir()} == {"airport.csv", "label.csv"}
    assert records_of(planned, {}) == 200


def test_an_alignment_is_not_rehearsed(tmp_path: Path) -> None:
    aligned = job(tmp_path, alignment={"mode": "label-only", "order": "time"})
    assert stand_in(aligned, 100, tmp_path / "invented").data.alignment is None  # type: ignore[union-attr]


def test_a_local_file_says_where_a_partys_table_is(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    write_airport(tmp_path / "elsewhere", "csv")
    local = {"airport": Local(data=tmp_path / "elsewhere" / "airport.csv")}
    assert records_of(planned_job(job(tmp_path), local), local) == ROWS


def test_drawn_data_are_drawn_in_another_number(tmp_path: Path) -> None:
    planned = make_job({"data": {"source": "synthetic", "rows": 77}}, {}, "a test")
    assert records_of(planned, {}) == 77
    assert stand_in(planned, 30, tmp_path).data.rows == 30  # type: ignore[union-attr]
    assert list(tmp_path.iterdir()) == []
