"""Other labels before loading: the same records, the same features, other classes for half of them."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tpsl.data import flights, synthetic
from tpsl.data.config import (
    DataConfig,
    FlightsData,
    LabelFile,
    SyntheticData,
    TableData,
    TableFile,
)
from tpsl.data.dataset import Dataset, load
from tpsl.data.sides import Relabelling
from tpsl.data.true_labels import reveal
from tpsl.progress import no_progress
from tpsl_research.clicklog import AvazuData, CriteoData, convert

Lines = Callable[..., list[str]]


def two_tables(folder: Path) -> TableData:
    ids = [f"{i:04d}" for i in range(400)]
    words = ["early", "on time", "late"]
    pq.write_table(pa.table({"id": ids, "size": [float(i % 7) for i in range(400)]}), folder / "feature.parquet")
    content = {"id": ids[::-1], "outcome": [words[i % 3] for i in range(400)], "own": [i % 5 for i in range(400)]}
    pq.write_table(pa.table(content), folder / "label.parquet")
    return TableData(
        features=(TableFile(path=folder / "feature.parquet", numeric=("size",)),),
        label=LabelFile(path=folder / "label.parquet", label="outcome", numeric=("own",)),
        classes=3,
        class_values=tuple(words),
    )


@pytest.fixture(params=["synthetic", "flights", "natural", "table", "criteo", "criteo folder", "avazu"])
def config(request: pytest.FixtureRequest, tmp_path: Path, criteo_lines: Lines, avazu_lines: Lines) -> DataConfig:
    (tmp_path / "train.txt").write_text("\n".join(criteo_lines(300)))
    (tmp_path / "train.csv").write_text("\n".join(avazu_lines(300)))
    criteo = CriteoData(path=tmp_path / "train.txt", min_count=3)
    made: dict[str, Callable[[], DataConfig]] = {
        "synthetic": lambda: SyntheticData(rows=70_000, numeric_fields=2, categorical_fields=2, classes=3),
        "flights": lambda: FlightsData(rows=600),
        "natural": lambda: FlightsData(rows=600, layout="natural", task="delay5"),
        "table": lambda: two_tables(tmp_path),
        "criteo": lambda: criteo,
        "criteo folder": lambda: convert(criteo, tmp_path / "folder"),
        "avazu": lambda: AvazuData(path=tmp_path / "train.csv", min_count=3),
    }
    return made[request.param]()


def features(data: Dataset) -> list[Any]:
    parties = [*data.feature_parties.values(), *([data.label_features] if data.label_features else [])]
    return [array for party in parties for array in (np.array(party.categorical), np.array(party.numeric))]


def test_half_of_the_labels_move_and_nothing_else_does(config: DataConfig) -> None:
    before, after = load(config), load(config, relabelling=Relabelling(5))
    moved = reveal(before.labels) != reveal(after.labels)
    assert abs(moved.mean() - 0.5) < 4.9 * 0.5 / np.sqrt(len(before))
    assert set(np.unique(reveal(after.labels))) <= set(range(before.classes))
    assert before.ids.equals(after.ids)
    assert (before.train == after.train).all() and (before.test == after.test).all()
    assert all(np.array_equal(one, other) for one, other in zip(features(before), features(after), strict=True))
    if isinstance(config, CriteoData):
        assert (reveal(load(config).labels) == reveal(before.labels)).all()  # and nothing of it is kept


def test_pieces_make_the_same_whole() -> None:
    labels = np.random.default_rng(0).integers(0, 4, 150_000)
    whole = Relabelling(9)(labels, 4)
    assert (Relabelling(8)(labels, 4) != whole).any()
    cut = [0, 1, 65_535, 65_537, 140_000, 150_000]
    pieces = [Relabelling(9)(labels[a:b], 4, a) for a, b in pairwise(cut)]
    assert (np.concatenate(pieces) == whole).all()
    assert Relabelling(9)(labels[:0], 4, 65_536).shape == (0,)
    # Every other class is as likely: counts within 4.9 standard deviations.
    moves = np.bincount((whole - labels) % 4, minlength=4)
    assert abs(moves[0] - 75_000) < 4.9 * np.sqrt(150_000) / 2
    assert (abs(moves[1:] - 25_000) < 4.9 * np.sqrt(150_000 * 5 / 36)).all()


def test_a_feature_derived_from_the_label_while_loading_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two loaders with the fault that an audit has to find, and a job that takes the label for a feature."""
    world = getattr(synthetic.World, "__wrapped__", synthetic.World)  # tests compute it once
    airport, chunks = flights._dates, world.chunks

    monkeypatch.setattr(flights, "_dates", lambda table: airport(table) + (table["arr_delay"].to_numpy() > 15))
    monkeypatch.setattr(
        world,
        "chunks",
        lambda self, progress=no_progress: (
            replace(chunk, numeric=chunk.numeric + chunk.labels[:, None].astype(np.float32))
            for chunk in chunks(self, progress)
        ),
    )
    tables = two_tables(tmp_path)
    mistaken = tables.model_copy(
        update={
            "features": (
                TableFile(path=tables.label.path, categorical=("outcome",), numeric=("own",), party="feature"),
            ),
            "label": tables.label.model_copy(update={"numeric": ()}),
        }
    )
    small = SyntheticData(rows=500, numeric_fields=2, categorical_fields=2)
    for config in (FlightsData(rows=600), small, mistaken):
        before, after = load(config), load(config, relabelling=Relabelling(5))
        assert not all(np.array_equal(one, other) for one, other in zip(features(before), features(after), strict=True))
