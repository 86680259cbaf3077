"""New records: whatever a file brings that the run can read, in an order that all parties agree on."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from tpsl.data import out_of_core
from tpsl.data.features import Features
from tpsl.model.records import NewRecords, read_records, require_same_records
from tpsl.run.one_process import train
from tpsl.run.run_folder import RunFolder
from tpsl.tables import DataError


def features_by_id(records: NewRecords) -> dict[str, tuple[bytes, bytes]]:
    assert isinstance(records.inputs, Features)
    found = records.inputs.take(records.order)
    rows = zip(found.categorical, found.numeric, strict=True)
    return dict(zip(records.common_ids.to_pylist(), ((c.tobytes(), n.tobytes()) for c, n in rows), strict=True))


def test_another_order_of_rows_and_columns_further_columns_and_another_format_change_nothing(
    three_parties: Path, shops: Any, tmp_path: Path
) -> None:
    table = shops.tables(40, seed=2)["shop"]
    plain = read_records(RunFolder(three_parties), "shop", str(shops.write(tmp_path, {"shop": table})["shop"]))
    other = table.select(["minutes", "colour", "customer"]).append_column("label", pa.array(["?"] * 40))
    other = other.take(pa.array(np.random.default_rng(3).permutation(40)))
    pyarrow.parquet.write_table(other, tmp_path / "other.parquet")
    shuffled = read_records(RunFolder(three_parties), "shop", str(tmp_path / "other.parquet"))
    assert features_by_id(shuffled) == features_by_id(plain)
    assert shuffled.common_ids.to_pylist() == plain.common_ids.to_pylist() == table["customer"].to_pylist()
    assert shuffled.ids.to_pylist() == other["customer"].to_pylist()
    positions = shuffled.in_file_order()
    assert shuffled.ids_at(positions).to_pylist() == other["customer"].to_pylist()
    require_same_records({"one": plain, "other": shuffled})


def test_unseen_categories_and_missing_values_are_encoded(three_parties: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("customer,minutes,colour\na,1.5,violet\nb,,red\nc,2.5,\n")
    records = read_records(RunFolder(three_parties), "shop", str(tmp_path / "new.csv"))
    assert isinstance(records.inputs, Features)
    unseen, known, missing = records.inputs.categorical[:, 0].tolist()
    assert (unseen, missing) == (0, 1) and known > 1
    assert records.inputs.numeric[1].tolist() == [0.0, 1.0]


def test_many_records_lie_on_disk(
    three_parties: Path, shops: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shops.write(tmp_path, {"shop": shops.tables(200, seed=4)["shop"]})["shop"]
    in_memory = read_records(RunFolder(three_parties), "shop", str(path))
    monkeypatch.setenv("TPSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(out_of_core, "LARGE_BYTES", 500)
    on_disk = read_records(RunFolder(three_parties), "shop", str(path))
    assert isinstance(on_disk.inputs, Features) and on_disk.inputs.is_mapped
    assert features_by_id(on_disk) == features_by_id(in_memory)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("customer,colour\na,red\n", r"new\.csv: there is no column 'minutes'; the columns are 'customer', 'colour'"),
        ("minutes,colour\n1,red\n", r"new\.csv: there is no column 'customer'"),
        ("customer,minutes,colour\na,much,red\n", r"new\.csv.*'much' is not a number"),
        ("customer,minutes,colour\na,1,red\na,2,red\n", r"new\.csv: id 'a' stands in row 1 and in row 2"),
        ("customer,minutes,colour\n", r"new\.csv: the file has no records"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(three_parties: Path, tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "new.csv").write_text(text)
    with pytest.raises(DataError, match=sentence):
        read_records(RunFolder(three_parties), "shop", str(tmp_path / "new.csv"))


def test_other_records_of_another_party_are_counted(three_parties: Path, shops: Any, tmp_path: Path) -> None:
    run = RunFolder(three_parties)
    shop = read_records(run, "shop", str(shops.write(tmp_path, {"shop": shops.tables(10, seed=5)["shop"]})["shop"]))
    bank = read_records(
        run, "bank", str(shops.write(tmp_path, {"bank": shops.tables(10, seed=5, first=3)["bank"]})["bank"])
    )
    with pytest.raises(DataError, match=r"3 of 10 are only in the first and 3 of 10 only in the second"):
        require_same_records({"shop": shop, "bank": bank})


def test_a_label_party_without_features_brings_ids_alone(shops: Any, tmp_path: Path) -> None:
    paths = shops.write(
        tmp_path, {party: table for party, table in shops.tables(120, seed=6).items() if party != "bank"}
    )
    train(shops.table_job(paths, label_features=False), tmp_path / "run")
    (tmp_path / "new.csv").write_text("id\nb\na\n")
    records = read_records(RunFolder(tmp_path / "run"), "label", str(tmp_path / "new.csv"))
    assert records.inputs is None and len(records) == 2
    assert records.common_ids.to_pylist() == ["a", "b"]
    assert records.numbered().common_ids.to_pylist() == ["000000000001", "000000000002"]
    assert records.numbered().order.tolist() == [0, 1]
    # The list may be the feature party's: few bytes that stand for 10 million ids of 100 bytes are refused.
    same = pa.DictionaryArray.from_arrays(pa.array(np.zeros(10_000_000, np.int32)), pa.array(["a" * 100]))
    pyarrow.parquet.write_table(pa.table({"id": same}), tmp_path / "new.parquet", store_schema=False)
    with pytest.raises(DataError, match=r"new\.parquet: has .* bytes and unpacks to more than 134,217,728"):
        read_records(RunFolder(tmp_path / "run"), "label", str(tmp_path / "new.parquet"))
