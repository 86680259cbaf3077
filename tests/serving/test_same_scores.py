"""A record has the same score from whatever holds it: predicted by a run or an ensemble, served, or exported."""

from __future__ import annotations

import asyncio
import csv
import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

import tpsl
from tpsl.run.one_process import train
from tpsl.run.run_folder import RunFolder
from tpsl.run.setup import RunSetup
from tpsl.run.vaults import VaultChoice
from tpsl.select.search import tune
from tpsl.serving.http_server import HttpAccess
from tpsl.serving.services import FeatureService, LabelService, ServiceOptions

from .conftest import ask, port_of

DAYS = [f"2024-{1 + number % 12:02d}-{1 + number % 28:02d}" for number in range(32)]
RECORDS = pa.table(
    {
        "id": [f"r{number:02d}" for number in range(32)],
        "colour": [("red", "green", "blue", None, "never seen")[number % 5] for number in range(32)],
        "size": [None if number % 7 == 0 else 4.5 + number / 3 for number in range(32)],
        "bought": [None if number % 9 == 0 else day for number, day in enumerate(DAYS)],
    }
)
TYPED = RECORDS.set_column(3, "bought", RECORDS["bought"].cast(pa.timestamp("s")))


@pytest.fixture(scope="module")
def models(served_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run and an ensemble of two configurations."""
    folder, job = tmp_path_factory.mktemp("models"), RunFolder(served_runs / "alone").job()
    run, ensemble, vault = (folder / name for name in ("run", "ensemble", "vault"))
    train(job, run, vault=vault)
    space = [{"model": {"bottom": [8]}}, {"model": {"members": 2}}]
    tune(RunSetup(job, RunFolder(ensemble)), space, vault=VaultChoice(vault))
    return {"run": run, "ensemble": ensemble}


@pytest.fixture(scope="module")
def exported(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported halves of both parties, for each model."""
    out = tmp_path_factory.mktemp("exported")
    for name, path in models.items():
        for party in ("shop", "label"):
            tpsl.load(path).export(out / name / party, party)
    return out


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the records as CSV and Parquet."""
    folder = tmp_path_factory.mktemp("files")
    pyarrow.csv.write_csv(RECORDS, folder / "new.csv")
    pyarrow.parquet.write_table(TYPED, folder / "new.parquet")
    return folder


def source(kind: str, files: Path) -> Any:
    """The records as Python holds them."""
    made: dict[str, Callable[[], Any]] = {
        "csv": lambda: files / "new.csv",
        "parquet": lambda: files / "new.parquet",
        "json": RECORDS.to_pylist,
        "pandas": TYPED.to_pandas,
        "pandas without types": lambda: RECORDS.to_pandas().astype(object),
        "polars": lambda: pl.from_arrow(TYPED),
        "arrow": lambda: TYPED,
    }
    return made[kind]()


def as_json(given: Any) -> list[dict[str, Any]]:
    """The records as an application sends them."""
    if isinstance(given, pd.DataFrame):
        return list(json.loads(given.to_json(orient="records", date_format="iso")))
    if isinstance(given, Path) and given.suffix == ".csv":
        with given.open(newline="") as file:
            return list(csv.DictReader(file))
    rows = pyarrow.parquet.read_table(given) if isinstance(given, Path) else given
    plain = rows if isinstance(rows, list) else rows.to_dicts() if isinstance(rows, pl.DataFrame) else rows.to_pylist()
    return list(json.loads(json.dumps(plain, default=str)))


def predicted(model: Path, exported: Path, given: Any) -> Any:
    return tpsl.load(model).predict(given)


def served(model: Path, exported: Path, given: Any) -> Any:
    async def main() -> Any:
        options = ServiceOptions(model, HttpAccess())
        label = LabelService(options, "127.0.0.1:0", None, pytest.fail)
        await label.open()
        feature = FeatureService(options, "shop", label.address, None, pytest.fail)
        await feature.open()
        reply = await asyncio.to_thread(ask, port_of(feature), "/v1/score", {"records": as_json(given)})
        await feature.close()
        await label.close()
        assert reply.status == 200, reply.content
        return np.asarray(reply.content["scores"], np.float32)

    return asyncio.run(main())


def encoded(exported: Path, given: Any) -> tuple[Any, Any]:
    """What the exported encoder makes of records, as `predict.py` beside it does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(exported / "shop"))
        for name in ("encode", "spelling"):
            patch.delitem(sys.modules, name, raising=False)
        from encode import RowEncoder  # type: ignore[import-not-found]

        return RowEncoder(json.loads((exported / "shop" / "encoder.json").read_text())).encode(as_json(given))


@cache
def torch_half(folder: Path) -> Any:
    return torch.export.load(folder / "half.pt2").module()


@cache
def onnx_half(folder: Path) -> Any:
    return onnxruntime.InferenceSession(folder / "half.onnx")


def by_torch(model: Path, exported: Path, given: Any) -> Any:
    inputs: Any = map(torch.from_numpy, encoded(exported, given))
    for party in ("shop", "label"):
        inputs = (torch_half(exported / party)(*inputs),)
    return inputs[0].detach().numpy()


def by_onnx(model: Path, exported: Path, given: Any) -> Any:
    inputs: Any = encoded(exported, given)
    for party in ("shop", "label"):
        session = onnx_half(exported / party)
        inputs = session.run(None, dict(zip((one.name for one in session.get_inputs()), inputs, strict=True)))
    return inputs[0]


@pytest.mark.parametrize("kind", ["csv", "parquet", "json", "pandas", "pandas without types", "polars", "arrow"])
@pytest.mark.parametrize(("how", "tolerance"), [(predicted, 0), (served, 0), (by_torch, 1e-5), (by_onnx, 1e-5)])
@pytest.mark.parametrize("model", ["run", "ensemble"])
def test_the_score_of_a_record(
    models: dict[str, Path], exported: Path, files: Path, model: str, how: Any, tolerance: float, kind: str
) -> None:
    expected = tpsl.load(models[model]).predict(files / "new.csv")
    found = how(models[model], exported / model, source(kind, files))
    assert expected.shape == (32,) and expected.std() > 1e-3
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)
