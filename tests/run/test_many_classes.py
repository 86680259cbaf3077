"""The default mechanism and estimator against the paper's, with many classes."""

from pathlib import Path

import pytest

from tpsl.data.dataset import Dataset, load
from tpsl.run.job import Job, make_job
from tpsl.run.one_process import train

CLASSES = 20
RATE = {"name": "adam", "learning_rate": 3e-3}


def job(privacy: dict[str, object]) -> Job:
    content = {
        "data": {
            **{"source": "synthetic", "rows": 20_000, "numeric_fields": 8, "categorical_fields": 0},
            **{"classes": CLASSES, "signal": 6.0},
        },
        "privacy": {"epsilon": 1.0, "noise_seed": 1, **privacy},
        "model": {"bottom": [64], "top": [64]},
        "training": {"epochs": 3, "batch_size": 256, "feature_optimizer": RATE, "label_optimizer": RATE, "patience": 0},
    }
    return make_job(content, {}, "test")


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load(job({}).data)


def test_the_default_is_well_ahead_of_laplace_and_discrete(data: Dataset, tmp_path: Path) -> None:
    def accuracy(name: str, privacy: dict[str, object]) -> float:
        return train(job(privacy), tmp_path / name, data=data).test_accuracy

    ours = accuracy("ours", {})
    for mechanism in ("laplace", "discrete"):
        theirs = accuracy(mechanism, {"mechanism": mechanism, "epsilon": 1.0, "estimator": "linear"})
        # Measured 0.54 against 0.34 (Laplace) and 0.25 to 0.29 (Discrete) with two seeds; chance is 0.05.
        assert ours > theirs + 0.1 > 0.2, f"{ours:.3f} against {theirs:.3f} with {mechanism}"
