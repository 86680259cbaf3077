"""What a job that does not say so does about stopping: one rule for all kinds of jobs."""

from pathlib import Path
from typing import Any

import pytest

from tpsl.data.config import SyntheticData
from tpsl.training.job import Job, TrainingConfig, make_job
from tpsl.training.method import best_method
from tpsl.training.one_process import train
from tpsl.training.run_folder import RunFolder
from tpsl.tuning.space import jobs_of

STOPPED, PLAIN = (0.1, 2, 20), (0.0, 0, 2)
STATISTIC = {"statistic": {"share_codes": True}}


def stopping(job: Job) -> tuple[float, int, int]:
    return job.training.validation, job.training.patience, job.training.epochs


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({}, STOPPED),
        ({"privacy": {"mechanism": "none"}}, STOPPED),
        ({"privacy": {"epsilon": 1.0, "draws": 2}}, STOPPED),
        ({"data": {"source": "synthetic", "classes": 7}}, STOPPED),
        ({"training": {"order": "blockwise", "staleness": 2, "exchange": "labels"}}, STOPPED),
        ({"method": "auto"}, STOPPED),
        ({"method": "refit"}, STOPPED),
        ({"training": {"epochs": 60}}, (0.1, 2, 60)),
        ({"training": {"validation": 0.3}}, (0.3, 2, 20)),
        ({"training": {"patience": 5}}, (0.1, 5, 20)),
        ({"training": {"validation": 0}}, PLAIN),
        ({"training": {"patience": 0}}, PLAIN),
        ({"training": {"patience": 0, "validation": 0.2, "epochs": 7}}, (0.2, 0, 7)),
        ({"training": {"epochs": 1}}, (0.0, 0, 1)),
        ({"training": {"epochs": 1, "validation": 0.2}}, (0.2, 0, 1)),
        ({"training": {"labels": "arriving", "order": "arrival"}}, (0.0, 0, 1)),
        ({"method": "statistic"}, PLAIN),
        ({"method": "statistic", "training": {"validation": 0.05}}, (0.05, 0, 2)),
        ({"privacy": {"gradients": "none"}, "training": {"head": "local"}}, PLAIN),
    ],
)
def test_a_network_is_stopped_unless_there_is_nothing_to_stop(
    content: dict[str, Any], expected: tuple[float, int, int]
) -> None:
    job = make_job(content, {}, "test")
    assert stopping(job) == expected
    assert make_job(job.model_dump(mode="json", exclude_none=True), {}, "test") == job, "what is written out stays"


def test_parts_that_are_given_as_objects_follow_the_rule_too() -> None:
    assert stopping(Job(data=SyntheticData(), training=TrainingConfig(epochs=1))) == (0.0, 0, 1)
    assert stopping(Job(training=TrainingConfig(seed=3))) == STOPPED


def test_auto_that_comes_to_a_statistic_holds_nothing_out_unless_the_job_says_so() -> None:
    asked = {"method": "auto", "privacy": {"epsilon": 0.1}, **STATISTIC}
    assert stopping(best_method(make_job(asked, {}, "test"), 100_000)[0]) == PLAIN
    named = make_job(asked, {"training": {"validation": 0.2}}, "test")
    assert stopping(best_method(named, 100_000)[0]) == (0.2, 0, 2)
    assert stopping(best_method(make_job(asked, {"privacy": {"epsilon": 4.0}}, "test"), 100_000)[0]) == STOPPED


def test_a_search_stops_nothing_and_trains_no_longer_for_it() -> None:
    assert [stopping(job) for job in jobs_of(Job(), [{"model": {"members": 2}}])] == [(0.1, 0, 2)]
    longer = make_job({"training": {"epochs": 5, "validation": 0.2}}, {}, "test")
    assert [stopping(job) for job in jobs_of(longer, [{"model": {"members": 2}}])] == [(0.2, 0, 5)]


def test_a_job_that_says_nothing_ends_before_it_has_learned_the_noise(tmp_path: Path) -> None:
    fast = {"name": "adam", "learning_rate": 0.03}
    content = {
        "data": {"source": "synthetic", "rows": 3000, "numeric_fields": 3, "categorical_fields": 3, "signal": 3.0},
        "privacy": {"epsilon": 1.0, "noise_seed": 3},
        "model": {"embedding_dim": 4, "bottom": [16, 8], "top": [8]},
        "training": {"batch_size": 64, "epochs": 60, "feature_optimizer": fast, "label_optimizer": fast},
    }
    stopped = train(make_job(content, {}, "test"), tmp_path / "run")
    assert stopped.epochs < 15 and stopped.kept_epoch < stopped.epochs
    last = RunFolder(tmp_path / "run").metrics()[-1]
    assert stopped.test_log_loss < last["test_log_loss"]
