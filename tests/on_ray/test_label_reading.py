"""Files of labels that a Ray cluster reads, and one process puts into the vault."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from tpsl.on_ray.cluster import RayWorkers
from tpsl.on_ray.label_reading import read_labels
from tpsl.vault import Incoming, LabelTable, Vault

ROWS, FILES = 40, 4


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    """Parquet and CSV files of labels with the people they are about."""
    draws = np.random.default_rng(3)
    for folder in ("parquet", "csv"):
        (tmp_path / folder).mkdir()
    for number in range(FILES):
        ids = [f"r{number}-{row:03d}" for row in range(ROWS)]
        table = pa.table({"id": ids, "bought": draws.choice(["yes", "no"], ROWS), "person": [id[:5] for id in ids]})
        pyarrow.parquet.write_table(table, tmp_path / "parquet" / f"day-{number}.parquet")
        pyarrow.csv.write_csv(table, tmp_path / "csv" / f"day-{number}.csv")
    return tmp_path


def content(vault: Path) -> Any:
    with Vault.open(vault) as opened:
        (created, added) = opened.ledger().entries
        return created.kind, added.kind, added.details, len(opened)


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_vault_is_the_one_that_this_machine_makes(cluster: Any, labels: Path, tpsl: Any, kind: str) -> None:
    columns = ("--label", "bought", "--unit", "person", "--class-value", "no", "--class-value", "yes")
    for place, options in (("here", ()), ("there", ("--ray", "--ray-workers", 2))):
        made = tpsl("vault", "create", labels / place, labels / kind, *columns, *options, "--json").json()
        assert made["records"] == ROWS * FILES
    assert content(labels / "there") == content(labels / "here")
    assert not (labels / "there" / "incoming").exists()
    assert tpsl("vault", "verify", labels / "there").status == 0


def test_what_was_read_before_a_kill_is_not_read_again(
    cluster: Any, labels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = LabelTable(path=labels / "parquet", id="id", label="bought", unit="person", class_values=("no", "yes"))
    put, names = Incoming.put, list[str]()

    def put_two(self: Incoming, one: LabelTable, batches: Iterator[Any]) -> None:
        if len(names) == 2:
            raise KeyboardInterrupt
        put(self, one, batches)
        names.append(one.path.name)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Incoming, "put", put_two)
        with Incoming(labels / "vault", 2, [table]) as incoming:
            read_labels(cluster, RayWorkers(2), incoming)
    assert names == ["day-0.parquet", "day-1.parquet"]
    with Incoming(labels / "vault", 2, [table]) as incoming:
        assert [missing.path.name for missing in incoming.missing()] == ["day-2.parquet", "day-3.parquet"]
        read_labels(cluster, RayWorkers(2), incoming)
        Vault.create(labels / "vault", classes=2, batches=incoming).close()
    assert content(labels / "vault")[3] == ROWS * FILES


def test_a_fault_in_a_file_is_one_sentence_and_leaves_no_vault(cluster: Any, labels: Path, tpsl: Any) -> None:
    bad = labels / "csv" / "day-2.csv"
    bad.write_text(bad.read_text().replace("yes", "perhaps", 1))
    columns = ("--label", "bought", "--class-value", "no", "--class-value", "yes")
    sentence = tpsl("vault", "create", labels / "vault", labels / "csv", *columns, "--ray").error()
    assert "day-2.csv" in sentence and "'perhaps'" in sentence
    assert not Vault.exists(labels / "vault")
