"""A table seen through an alignment: its rows in the common order, and one clear sentence for what does not fit."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tpsl.data import out_of_core
from tpsl.data.aligned import Alignment, source_now
from tpsl.data.check import check_data
from tpsl.data.config import AlignmentConfig, LabelFile, TableData, TableFile
from tpsl.data.dataset import load, load_feature_party, load_label_party
from tpsl.data.sides import Relabelling
from tpsl.data.true_labels import reveal
from tpsl.tables import DataError

DIGEST = "0123456789abcdef" * 4
SHOP = [4, 0, 3, 7, 1, 6]
"""The shop's row for each common record, in the common order."""
BANK = [2, -1, 0, -1, 3, 1]


def write_tables(folder: Path) -> TableData:
    """A shop with eight customers and a bank that knows some of them, by other row numbers."""
    shop = {"id": [f"c{n}" for n in range(8)], "size": [float(n) for n in range(8)], "colour": list("abababab")}
    pq.write_table(pa.table(shop), folder / "shop.parquet")
    (folder / "bank.csv").write_text("id,label,segment\nc3,1,x\nc6,0,y\nc4,1,x\nc1,1,y\nz,0,x\n")
    file = TableFile(path=folder / "shop.parquet", party="shop", numeric=("size",), categorical=("colour",))
    return TableData(
        features=(file.model_copy(update={"alignment": folder / "shop"}),),
        label=LabelFile(path=folder / "bank.csv", alignment=folder / "bank"),
        alignment=AlignmentConfig(),
        test_fraction=0.34,
        min_count=1,
    )


def save(config: TableData, rows: dict[str, list[int]], **changes: Any) -> None:
    """Write the alignments by hand, as `tpsl align` leaves them."""
    assert config.alignment is not None
    for party, file in {"shop": config.features[0], "label": config.label}.items():
        source = source_now(file, ("id",))
        made = Alignment(party, config.alignment.mode, DIGEST, ("id",), source, np.array(rows[party]))
        assert file.alignment is not None
        replace(made, **changes).save(file.alignment)


@pytest.fixture
def config(tmp_path: Path) -> TableData:
    made = write_tables(tmp_path)
    save(made, {"shop": SHOP, "label": BANK})
    return made


def in_mode_both(config: TableData) -> TableData:
    both = config.model_copy(update={"alignment": AlignmentConfig(mode="both")})
    known = [at for at, row in enumerate(BANK) if row >= 0]
    keys = np.arange(len(known) * 32, dtype=np.uint8).reshape(-1, 32)
    save(both, {"shop": [SHOP[at] for at in known], "label": [BANK[at] for at in known]}, matched_keys=keys)
    return both


def test_records_are_those_of_the_alignment_in_its_order(config: TableData) -> None:
    data = load(config)
    assert data.ids.to_pylist() == [f"0123456789abcdef-{n:012d}" for n in range(6)]
    shop = data.feature_sides["shop"]
    assert shop.encoder is not None
    standard = shop.encoder.numbers["size"]
    sizes = shop.features.numeric[:, 0] * standard.deviation + standard.mean  # type: ignore[union-attr]
    assert np.allclose(sizes, SHOP)
    assert np.allclose([standard.mean], np.mean(np.array(SHOP)[data.train])), "learned from the training records alone"


def test_an_alignment_can_be_written_by_another_program(tmp_path: Path) -> None:
    """The files as docs/wire.md describes them, made without tpsl; the digest of the keys is not known elsewhere."""
    config = write_tables(tmp_path)
    for party, file, rows in (("shop", config.features[0], SHOP), ("label", config.label, BANK)):
        assert file.alignment is not None and isinstance(file.path, Path)
        file.alignment.mkdir()
        stat = file.path.stat()
        source = {"rows": 8 if party == "shop" else 5, "bytes": stat.st_size, "modified": stat.st_mtime_ns}
        card = {"version": 1, "party": party, "mode": "label-only", "keys": ["id"], "digest": DIGEST, "records": 6}
        card |= {"matched": None, "has_matched_keys": False, "source": {**source, "digest": ""}}
        np.save(file.alignment / "rows.npy", np.array(rows, "<i8"))
        (file.alignment / "alignment.json").write_text(json.dumps(card))
    assert load(config).ids.to_pylist() == [f"0123456789abcdef-{n:012d}" for n in range(6)]
    assert reveal(load_label_party(config).labels).tolist() == [1, 0, 1, 0, 1, 0]


