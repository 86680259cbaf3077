"""A feature party's Parquet files, on a disk or in object storage, read by Ray Data."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tpsl.data import arrays
from tpsl.data.config import TableData
from tpsl.data.dataset import load_feature_party
from tpsl.data.sides import FeatureSide
from tpsl.on_ray.cluster import RayWorkers, connected
from tpsl.on_ray.feature_reading import prepare_features, readers_on
from tpsl.tables import DataError, reading
from tpsl.training.job import make_job
from tpsl.training.local import Local

ROWS, FILES = 500, 5
DRAWS = np.random.default_rng(0)
WHOLE = pa.table(
    {
        "id": DRAWS.permutation(ROWS),
        "word": [f"w{number}" for number in DRAWS.integers(0, 9, ROWS)],
        "size": DRAWS.normal(size=ROWS),
    }
)


def parts() -> dict[str, bytes]:
    """The table as files of different lengths, one of them without records."""
    found = {}
    ends = [0, 70, 70, 200, 340, ROWS]
    for number, (start, stop) in enumerate(pairwise(ends)):
        sink = pa.BufferOutputStream()
        pq.write_table(WHOLE.slice(start, stop - start), sink)
        found[f"part-{number}.parquet"] = bytes(sink.getvalue())
    assert len(found) == FILES
    return found


def config(path: str | Path) -> TableData:
    features = [{"path": path, "party": "shop", "categorical": ["word"], "numeric": ["size"]}]
    return TableData.model_validate({"source": "table", "features": features, "label": {"path": "bank.parquet"}})


def forbid_reading_here(patch: pytest.MonkeyPatch) -> None:
    def refused(*given: Any) -> Any:
        raise AssertionError("this process reads a Parquet file")

    patch.setattr(reading, "_parquet_blocks", refused)


def same(one: FeatureSide, other: FeatureSide) -> bool:
    columns = [(side.features.categorical, side.features.numeric, side.train) for side in (one, other)]
    return one.ids.to_pylist() == other.ids.to_pylist() and all(map(np.array_equal, *columns))


def test_files_in_object_storage_are_read_by_the_cluster(
    cluster: Any, object_storage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = config(object_storage.put(parts()))
    here = load_feature_party(data, "shop")
    assert len(here.ids) == ROWS
    with monkeypatch.context() as patch, reading.parquet_read_by(readers_on(cluster, RayWorkers(2))):
        forbid_reading_here(patch)
        there = load_feature_party(data, "shop")
    assert same(here, there)


def test_large_features_are_left_in_the_cache_for_the_workers(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPSL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "shop").mkdir()
    for name, content in parts().items():
        (tmp_path / "shop" / name).write_bytes(content)
    data = config(tmp_path / "shop")
    job, share = make_job({"data": data.model_dump(mode="json", exclude_none=True)}, {}, "test"), RayWorkers(2)
    in_memory = load_feature_party(data, "shop")
    monkeypatch.setattr(arrays, "LARGE_BYTES", 100)
    with monkeypatch.context() as patch:
        forbid_reading_here(patch)
        prepare_features(cluster, share, job, "shop", Local())
    encoded = load_feature_party(data, "shop")
    assert encoded.features.is_mapped and same(encoded, in_memory)
    (tmp_path / "shop" / "part-3.parquet").write_bytes(b"PAR1 damaged")
    with pytest.raises(DataError, match=r"part-3.parquet: cannot be read"), connected() as ray:
        prepare_features(ray, share, job, "shop", Local())
