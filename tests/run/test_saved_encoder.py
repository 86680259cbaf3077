"""A run that has ended scores records that come later: they are encoded as its own were, to the last bit."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from tpsl.data.dataset import load
from tpsl.data.features import Features
from tpsl.data.party_file import encode_file
from tpsl.model.trained import TrainedModel
from tpsl.run.job import make_job
from tpsl.run.one_process import train
from tpsl.run.run_folder import RunError, RunFolder


def test_new_records_are_scored_as_those_of_the_run(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ids = [f"{number:03d}" for number in rng.permutation(200)]
    when = np.datetime64("2024-01-01") + rng.integers(0, 700, 200).astype("timedelta64[D]")
    columns = {
        "id": ids,
        "size": rng.normal(50, 9, 200).round(3),
        "colour": rng.choice(["red", "green", ""], 200),
        "when": when.astype(str),
        "kind": rng.choice(["x", "y"], 200),
        "label": rng.integers(0, 2, 200),
    }
    pyarrow.csv.write_csv(pa.table(columns), tmp_path / "table.csv")
    roles = {"path": str(tmp_path / "table.csv"), "categorical": ["colour"], "numeric": ["size"], "dates": ["when"]}
    label = {"path": str(tmp_path / "table.csv"), "categorical": ["kind"]}
    job = make_job(
        {
            "data": {"source": "table", "features": [roles], "label": label},
            "privacy": {"mechanism": "none"},
            "training": {"epochs": 1, "batch_size": 64},
            "model": {"bottom": [8], "top": [8], "embedding_dim": 2},
        },
        {},
        "test",
    )
    train(job, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    chosen = rng.permutation(200)[:30]  # in another order, and not all: nothing could be learned from them
    new = pa.table({name: pa.array(np.asarray(values)[chosen]) for name, values in reversed(columns.items())})
    pyarrow.csv.write_csv(new.drop_columns("label"), tmp_path / "new.csv")

    def encoded(party: str) -> tuple[list[str], Features]:
        ((found, features),) = encode_file(run.encoder(party), tmp_path / "new.csv")
        return found.to_pylist(), features

    (order, feature), (_, own) = encoded("feature"), encoded("label")
    halves = TrainedModel.open(run.path).halves({"feature": feature, "label": own})
    scores = halves.probabilities({"feature": feature, "label": own})
    data = load(job.data)
    rows = np.array([data.ids.to_pylist().index(id) for id in order])
    assert np.array_equal(feature.numeric, data.feature_parties["feature"].numeric[rows])
    assert np.array_equal(feature.categorical, data.feature_parties["feature"].categorical[rows])
    assert np.array_equal(scores, TrainedModel.open(run.path).predict_rows(data, rows))
    with pytest.raises(RunError, match="nobody: no encoder was saved"):
        run.encoder("nobody")
