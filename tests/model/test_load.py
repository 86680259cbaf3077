"""`tpsl.load`: one object that predicts, embeds, exports and describes, from whatever holds the records."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import tpsl
from tpsl.model.predictors import PredictionError
from tpsl.model.records import read_records
from tpsl.run.one_process import train
from tpsl.run.run_folder import RunError
from tpsl.run.vaults import VaultChoice
from tpsl.tables import DataError


@pytest.fixture(scope="module")
def shop_run(shops: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one feature party and a label party without features."""
    folder = tmp_path_factory.mktemp("shop")
    found = shops.tables(200, seed=1)
    paths = shops.write(folder, {"shop": found["shop"], "label": found["label"]})
    train(shops.table_job(paths, label_features=False), folder / "run", vault=VaultChoice(folder / "vault"))
    return folder / "run"


@pytest.fixture
def table(shops: Any) -> Any:
    """New records, in no order of ids."""
    return shops.tables(40, seed=2, first=5000)["shop"].take(np.random.default_rng(3).permutation(40))


def test_scores_are_in_the_order_of_the_table(shop_run: Path, table: Any, tmp_path: Path) -> None:
    """Whatever its ids are; `tests/serving/test_same_scores.py` compares what may hold the records."""
    pyarrow.csv.write_csv(table, tmp_path / "new.csv")
    model = tpsl.load(shop_run)
    found = model.predict(tmp_path / "new.csv")
    inputs = read_records(model.run, "shop", str(tmp_path / "new.csv")).inputs
    np.testing.assert_allclose(found, model.halves().probabilities({"shop": inputs}), atol=1e-6)
    assert np.array_equal(model.predict({"shop": table}), found)
    assert np.array_equal(model.embed(table.to_pandas()), model.embed(tmp_path / "new.csv"))


def test_records_without_ids_are_numbered(shop_run: Path, table: Any) -> None:
    model, without = tpsl.load(shop_run), table.drop_columns("customer")
    assert np.array_equal(model.predict(without), model.predict(without.to_pylist()))
    np.testing.assert_allclose(model.predict(without), model.predict(table), atol=1e-6)
    with pytest.raises(DataError, match="there is no column 'minutes', which the encoder has learned from"):
        model.predict(without.drop_columns("minutes"))
    for nothing in (without.slice(0, 0), []):
        with pytest.raises(DataError, match="the records of shop: there are none"):
            model.predict(nothing)
    with pytest.raises(DataError, match="the data frame: column 'minutes', row 1: 'much' is not a number"):
        model.predict(pd.DataFrame({"minutes": ["much"], "colour": ["red"]}))


def test_several_parties_are_joined_by_id(three_parties: Path, shops: Any) -> None:
    model, tables = tpsl.load(three_parties), shops.tables(30, seed=4, first=7000)
    shuffled = {**tables, "bank": tables["bank"].take(np.arange(30)[::-1])}
    found = model.predict(shuffled)
    assert np.array_equal(found, model.predict({party: table.to_pandas() for party, table in tables.items()}))
    local = model.predict(tables, head="local")
    assert not np.array_equal(local, found)
    own = model.embed(tables["label"], "label")
    assert own.shape == (30, model.embedder("label").width)
    with pytest.raises(PredictionError, match="the records of shop, bank, label are told apart by the name"):
        model.predict(tables["shop"])
    with pytest.raises(PredictionError, match="records of shop, bank, label are needed, those of shop are given"):
        model.predict({"shop": tables["shop"]})


def test_a_model_describes_and_exports_itself(shop_run: Path, table: Any, tmp_path: Path) -> None:
    model = tpsl.load(str(shop_run))
    assert model.card("shop")["versions"] == model.card()["versions"] == model.versions()
    assert "metrics" in model.card() and "metrics" not in model.card("shop")
    exported = model.export(tmp_path / "out", "shop")
    assert set(exported.card["files"].values()) == {"written"}
    assert exported.card["records"] == model.card("shop")["records"]


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run folder"):
        tpsl.load(tmp_path)


def test_dates_are_read_as_in_training(three_parties: Path, shops: Any) -> None:
    """Those of a frame are dates, those of a file text."""
    model, bank = tpsl.load(three_parties), shops.tables(30, seed=4)["bank"]
    at = bank.schema.get_field_index("joined")
    typed = bank.set_column(at, "joined", bank["joined"].cast(pa.timestamp("us")))
    assert np.array_equal(model.embed(typed, "bank"), model.embed(bank, "bank"))