def test_a_record_that_the_label_party_does_not_know_is_class_0(config: TableData) -> None:
    side = load_label_party(config)
    assert reveal(side.labels).tolist() == [1, 0, 1, 0, 1, 0]
    assert side.records.units is None and side.records.ids_are_new and side.records.further_records == 0


def test_a_further_record_of_a_unit_counts_as_unknown(config: TableData) -> None:
    """The units of the six records are x, none, x, none, y, y."""
    units = config.model_copy(update={"label": config.label.model_copy(update={"unit": "segment"})})
    side = load_label_party(units)
    assert reveal(side.labels).tolist() == [1, 0, 0, 0, 1, 0]
    assert side.records.units is None and side.records.further_records == 2
    assert side.in_file is not None and len(side.in_file.ids) == 5, "all of the file, whoever is in the alignment"


def test_a_unit_changes_the_label_of_one_record_at_most(config: TableData) -> None:
    """Compared with the file without it, and with other labels of its rows, whatever the others list."""
    rng, loaded = np.random.default_rng(0), Alignment.load(config.label.alignment or Path())
    for _ in range(50):
        rows = rng.permutation(np.r_[np.full(20, -1), np.arange(40)])
        units, labels = pa.array([f"u{one}" for one in rng.integers(0, 9, 40)]), rng.integers(0, 3, 40)
        aligned = replace(loaded, rows=rows)
        before = aligned.with_one_record_for_each(units).labels(labels)
        for unit in sorted(set(units.to_pylist())):
            of_unit = np.array([one == unit for one in units.to_pylist()])
            without = replace(aligned, rows=np.where((rows >= 0) & of_unit[rows], -1, rows))
            assert (without.with_one_record_for_each(units).labels(labels) != before).sum() <= 1
            relabelled = np.where(of_unit, rng.integers(0, 3, 40), labels)
            assert (aligned.with_one_record_for_each(units).labels(relabelled) != before).sum() <= 1


def test_without_a_label_column_membership_is_the_label(config: TableData) -> None:
    content = config.model_dump()
    content["label"]["label"] = None
    side = load_label_party(TableData.model_validate(content))
    assert reveal(side.labels).tolist() == [1, 0, 1, 0, 1, 1]


def test_in_mode_both_ids_are_made_of_the_matched_keys(config: TableData) -> None:
    data = load(in_mode_both(config))
    assert data.ids.to_pylist()[0] == bytes(range(16)).hex()
    assert reveal(data.labels).tolist() == [1, 1, 1, 0]
    assert not data.label_side.records.ids_are_new


def test_an_audit_changes_the_labels_of_unknown_records_too(config: TableData) -> None:
    before, changed = reveal(load(config).labels), set[int]()
    for seed in range(20):
        changed |= set(np.flatnonzero(reveal(load(config, relabelling=Relabelling(seed)).labels) != before).tolist())
    assert changed == set(range(6))


