from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.vault_labels import true_labels

from tpsl.vault import LabelTable, Vault, VaultError


def write_csv(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def made(folder: Path, table: Path, unit: str | None = None) -> Vault:
    return Vault.create(folder, batches=LabelTable(path=table, id="id", label="y", unit=unit), scratch=True)


def test_csv_keeps_leading_zeros_and_quoted_text(folder: Path, tmp_path: Path) -> None:
    table = write_csv(tmp_path / "t.csv", '\ufeffx,id,y,n\n1,007,1,"two\nlines"\n2,7,0,\n3,"a, b",true,"\n"\n')
    with made(folder, table) as vault:
        assert true_labels(vault, ["7", "007", "a, b"]).tolist() == [0, 1, 1]
        assert true_labels(vault, [7]).tolist() == [0]


def test_tsv_and_gzip(folder: Path, tmp_path: Path) -> None:
    import gzip

    table = tmp_path / "t.tsv.gz"
    table.write_bytes(gzip.compress(b"id\ty\n1\t1\n2\t0\n"))
    with made(folder, table) as vault:
        assert true_labels(vault, [1, 2]).tolist() == [1, 0]


@pytest.mark.parametrize("kind", [pa.string(), pa.int64(), pa.uint8(), pa.dictionary(pa.int8(), pa.string())], ids=str)
def test_parquet_of_any_id_type_agrees_with_csv(folder: Path, tmp_path: Path, kind: pa.DataType) -> None:
    ids = pa.array(["1", "2", "3"]).cast(kind) if pa.types.is_integer(kind) else pa.array(["1", "2", "3"], kind)
    pq.write_table(pa.table({"id": ids, "y": [1.0, 0.0, 1.0], "x": [9, 9, 9]}), tmp_path / "t.parquet")
    with made(folder, tmp_path / "t.parquet") as vault:
        csv = write_csv(tmp_path / "t.csv", "id,y\n1,1\n2,0\n3,0\n4,1\n")
        added = vault.add(LabelTable(path=csv, id="id", label="y"))
        assert (added.new, added.unchanged, added.changed) == (1, 2, 1)


def test_progress_and_many_batches(folder: Path, tmp_path: Path) -> None:
    count = 140_000
    table = pa.table({"id": range(count), "y": [0] * count, "user": [i // 2 for i in range(count)]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=30_000)
    seen: list[tuple[int, int, str]] = []
    labels = LabelTable(
        path=tmp_path / "t.parquet", id="id", label="y", unit="user", progress=lambda *step: seen.append(step)
    )
    with Vault.create(folder, batches=labels) as vault:
        assert len(vault) == count
        assert vault.verify() == []
    size = (tmp_path / "t.parquet").stat().st_size
    assert seen[-1] == (size, size, "reading t.parquet")
    assert len(seen) >= 3


FAULTS = {
    "missing column": ("id,label\n1,1\n", "there is no column 'y'; the columns are 'id', 'label'"),
    "column twice": ("id,y,y\n1,1,0\n", "there are 2 columns called 'y'"),
    "missing field": ("id,y\n1,1\n2\n", "cannot be read, row 2: 1 columns instead of 2"),
    "label out of range": ("id,y\n1,1\n2,2\n", "row 2: '2' is not a label"),
    "label text": ("id,y\n1,maybe\n", "row 1: 'maybe' is not a label"),
    "label NaN": ("id,y\n1,1\n2,NaN\n", "row 2: 'NaN' is not a label"),
    "label empty": ("id,y\n1,1\n2,\n", "row 2: the label is missing"),
    "id empty": ("id,y\n1,1\n,1\n", "row 2: the id is missing"),
    "id twice": ("id,y\n1,1\n3,1\n1,1\n", "row 3: the id '1' occurred before, in .*, row 1"),
    "empty file": ("", "there is no column 'id'; the columns are none"),
    "not text": (b"id,y\n\xff\xfe,1\n", "cannot be read"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_file_gives_one_sentence_and_no_vault(folder: Path, tmp_path: Path, name: str) -> None:
    content, message = FAULTS[name]
    table = write_csv(tmp_path / "bad.csv", content)
    with pytest.raises(VaultError, match=message) as error:
        made(folder, table)
    assert "bad.csv" in str(error.value)
    assert "\n" not in str(error.value)
    assert not Vault.exists(folder)


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_file_changes_nothing_in_a_vault(vault: Vault, tmp_path: Path, name: str) -> None:
    content, _ = FAULTS[name]
    before = vault.ledger().head
    with pytest.raises(VaultError, match=r"bad\.csv"):
        vault.add(LabelTable(path=write_csv(tmp_path / "bad.csv", content), id="id", label="y"))
    assert (len(vault), vault.ledger().head, vault.verify()) == (1000, before, [])


def test_a_truncated_or_corrupt_parquet_file(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"id": range(50_000), "y": [0, 1] * 25_000}), path, compression="zstd")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(VaultError, match=r"t\.parquet: cannot be read"):
        made(folder, path)
    path.write_bytes(whole[:1000] + bytes(2000) + whole[3000:])
    with pytest.raises(VaultError, match=r"t\.parquet"):
        made(folder, path)
    assert not Vault.exists(folder)


def test_files_that_are_none(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(VaultError, match=r"none\.csv: there is no such file"):
        made(folder, tmp_path / "none.csv")
    with pytest.raises(VaultError, match="the ending of a file tells its kind"):
        made(folder, tmp_path)
    with pytest.raises(VaultError, match="must be different columns"):
        Vault.create(folder, batches=LabelTable(path=write_csv(tmp_path / "t.csv", "id\n1\n"), id="id", label="id"))
    assert not Vault.exists(folder)


def test_tables_and_batches_of_one_import_enter_together(folder: Path, tmp_path: Path) -> None:
    for name, text in {"a.csv": "id,y\n1,no\n2,yes\n", "b.csv": "id;y\n3;no\n"}.items():
        write_csv(tmp_path / name, text)
    tables = [
        LabelTable(path=tmp_path / name, id="id", label="y", class_values=("no", "yes")) for name in ("a.csv", "b.csv")
    ]
    with Vault.create(folder, batches=[*tables, (["4"], [1], None)]) as vault:
        assert true_labels(vault, range(1, 5)).tolist() == [0, 1, 0, 1]
        assert [entry.kind for entry in vault.ledger().entries] == ["created", "added"]
        with pytest.raises(VaultError, match=r"b\.csv, row 1: the id '3' occurred before"):
            vault.add(
                [LabelTable(path=write_csv(tmp_path / "c.csv", "id,y\n5,1\n3,1\n"), id="id", label="y"), tables[1]]
            )
    with pytest.raises(VaultError, match=r"d\.csv, row 2: the id '2' occurred before, in .*a\.csv, row 2"):
        table = LabelTable(path=write_csv(tmp_path / "d.csv", "id,y\n9,1\n2,1\n"), id="id", label="y")
        Vault.create(tmp_path / "other", batches=[tables[0], table], scratch=True)
    with pytest.raises(VaultError, match="3 classes need as many different class values, not no, yes"):
        Vault.create(tmp_path / "other", classes=3, batches=tables, scratch=True)


def test_a_folder_of_files_is_one_table_whose_errors_name_the_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "days").mkdir()
    for day, ids in enumerate(("ab", "cd", "ef")):
        write_csv(tmp_path / "days" / f"{day}.csv", "id,y\n" + "".join(f"{id},1\n" for id in ids))
    with made(folder, tmp_path / "days") as vault:
        assert len(vault) == 6
    write_csv(tmp_path / "days" / "1.csv", "id,y\nc,1\nd,7\n")
    with pytest.raises(VaultError, match=r"1\.csv: column 'y', row 2: '7' is not a label"):
        made(tmp_path / "other", tmp_path / "days")
    write_csv(tmp_path / "days" / "1.csv", "id,y\nc,1\nb,1\n")
    with pytest.raises(VaultError, match=r"1\.csv, row 2: the id 'b' occurred before, in .*0\.csv, row 2"):
        made(tmp_path / "other", tmp_path / "days")
