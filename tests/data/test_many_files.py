"""A party's table in many files, here or in object storage, is the data that it is in one file."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tpsl.data import out_of_core
from tpsl.data.aligned import source_now
from tpsl.data.check import check_data
from tpsl.data.config import TableData
from tpsl.data.dataset import Dataset, load, load_feature_party
from tpsl.data.true_labels import reveal
from tpsl.run.job import load_job
from tpsl.run.local import load_local
from tpsl.tables import DataError
from tpsl.tables.locations import Url

ROWS = 300
RNG = np.random.default_rng(0)
WHOLE = pa.table(
    {
        "id": RNG.permutation(ROWS),
        "word": [f"w{number}" for number in RNG.integers(0, 9, ROWS)],
        "size": RNG.normal(size=ROWS),
        "label": RNG.integers(0, 2, ROWS),
    }
)


def written(table: Any, ending: str) -> bytes:
    sink = pa.BufferOutputStream()
    pa.csv.write_csv(table, sink) if ending == "csv" else pq.write_table(table, sink)
    return bytes(sink.getvalue())


def config(features: str | Path, label: str | Path) -> TableData:
    return TableData.model_validate(
        {
            "source": "table",
            "features": [{"path": features, "categorical": ["word"], "numeric": ["size"]}],
            "label": {"path": label},
        }
    )


def same(one: Dataset, other: Dataset) -> bool:
    def parts(data: Dataset) -> list[Any]:
        (features,) = data.feature_parties.values()
        return [features.categorical, features.numeric, data.train, data.test, reveal(data.labels)]  # type: ignore[union-attr]

    equal = all(np.array_equal(mine, theirs) for mine, theirs in zip(parts(one), parts(other), strict=True))
    return equal and one.ids.to_pylist() == other.ids.to_pylist()


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("large", [False, True])
def test_records_of_many_files_are_those_of_one(
    object_storage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, large: bool
) -> None:
    parts = {
        f"part-{number}.{ending}": written(WHOLE[start : start + 70], ending)
        for number, start in enumerate(range(0, ROWS, 70))
    }
    (tmp_path / "parts").mkdir()
    for name, content in parts.items():
        (tmp_path / "parts" / name).write_bytes(content)
    (tmp_path / f"whole.{ending}").write_bytes(written(WHOLE, ending))
    one = load(config(tmp_path / f"whole.{ending}", tmp_path / f"whole.{ending}"))
    url = object_storage.put(parts)
    monkeypatch.setenv("TPSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(out_of_core, "LARGE_BYTES", 0 if large else out_of_core.LARGE_BYTES)
    assert same(load(config(tmp_path / "parts", f"{url}/part-*")), one)
    assert same(load(config(url, tmp_path / "parts" / "*")), one)
    assert check_data(config(url, tmp_path / "parts")).passed


def test_a_change_of_any_file_is_noticed(tmp_path: Path) -> None:
    for number in range(3):
        pq.write_table(WHOLE[number * 100 : number * 100 + 100], tmp_path / f"{number}.parquet")
    file = config(tmp_path, tmp_path).label
    before = source_now(file, ["id"])
    assert before.rows == ROWS and before.is_untouched(tmp_path)
    pq.write_table(WHOLE[:99], tmp_path / "1.parquet")
    assert not before.is_untouched(tmp_path)
    assert not before.has_same_keys(source_now(file, ["id"]))


def test_a_change_while_files_are_read_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    for number in range(3):
        pq.write_table(WHOLE[number * 100 : number * 100 + 100], tmp_path / "parts" / f"{number}.parquet")
    tables, told = config(tmp_path / "parts", tmp_path / "parts"), list[str]()

    def change(done: int, total: int, what: str) -> None:
        if what.startswith("reading") and what not in told:
            told.append(what)
            pq.write_table(WHOLE[:99], tmp_path / "parts" / "9.parquet")

    with pytest.raises(DataError, match=r"parts: has changed while it was read; begin again when it is complete"):
        load_feature_party(tables, progress=change)


def test_a_fault_is_named_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,word,size,label\n1,a,1,0\n2,b,2,1\n")
    (tmp_path / "b.csv").write_text("id,word,size,label\n3,a,much,0\n")
    with pytest.raises(DataError, match=r"b\.csv: column 'size', row 1: 'much' is not a number"):
        load(config(tmp_path, tmp_path))


def test_a_url_survives_job_and_local_file(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "data: {source: table, features: [{path: 's3://bucket/x', numeric: [size]}], label: {path: 'parts/*.csv'}}"
    )
    data = load_job(job).data
    assert isinstance(data, TableData)
    assert (data.features[0].path, data.label.path) == (Url("s3://bucket/x"), tmp_path / "parts" / "*.csv")
    (tmp_path / "again.yaml").write_text(load_job(job).to_yaml())
    assert load_job(tmp_path / "again.yaml").data == data
    (tmp_path / "local.yaml").write_text("data: s3://bucket/x/*.parquet")
    assert load_local(tmp_path / "local.yaml").data == Url("s3://bucket/x/*.parquet")
    assert load_local(tmp_path / "local.yaml").overridden(data=Path("gs://other/x")).data == Url("gs://other/x")