def test_features_on_disk_are_those_in_memory(
    config: TableData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPSL_CACHE", str(tmp_path / "cache"))
    in_memory = load_feature_party(config, "shop").features
    monkeypatch.setattr(out_of_core, "LARGE_BYTES", 1)
    mapped = load_feature_party(config, "shop").features
    assert mapped.is_mapped and np.array_equal(mapped.numeric, in_memory.numeric)  # type: ignore[union-attr]


def test_other_columns_may_change_after_the_alignment_but_keys_may_not(config: TableData) -> None:
    path, second = config.label.path, 1_000_000_000
    path.write_text(path.read_text().replace("c6,0", "c6,1"))
    os.utime(path, ns=(second, second))  # whatever the resolution of the file system's clock
    assert reveal(load_label_party(config).labels).tolist() == [1, 0, 1, 0, 1, 1]
    content = path.read_text()
    for changed in (
        content.replace("c6", "c7"),
        content + "c9,1,x\n",
        content.replace("c3,1,x\nc6,1,y", "c6,1,y\nc3,1,x"),
    ):
        path.write_text(changed)
        os.utime(path, ns=(second, second))
        with pytest.raises(DataError, match=r"bank\.csv: has other keys or rows than when .*bank was made from 5 rows"):
            load_label_party(config)


def test_an_untouched_file_is_not_read_a_second_time(config: TableData) -> None:
    path, status = config.label.path, config.label.path.stat()
    path.write_text(path.read_text().replace("z,0", "q,0"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert len(load_label_party(config).records.ids) == 6


def test_alignments_that_do_not_fit_the_job_are_refused(config: TableData, tmp_path: Path) -> None:
    def with_alignment(**options: Any) -> TableData:
        return config.model_copy(update={"alignment": AlignmentConfig(**options)})

    with pytest.raises(DataError, match="bank: is an alignment of mode label-only, and the job has both: align again"):
        load_label_party(with_alignment(mode="both"))
    with pytest.raises(DataError, match="alignment of keys id, and the job has email: align again"):
        renamed = {"keys": {"email": "id"}}
        load_label_party(
            with_alignment(keys=["email"]).model_copy(update={"label": config.label.model_copy(update=renamed)})
        )
    with pytest.raises(DataError, match="mode is size: only the number of common records was found"):
        load_label_party(with_alignment(mode="size"))
    swapped = config.label.model_copy(update={"alignment": tmp_path / "shop"})
    with pytest.raises(DataError, match="shop: is an alignment of party shop, and the job has label"):
        load_label_party(config.model_copy(update={"label": swapped}))
    nowhere = config.label.model_copy(update={"alignment": tmp_path / "nowhere"})
    with pytest.raises(DataError, match="nowhere: there is no finished alignment; make it with `tpsl align`"):
        load_label_party(config.model_copy(update={"label": nowhere}))
    elsewhere = nowhere.model_copy(update={"path": tmp_path / "elsewhere.csv"})
    with pytest.raises(DataError, match=r"elsewhere.csv: there is no such file"):
        load_label_party(config.model_copy(update={"label": elsewhere}))
    save(config, {"shop": SHOP, "label": BANK}, digest="f" * 64)
    made = Alignment.load(tmp_path / "shop")
    replace(made, digest=DIGEST).save(tmp_path / "shop")
    with pytest.raises(DataError, match=r"must have the same ids, but 6 of 6 .* `tpsl align` brings the parties"):
        load(config)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda folder: (folder / "rows.npy").unlink(), "cannot be read, it is no alignment"),
        (lambda folder: np.save(folder / "rows.npy", np.arange(5)), r"rows\.npy holds int64 of shape \(5,\), not"),
        (lambda folder: np.save(folder / "rows.npy", np.array([*SHOP[:-1], 8])), "does not hold rows of a file of 8"),
        (lambda folder: np.save(folder / "rows.npy", np.array([*SHOP[:-1], 4])), "does not hold rows of a file of 8"),
        (lambda folder: np.save(folder / "rows.npy", np.array([*SHOP[:-1], -1])), "does not hold rows of a file of 8"),
        (lambda folder: (folder / "alignment.json").write_text("{"), "cannot be read, it is no alignment"),
        (lambda folder: (folder / "alignment.json").write_text("[]"), "cannot be read, it is no alignment"),
        (lambda folder: _changed(folder, version=2), "is of version 2, and this program reads version 1"),
    ],
)
def test_a_damaged_alignment_is_an_error(config: TableData, tmp_path: Path, damage: Any, sentence: str) -> None:
    damage(tmp_path / "shop")
    with pytest.raises(DataError, match=sentence):
        load_feature_party(config, "shop")


