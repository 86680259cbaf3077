"""Training on tables that do not fit into memory is training on the same tables in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from tpsl.data import order, out_of_core
from tpsl.data.features import Features
from tpsl.run.job import Job, make_job
from tpsl.run.observer import Watching
from tpsl.run.one_process import load_records, train

ROWS = 1500


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Blocks and windows of which a small table has several."""

    def forget() -> None:
        for cached in (order._blocks, order._window_ends, order._window):
            cached.cache_clear()

    monkeypatch.setattr(order, "BLOCK_ROWS", 64)
    monkeypatch.setattr(order, "WINDOW_BLOCKS", 4)
    forget()
    yield
    forget()


@pytest.fixture
def agreed(tmp_path: Path) -> Job:
    """A job on three files for each party; the order of ids as text is not that of the files."""
    rng = np.random.default_rng(0)
    size, word = rng.normal(size=ROWS), rng.integers(0, 5, ROWS)
    label = (rng.random(ROWS) < 1 / (1 + np.exp(-2 * size))).astype(int)
    tables = {
        "shop": pa.table({"id": np.arange(ROWS), "size": size, "word": word}),
        "bank": pa.table({"id": np.arange(ROWS), "label": label}),
    }
    for party, table in tables.items():
        (tmp_path / party).mkdir()
        for start in range(0, ROWS, ROWS // 3):
            pq.write_table(table[start : start + ROWS // 3], tmp_path / party / f"{start:06}.parquet")
    feature = {"path": str(tmp_path / "shop"), "numeric": ["size"], "categorical": ["word"]}
    content = {
        "data": {"source": "table", "features": [feature], "label": {"path": str(tmp_path / "bank")}},
        "privacy": {"mechanism": "discrete", "epsilon": 1.0},
        "model": {"embedding_dim": 2, "bottom": [8], "top": [8]},
        "training": {
            "batch_size": 64,
            "epochs": 2,
            "order": "blockwise",
            "checkpoint_every": 7,
            "validation": 0.1,
            "patience": 0,
        },
    }
    return make_job(content, {}, "test")


def weights(run: Path) -> dict[str, Any]:
    files = sorted(run.glob("*/*.safetensors"))
    assert files
    return {f"{file.name}:{name}": tensor for file in files for name, tensor in load_file(file).items()}


@pytest.mark.parametrize("wide", [False, True], ids=["network", "network with a wide part"])
def test_what_is_trained_from_disk_has_the_weights_of_memory(
    agreed: Job, wide: bool, small_blocks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = tmp_path / "vault"
    agreed = agreed.model_copy(update={"model": agreed.model.model_copy(update={"wide": wide})})
    train(agreed, tmp_path / "memory", vault=vault)
    monkeypatch.setenv("TPSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(out_of_core, "LARGE_BYTES", 0)
    side = load_records(agreed).feature_sides["feature"]
    assert isinstance(side.features, Features) and side.features.is_mapped and out_of_core.is_mapped(side.train)
    train(agreed, tmp_path / "disk", vault=vault)

    class Stop(Exception):
        pass

    def stop(done: int, total: int, note: str) -> None:
        if note.startswith("epoch") and done == 25:
            raise Stop

    with pytest.raises(Stop):
        train(agreed, tmp_path / "broken", vault=vault, watching=Watching(progress=stop))
    train(agreed, tmp_path / "broken", vault=vault)
    memory = weights(tmp_path / "memory")
    for other in ("disk", "broken"):
        found = weights(tmp_path / other)
        assert found.keys() == memory.keys()
        assert all(torch.equal(found[name], memory[name]) for name in memory), other


def test_another_order_is_another_plan(agreed: Job, small_blocks: None, tmp_path: Path) -> None:
    shuffled = agreed.model_copy(update={"training": agreed.training.model_copy(update={"order": "shuffled"})})
    assert shuffled.digest() != agreed.digest()
    train(agreed, tmp_path / "blockwise", vault=tmp_path / "vault")
    train(shuffled, tmp_path / "shuffled", vault=tmp_path / "vault")
    one, other = weights(tmp_path / "blockwise"), weights(tmp_path / "shuffled")
    assert not all(torch.equal(one[name], other[name]) for name in one)
