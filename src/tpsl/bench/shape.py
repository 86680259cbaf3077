"""What all contenders of a benchmark train: one network, one batch size, the same records.

By default the paper's network (section 5) on records in the shape of Criteo's: 39 fields, embeddings of 16, a table of
a million rows, two ReLU layers of 128 on either side of the cut.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tpsl.data.config import DataConfig, LabelFile, SyntheticData, TableData, TableFile
from tpsl.data.dataset import Dataset, load, load_feature_party
from tpsl.data.features import Features, table_features
from tpsl.models.config import ModelConfig, OptimizerConfig
from tpsl.training.job import Job, PrivacyConfig, TrainingConfig

Device = Literal["cpu", "cuda"]
LEARNING_RATE = 0.01
TEST_FRACTION = 0.01


@dataclass(frozen=True)
class Shape:
    """A network, its records, and what it is trained on."""

    batch: int = 8192
    steps: int = 100
    """Steps for which there are records."""
    fields: int = 39
    largest_vocabulary: int = 254_000
    """Vocabularies run geometrically from 4 to this; together they are the rows of the table."""
    embedding_dim: int = 16
    bottom: tuple[int, ...] = (128, 128)
    top: tuple[int, ...] = (128, 128)
    classes: int = 2
    parties: int = 1
    """Feature parties, which share the fields."""
    threads: int = 2
    device: Device = "cpu"

    def __str__(self) -> str:
        where = f"{self.threads} threads" if self.device == "cpu" else self.device
        return f"{self.fields} fields × {self.embedding_dim}, batch {self.batch:,}, cut {self.bottom[-1]}, {where}"

    def job(self, **training: object) -> Job:
        """Return the job that trains it for one epoch with ε = 1, in which no checkpoint disturbs a step."""
        sgd = OptimizerConfig(name="sgd", learning_rate=LEARNING_RATE)
        settings = {"batch_size": self.batch, "feature_optimizer": sgd, "label_optimizer": sgd, **training}
        return Job(
            data=self._data(),
            privacy=PrivacyConfig(epsilon=1.0),
            model=ModelConfig(embedding_dim=self.embedding_dim, bottom=self.bottom, top=self.top),
            training=TrainingConfig.model_validate({"epochs": 1, "checkpoint_every": 1 << 30, **settings}),
        )

    def records(self) -> Dataset:
        """Draw the records of all parties."""
        data = load(self._synthetic())
        if self.parties == 1:
            return data
        (side,) = data.feature_sides.values()
        whole = table_features(side.features, "a benchmark")
        dealt = zip(self._parties(), np.array_split(np.arange(self.fields), self.parties), strict=True)
        sides = {name: replace(side, party=name, features=_columns(whole, columns)) for name, columns in dealt}
        return replace(data, feature_sides=sides)

    def write(self, folder: Path) -> None:
        """Write what contenders without this package train on; their labels are drawn by chance."""
        side = load_feature_party(self._synthetic())
        features = table_features(side.features, "a benchmark")
        shape = {**asdict(self), "table_rows": features.embedding_rows, "learning_rate": LEARNING_RATE}
        (folder / "shape.json").write_text(json.dumps(shape), encoding="utf-8")
        np.save(folder / "categorical.npy", features.categorical[side.train])
        np.save(folder / "labels.npy", np.random.default_rng(0).integers(0, self.classes, len(side.train)))

    @classmethod
    def read(cls, folder: Path) -> Shape:
        """Read the shape that `write` has written."""
        content = json.loads((folder / "shape.json").read_text(encoding="utf-8"))
        known: dict[str, Any] = {name: content[name] for name in cls.__dataclass_fields__}
        return cls(**known | {name: tuple(known[name]) for name in ("bottom", "top")})

    def _synthetic(self) -> SyntheticData:
        return SyntheticData(
            rows=int((self.steps + 1) * self.batch / (1 - TEST_FRACTION)),
            numeric_fields=0,
            categorical_fields=self.fields,
            largest_vocabulary=self.largest_vocabulary,
            classes=self.classes,
            test_fraction=TEST_FRACTION,
        )

    def _data(self) -> DataConfig:
        """The data of the job: several parties have tables, whose records are given and not read."""
        if self.parties == 1:
            return self._synthetic()
        files = tuple(TableFile(path=Path(name), party=name, categorical=("field",)) for name in self._parties())
        return TableData(features=files, label=LabelFile(path=Path("label")), classes=self.classes)

    def _parties(self) -> list[str]:
        return [f"party{number + 1}" for number in range(self.parties)]


def _columns(whole: Features, columns: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Features:
    """Return some neighbouring fields of a table as a table of its own."""
    categorical = whole.categorical[:, columns]
    first = categorical.min()
    names = tuple(whole.categorical_fields[column] for column in columns)
    return Features(categorical - first, whole.numeric, int(categorical.max() - first) + 1, names, ())
