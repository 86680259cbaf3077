"""Runs on small tables, new records for them, and a run with all that an exported half has to carry."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from tpsl.data.config import LabelFile, TableData, TableFile
from tpsl.run.job import Job, make_job
from tpsl.run.one_process import train

ROWS = 600
Records = list[dict[str, str]]

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


def shop_records(count: int, seed: int) -> Records:
    """Return a feature party's records as text, some values missing."""
    draw = random.Random(seed)
    return [
        {
            "id": f"{number:05d}",
            "colour": draw.choice(["red", "blue", "grün", "a,b", ""]),
            "size": str(draw.randint(1, 4)),
            "weight": draw.choice(["", f"{draw.gauss(3, 2):.3f}"]),
            "bought": draw.choice(
                ["", f"2024-{draw.randint(1, 12):02d}-{draw.randint(1, 28):02d}T{number % 24:02d}:30:00"]
            ),
        }
        for number in range(count)
    ]


def bank_records(count: int, seed: int) -> Records:
    """Return the label party's records as text: categories and no numbers."""
    draw = random.Random(seed)
    return [
        {
            "id": f"{number:05d}",
            "branch": draw.choice(["north", "south", ""]),
            "label": str(draw.randint(0, 1)),
        }
        for number in range(count)
    ]


def write_csv(path: Path, records: Records) -> Path:
    columns = {name: [record[name] for record in records] for name in records[0]}
    pyarrow.csv.write_csv(pa.table(columns), path)
    return path


@pytest.fixture(scope="session")
def job_of_tables(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Job]:
    """Return a function of (model, training) that makes a job of a shop's and a bank's table."""
    folder = tmp_path_factory.mktemp("tables")
    shop = write_csv(folder / "shop.csv", shop_records(ROWS, 1))
    bank = write_csv(folder / "bank.csv", bank_records(ROWS, 2))

    def make(model: dict[str, Any] | None = None, **training: Any) -> Job:
        content = {
            "data": {
                "source": "table",
                "features": [
                    {
                        "party": "shop",
                        "path": str(shop),
                        "categorical": ["colour", "size"],
                        "numeric": ["weight"],
                        "dates": ["bought"],
                    }
                ],
                "label": {"path": str(bank), "categorical": ["branch"]},
            },
            "privacy": {"epsilon": 4.0},
            "model": {"embedding_dim": 4, "bottom": [16, 8], "top": [8], **(model or {})},
            "training": {"batch_size": 128, "epochs": 1, "patience": 0, **training},
        }
        return make_job(content, {}, "test")

    return make


@pytest.fixture(scope="session")
def run(job_of_tables: Callable[..., Job], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished run with two members and a wide part."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TPSL_HOME", str(folder.with_name("home")))
        train(job_of_tables({"members": 2, "wide": True}), folder, vault=folder / "label" / "vault")
    return folder


@pytest.fixture
def new_records(tmp_path: Path) -> tuple[Path, Path]:
    """Return files of records that nobody has seen: new categories, missing values, other columns, another order."""
    shop, bank = shop_records(50, 7), bank_records(50, 8)
    shop[0] |= {"colour": "never seen", "weight": "1e6", "bought": "1950-01-01"}
    shop[1] |= dict.fromkeys(("colour", "size", "weight", "bought"), "")
    bank[2]["branch"] = "west"
    more = [{"more": "x", **dict(reversed(record.items()))} for record in shop]
    without_labels = [{name: record[name] for name in ("branch", "id")} for record in bank]
    return write_csv(tmp_path / "shop.csv", more), write_csv(tmp_path / "bank.csv", without_labels)
