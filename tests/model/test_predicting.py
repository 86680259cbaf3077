"""Scores of new records in one process, and the files they are written into."""

import stat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from tpsl.model.predictors import PredictionError
from tpsl.model.records import NewRecords, place_of_scores, predict_records, read_records
from tpsl.model.trained import TrainedModel
from tpsl.run import schedule
from tpsl.run.job import make_job
from tpsl.run.one_process import load_records, train
from tpsl.run.run_folder import RunFolder
from tpsl.tables import DataError
from tpsl_research.example_data import write_flights


def read_all(run: Path, paths: dict[str, Path]) -> dict[str, NewRecords]:
    return {party: read_records(RunFolder(run), party, str(path)) for party, path in paths.items()}


def scored(run: Path, records: dict[str, NewRecords], out: Path) -> dict[str, float]:
    names = RunFolder(run).job().data.class_names
    predict_records(TrainedModel.open(run).halves(), records, names).write(out, next(iter(records.values())))
    table = pyarrow.parquet.read_table(out) if out.suffix == ".parquet" else pyarrow.csv.read_csv(out)
    return dict(zip(table["id"].to_pylist(), table["score"].to_pylist(), strict=True))


def test_the_files_of_the_training_give_what_the_run_predicts(three_parties: Path, tmp_path: Path) -> None:
    folder = three_parties.parent
    records = read_all(three_parties, {party: folder / f"{party}.csv" for party in ("shop", "bank", "label")})
    found = scored(three_parties, records, tmp_path / "scores.parquet")
    data = load_records(RunFolder(three_parties).job())
    expected = TrainedModel.open(three_parties).predict_rows(data)
    assert list(found) == data.ids.to_pylist()
    assert np.array_equal(np.array(list(found.values()), np.float32), expected)
    assert stat.S_IMODE((tmp_path / "scores.parquet").stat().st_mode) == 0o600


def test_scores_are_in_the_order_of_the_first_file_and_those_of_the_records(
    three_parties: Path, shops: Any, tmp_path: Path
) -> None:
    found = shops.tables(50, seed=8, first=5000)
    plain = scored(three_parties, read_all(three_parties, shops.write(tmp_path / "a", found)), tmp_path / "a.csv")
    order = np.random.default_rng(9).permutation(50)
    shuffled = {**found, "shop": found["shop"].take(order), "label": found["label"].take(order[::-1])}
    other = scored(three_parties, read_all(three_parties, shops.write(tmp_path / "b", shuffled)), tmp_path / "b.csv")
    assert other == plain
    assert list(other) == shuffled["shop"]["customer"].to_pylist() != list(plain)
    assert 0 < min(plain.values()) < max(plain.values()) < 1


def test_parts_of_another_size_give_the_same_scores(
    three_parties: Path, shops: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = read_all(three_parties, shops.write(tmp_path, shops.tables(50, seed=8, first=5000)))
    whole = scored(three_parties, records, tmp_path / "whole.parquet")
    monkeypatch.setattr(schedule, "TEST_ROWS_AT_ONCE", 7)
    assert scored(three_parties, records, tmp_path / "parts.parquet") == pytest.approx(whole, abs=1e-6)


def test_parties_and_records_that_are_missing_are_named(three_parties: Path, shops: Any, tmp_path: Path) -> None:
    records = read_all(three_parties, shops.write(tmp_path, shops.tables(20, seed=8)))
    halves, names = TrainedModel.open(three_parties).halves(), ("0", "1")
    with pytest.raises(PredictionError, match="records of shop, bank, label are needed, those of shop are given"):
        predict_records(halves, {"shop": records["shop"]}, names)
    fewer = read_all(three_parties, shops.write(tmp_path / "fewer", shops.tables(19, seed=8)))
    with pytest.raises(DataError, match="1 of 20 are only in the first and 0 of 19 only in the second"):
        predict_records(halves, {**records, "bank": fewer["bank"]}, names)


def test_a_file_of_another_kind_is_refused(three_parties: Path, shops: Any, tmp_path: Path) -> None:
    records = read_all(three_parties, shops.write(tmp_path, shops.tables(5, seed=8)))
    scores = predict_records(TrainedModel.open(three_parties).halves(), records, ("0", "1"))
    with pytest.raises(DataError, match=r"scores\.xlsx: a table is written as one of \.csv, \.parquet"):
        scores.write(tmp_path / "scores.xlsx", records["shop"])


def test_k_classes_have_a_column_each(tmp_path: Path) -> None:
    job = make_job({"data": {"source": "flights", "task": "delay5", "rows": 300}}, {}, "test")
    train(job, tmp_path / "run")
    write_flights(tmp_path / "new", "all", "delay5", rows=40)
    records = read_all(tmp_path / "run", {"feature": tmp_path / "new" / "airport.parquet"})
    scores = predict_records(TrainedModel.open(tmp_path / "run").halves(), records, job.data.class_names)
    scores.write(tmp_path / "scores.csv", records["feature"])
    table = pyarrow.csv.read_csv(tmp_path / "scores.csv")
    assert table.column_names == ["id", *(f"score_{name}" for name in job.data.class_names)]
    np.testing.assert_allclose(sum(table[name].to_numpy() for name in table.column_names[1:]), 1, atol=1e-5)


def test_scores_of_a_local_head_are_marked_and_kept_from_others(tmp_path: Path) -> None:
    assert place_of_scores(tmp_path / "scores.csv", local_head=False) == tmp_path / "scores.csv"
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "open").chmod(0o755)
    with pytest.raises(PredictionError, match="open: others can enter this folder"):
        place_of_scores(tmp_path / "open" / "scores.csv", local_head=True)
    (tmp_path / "closed").mkdir(mode=0o700)
    marked = place_of_scores(tmp_path / "closed" / "scores.csv", local_head=True)
    assert marked == tmp_path / "closed" / "NOT-PRIVATE-scores.csv"
    assert place_of_scores(marked, local_head=True) == marked