def _changed(folder: Path, **changes: Any) -> None:
    path = folder / "alignment.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_saved_alignment_is_its_owners_only(config: TableData, tmp_path: Path) -> None:
    for path in (tmp_path / "shop", *(tmp_path / "shop").iterdir()):
        assert path.stat().st_mode & 0o077 == 0
    found = Alignment.load(tmp_path / "bank")
    assert (found.party, found.mode, found.digest, found.rows.tolist()) == ("label", "label-only", DIGEST, BANK)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"label": {"numeric": ["label2"]}}, "label-only the label party can have no features of its own"),
        ({"alignment": {"keys": ["email"]}}, r"shop\.parquet: `keys` names no column for the key 'email'"),
        ({"alignment": {"order": "time"}}, r"shop\.parquet: alignment.order time needs `time`"),
        ({"split": "chronological"}, "a chronological split of aligned records needs alignment.order: time"),
        ({"label": {"label": None}, "alignment": {"mode": "both"}}, "membership can be the label only in mode label-o"),
        ({"label": {"label": None}, "alignment": None}, "membership is the label; that needs `alignment`"),
        ({"alignment": {"keys": ["id", "id"]}}, "'id' appears 2 times: give each key its own `name`"),
        ({"alignment": {"keys": [{"name": "id", "rule": "id", "country": 49}]}}, "only a key of the rule phone takes"),
        ({"alignment": {"keys": ["mail"]}}, "'exact', 'id', 'email', 'phone' or 'sha256'"),
    ],
)
def test_what_an_alignment_cannot_do_is_refused(config: TableData, changes: dict[str, Any], sentence: str) -> None:
    content = config.model_dump()
    for key, value in changes.items():
        content[key] = {**(content[key] or {}), **value} if isinstance(value, dict) else value
    with pytest.raises(ValueError, match=sentence):
        TableData.model_validate(content)


def test_a_check_looks_at_aligned_tables(config: TableData, tmp_path: Path) -> None:
    found = check_data(config)
    assert found.passed and [party.records for party in found.parties] == [6, 6]
    replace(Alignment.load(tmp_path / "shop"), digest="f" * 64).save(tmp_path / "shop")
    assert "must have the same ids" in next(each.text for each in check_data(config).findings if each.level == "error")
    (tmp_path / "bank" / "alignment.json").unlink()
    assert "no finished alignment" in check_data(config).findings[0].text


def test_a_check_finds_a_column_that_tells_the_label_of_aligned_records(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels, rows = rng.integers(0, 2, 200), rng.permutation(300)[:200]
    told = rng.normal(size=300)
    told[rows] = labels + 0.001 * rng.normal(size=200)
    pq.write_table(pa.table({"id": np.arange(300), "told": told}), tmp_path / "shop.parquet")
    pq.write_table(pa.table({"id": np.arange(200), "label": labels}), tmp_path / "bank.parquet")
    config = TableData(
        features=(
            TableFile(path=tmp_path / "shop.parquet", party="shop", numeric=("told",), alignment=tmp_path / "s"),
        ),
        label=LabelFile(path=tmp_path / "bank.parquet", alignment=tmp_path / "b"),
        alignment=AlignmentConfig(mode="both"),
    )
    keys = rng.integers(0, 256, (200, 32), dtype=np.uint8)
    save(config, {"shop": rows.tolist(), "label": list(range(200))}, matched_keys=keys)
    assert any("alone tells the label" in finding.text for finding in check_data(config).findings)
