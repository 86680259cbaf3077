"""New records of a party that brings its own: from a source that a factory makes, through its own half."""

from pathlib import Path

import numpy as np
import pytest

from tpsl.model.predictors import PredictionError
from tpsl.model.records import predict_records, read_records
from tpsl.model.trained import TrainedModel
from tpsl.registry import ExtensionError
from tpsl.run.job import make_job
from tpsl.run.one_process import train
from tpsl.run.own_parts import Factory, OwnParts
from tpsl.run.run_folder import RunFolder

MODULE = """
import numpy as np
from torch import nn


class Pictures:
    def __init__(self, first, count):
        self.ids = [f"p{number:03d}" for number in range(first, first + count)][::-1]
        self.pixels = np.random.default_rng(first).normal(size=(count, 2, 3)).astype(np.float32)
        self.labels = (self.pixels.sum(axis=(1, 2)) > 0).astype(int)

    def batch(self, rows):
        return self.pixels[rows]


def old():
    return Pictures(0, 200)


def new():
    return Pictures(500, 20)


def half(width, inputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(6, width))
"""


def test_a_source_of_new_records_takes_the_place_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_pictures.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    content = {
        "data": {"source": "own", "parties": ["camera"]},
        "model": {"bottom": [4], "top": [4]},
        "training": {"batch_size": 32, "epochs": 1},
    }
    source = Factory(factory="own_pictures:old")
    own = {
        "camera": OwnParts(inputs=source, bottom=Factory(factory="own_pictures:half")),
        "label": OwnParts(inputs=source),
    }
    train(make_job(content, {}, "test"), tmp_path / "run", own=own)
    run = RunFolder(tmp_path / "run")
    records = read_records(run, "camera", "own_pictures:new")
    assert records.common_ids.to_pylist() == [f"p{number}" for number in range(500, 520)]
    network = TrainedModel.open(run.path).halves()
    predict_records(network, {"camera": records}, ("0", "1")).write(tmp_path / "scores.csv", records)
    lines = (tmp_path / "scores.csv").read_text().splitlines()[1:]
    assert [line.split(",")[0] for line in lines] == [f'"p{number}"' for number in range(519, 499, -1)]
    assert records.inputs is not None
    expected = network.probabilities({"camera": records.inputs})
    np.testing.assert_allclose([float(line.split(",")[1]) for line in lines], expected, atol=1e-6)
    assert read_records(run, "label", "own_pictures:new").inputs is None
    with pytest.raises(ExtensionError, match="the module own_pictures has no newer"):
        read_records(run, "camera", "own_pictures:newer")
    with pytest.raises(PredictionError, match=r"new\.csv: the records of this job are the parties' own"):
        read_records(run, "camera", "new.csv")
