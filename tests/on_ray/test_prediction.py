"""Batch prediction on a Ray cluster: a file of scores for each file of records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from tpsl.training.job import make_job
from tpsl.training.one_process import train


def write_tables(folder: Path, name: str, records: int, seed: int) -> None:
    """Write a file of features of the shop, and one of the bank with a feature and the label."""
    draws = np.random.default_rng(seed)
    minutes, age = draws.normal(5, 2, records), draws.normal(40, 9, records)
    ids = [f"{seed}-{number:04d}" for number in range(records)]
    for party, columns in (("shop", {"minutes": minutes}), ("bank", {"age": age, "label": (minutes > 5).astype(int)})):
        (folder / party).mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pa.table({"id": ids, **columns}), folder / party / name)


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with features at both parties, and three files of new records of each."""
    folder = tmp_path_factory.mktemp("office")
    write_tables(folder, "known.parquet", 200, seed=1)
    for number in range(3):
        write_tables(folder / "new", f"part-{number}.parquet", 30 + number, seed=2 + number)
    shop = {"path": str(folder / "shop" / "known.parquet"), "party": "shop", "numeric": ["minutes"]}
    label = {"path": str(folder / "bank" / "known.parquet"), "numeric": ["age"]}
    content = {
        "data": {"source": "table", "features": [shop], "label": label},
        "model": {"embedding_dim": 2, "bottom": [4], "top": [4]},
        "training": {"epochs": 1, "batch_size": 64},
    }
    train(make_job(content, {}, "test"), folder / "run")
    return folder


def records_of(folder: Path) -> tuple[str, ...]:
    return ("--records", f"shop={folder / 'shop'}", "--records", f"label={folder / 'bank'}")


def test_each_file_gets_the_scores_of_tpsl_predict(cluster: Any, office: Path, tpsl: Any, tmp_path: Path) -> None:
    out, options = tmp_path / "scores", ("--ray", "--ray-workers", 2, "--json")
    command = ("predict", office / "run", *records_of(office / "new"), "--out", out, *options)
    assert tpsl(*command).json() == {"scores": str(out), "files": 3, "head": "private"}
    names = [f"part-{number}.parquet" for number in range(3)]
    assert sorted(path.name for path in out.iterdir()) == [*names, "predicted.json"]
    for name in names:
        one = [f"{party}={office / 'new' / folder / name}" for party, folder in (("shop", "shop"), ("label", "bank"))]
        alone = ("predict", office / "run", "--records", one[0], "--records", one[1], "--out", tmp_path / name)
        assert tpsl(*alone).status == 0
        assert (out / name).read_bytes() == (tmp_path / name).read_bytes()
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    (out / names[1]).unlink()
    assert tpsl(*command).json()["files"] == 3
    after = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    assert [name for name in before if before[name] != after[name]] == [names[1]]
    write_tables(tmp_path, "part-0.parquet", 10, seed=9)
    other = ("predict", office / "run", *records_of(tmp_path), "--out", out, *options)
    assert "holds scores by another model or of other records" in tpsl(*other).error()


def test_files_without_a_partner_are_refused(cluster: Any, office: Path, tpsl: Any, tmp_path: Path) -> None:
    write_tables(tmp_path, "part-0.parquet", 10, seed=9)
    write_tables(tmp_path, "part-1.parquet", 10, seed=10)
    (tmp_path / "bank" / "part-1.parquet").unlink()
    command = ("predict", office / "run", *records_of(tmp_path), "--out", tmp_path / "scores", "--ray")
    assert tpsl(*command).error() == "error: part-1.parquet: 'shop' has such a file of records, and 'label' has none"
