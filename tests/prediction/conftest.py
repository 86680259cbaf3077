"""Runs on small tables, and new records for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from tpsl.data.config import LabelFile, TableData, TableFile
from tpsl.training.job import Job, make_job
from tpsl.training.one_process import train

COLOURS = np.array(["red", "green", "blue", ""])


def tables(records: int, seed: int, first: int = 0) -> dict[str, Any]:
    """Tables of two feature parties and of the label party, with missing numbers and categories."""
    draws = np.random.default_rng(seed)
    ids = [f"c{number:05d}" for number in range(first, first + records)]
    minutes, pages, age = draws.normal(5, 2, records), draws.integers(0, 9, records), draws.normal(40, 9, records)
    colours = COLOURS[draws.integers(0, 4, records)]
    label = (minutes + pages + 3 * (colours == "red") + age / 10 + draws.normal(0, 1, records) > 14).astype(int)
    seen = [None if number % 17 == 0 else float(value) for number, value in enumerate(minutes)]
    return {
        "shop": pa.table({"customer": ids, "minutes": seen, "colour": colours}),
        "bank": pa.table({"customer": ids, "pages": pages, "joined": [f"2024-01-{1 + n % 28:02d}" for n in pages]}),
        "label": pa.table({"id": ids, "age": age, "paid": label}),
    }


def write(folder: Path, found: dict[str, Any]) -> dict[str, Path]:
    """Write tables as CSV files, each for its party."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {party: folder / f"{party}.csv" for party in found}
    for party, table in found.items():
        pyarrow.csv.write_csv(table, paths[party])
    return paths


def table_job(paths: dict[str, Path], *, label_features: bool = True, **parts: Any) -> Job:
    """A job on such tables; `parts` are sections of the job."""
    roles = {
        "shop": {"categorical": ("colour",), "numeric": ("minutes",)},
        "bank": {"numeric": ("pages",), "dates": ("joined",)},
    }
    files = [
        TableFile.model_validate({"path": paths[party], "party": party, "id": "customer", **columns})
        for party, columns in roles.items()
        if party in paths
    ]
    label = LabelFile(path=paths["label"], label="paid", numeric=("age",) if label_features else ())
    data = TableData(features=tuple(files), label=label)
    content = {
        "data": data.model_dump(mode="json"),
        "privacy": {"epsilon": 4.0},
        "model": {"embedding_dim": 4, "bottom": [8, 6], "top": [8]},
        **parts,
    }
    content["training"] = {"batch_size": 64, "epochs": 2, "patience": 0, **parts.get("training", {})}
    return make_job(content, {}, "test")


@pytest.fixture(scope="session")
def shops() -> Any:
    """What makes tables, their files and jobs on them: `tables`, `write` and `table_job`."""
    return SimpleNamespace(tables=tables, write=write, table_job=table_job)


@pytest.fixture(scope="session")
def three_parties(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run of two feature parties and a label party with features of its own, and a local head."""
    folder = tmp_path_factory.mktemp("three-parties")
    paths = write(folder, tables(600, seed=1))
    train(table_job(paths, training={"head": "local"}), folder / "run")
    yield folder / "run"
