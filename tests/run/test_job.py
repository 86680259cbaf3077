"""The job: defaults, digest, differences, files, what an override replaces, and what follows from what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from tpsl.data.config import FlightsData, SyntheticData, TableData
from tpsl.mechanisms import gaussian, identity, laplace, optimized_unary, randomized_response, subset_selection
from tpsl.perturb import LOSSES, cross_entropy
from tpsl.run.job import Job, JobError, load_job, make_job
from tpsl.run.job_sections import PredictionConfig, PrivacyConfig, Returns, TrainingConfig
from tpsl.run.method import best_method
from tpsl.run.one_process import train
from tpsl.run.run_folder import RunFolder
from tpsl.select.space import jobs_of

TABLE = {
    "source": "table",
    "features": [{"path": "a.csv", "party": "shop", "numeric": ["x"]}],
    "label": {"path": "/far/away/b.csv"},
}


def job_of(content: dict[str, Any], **overrides: dict[str, Any]) -> Job:
    return make_job(content, overrides, "test")


def test_an_empty_job_is_flights_with_our_recommended_setting() -> None:
    job = job_of({})
    assert job == Job()
    assert job.data == FlightsData()
    assert (job.privacy.mechanism, job.privacy.epsilon, job.privacy.estimator) == ("auto", 1.0, "posterior")
    assert (job.privacy.draws, job.privacy.noise_seed) == (1, None)
    assert (job.model.bottom, job.model.top) == ((128, 128), (128, 128))


def test_a_job_builds_its_mechanism() -> None:
    def built(classes: int, **privacy: Any) -> str:
        return PrivacyConfig(**privacy).build(classes).digest

    assert built(2, mechanism="auto", epsilon=0.5) == randomized_response(0.5).digest
    assert built(100, mechanism="auto", epsilon=1) == subset_selection(1.0, 100).digest
    assert built(7, mechanism="subset_selection", epsilon=1) == subset_selection(1.0, 7).digest
    assert built(7, mechanism="optimized_unary", epsilon=1) == optimized_unary(1.0, 7).digest
    assert built(2, mechanism="none") == identity(2).digest
    assert built(5, mechanism="laplace", epsilon=2) == laplace(2.0, 5).digest
    assert built(3, mechanism="discrete", epsilon=0.5) == randomized_response(0.5, 3).digest
    assert built(2, mechanism="randomized_response", epsilon=0.5) == randomized_response(0.5).digest
    assert built(2, mechanism="gaussian", sigma=1.5, delta=1e-6) == gaussian(1.5, 1e-6).digest


def another(value: Any) -> Any:
    """A valid value of the same kind that is not this one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1 if value != 2 else 1
    if isinstance(value, float):
        return value * 0.75 if value else 0.25
    if isinstance(value, list | tuple):
        return [*value, 7]
    return {
        "all": "natural",
        "random": "chronological",
        "late": "delay5",
        "posterior": "linear",
        "auto": "lazy",
        "shuffled": "arrival",
        "gradients": "labels",
        "float32": "bfloat16",
        "adam": "sgd",
        "nothing": "score",
        "network": "auto",
        None: 12,
    }[value]


def fields(model: BaseModel, part: str = "") -> list[str]:
    """The dotted names of all values in a model."""
    found = []
    for name in type(model).model_fields:
        value = getattr(model, name)
        found += fields(value, f"{part}{name}.") if isinstance(value, BaseModel) else [f"{part}{name}"]
    return found


NOT_ALONE = {
    "privacy.sigma",
    "privacy.delta",
    "privacy.gradients",
    "training.patience",
    "statistic",
}
CHANGEABLE_ALONE = sorted({*fields(Job())} - {"data.source", *NOT_ALONE})


@pytest.mark.parametrize("field", CHANGEABLE_ALONE)
def test_every_field_counts_in_the_digest_and_is_named_as_the_difference(field: str) -> None:
    content = Job().model_dump(mode="json")
    *parts, name = field.split(".")
    at = content
    for part in parts:
        at = at[part]
    special = {
        "mechanism": "laplace",
        "head": "local",
        "pretrain": {"method": "masked"},
        "arguments": {"amsgrad": True},
        "loss": "cross_entropy_again",
        "schedule": {"name": "ExponentialLR", "arguments": {"gamma": 0.9}},
    }
    if field == "training.loss" and "cross_entropy_again" not in LOSSES:
        LOSSES.register("cross_entropy_again", cross_entropy)
    at[name] = special[name] if name in special else another(at[name])
    changed = job_of(content)
    assert changed.digest() != Job().digest()
    difference = Job().first_difference(changed)
    assert difference is not None
    part = {"arguments": ".amsgrad", "pretrain": ".method", "schedule": ".name"}.get(name, "")
    assert difference.startswith(f"{field}{part}: ")
    assert " against " in difference


def test_equal_jobs_have_one_digest_however_they_were_written() -> None:
    written_out = job_of(yaml.safe_load(Job().to_yaml()))
    terse = job_of({"privacy": {"epsilon": 1}})
    assert Job().digest() == written_out.digest() == terse.digest()
    assert Job().first_difference(terse) is None


def test_jobs_with_other_data_differ_in_the_source_first() -> None:
    assert (
        Job().first_difference(job_of({"data": {"source": "synthetic"}}))
        == "data.source: 'flights' against 'synthetic'"
    )


def test_a_difference_shows_no_parameters_of_urls() -> None:
    def job(secret: str) -> Job:
        label = {"path": f"s3://name:{secret}@bank/labels.csv", "id": "id", "label": "y"}
        features = [{"party": "shop", "path": f"s3://shop/visits.csv?token={secret}", "id": "id", "numeric": ["x"]}]
        return job_of({"data": {"source": "table", "features": features, "label": label}})

    difference = str(job("secret").first_difference(job("another")))
    assert difference.startswith("data.features.shop.path: ")
    assert "s3://shop/visits.csv" in difference and "secret" not in difference and "another" not in difference


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"data": {"source": "synthetic", "rows": 50, "signal": 0.125}},
        {"data": TABLE},
        {"privacy": {"mechanism": "gaussian", "sigma": 1.5, "delta": 1e-7, "noise_seed": 3}},
        {"training": {"label_optimizer": {"learning_rate": 1e-5}, "order": "arrival"}, "model": {"top": []}},
    ],
)
def test_a_written_job_reads_back_the_same(tmp_path: Path, content: dict[str, Any]) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(content))
    job = load_job(tmp_path / "job.yaml")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "job.yaml").write_text(job.to_yaml(), encoding="utf-8")
    assert load_job(elsewhere / "job.yaml") == job


def test_files_are_looked_for_beside_the_job_file_from_wherever_one_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "job.yaml").write_text(yaml.safe_dump({"data": TABLE}))
    monkeypatch.chdir(tmp_path)
    job = load_job(Path("jobs/job.yaml"))
    assert isinstance(job.data, TableData)
    assert job.data.features[0].path == tmp_path / "jobs" / "a.csv"
    assert job.data.label.path == Path("/far/away/b.csv")


def test_numbers_in_the_notation_of_science_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("training: {label_optimizer: {learning_rate: 1e-4}}\nprivacy: {epsilon: 5e-1}\n")
    job = load_job(tmp_path / "job.yaml")
    assert (job.training.label_optimizer.learning_rate, job.privacy.epsilon) == (1e-4, 0.5)


def test_an_override_replaces_single_fields() -> None:
    content = {
        "data": {"source": "synthetic", "rows": 50, "seed": 3},
        "training": {"epochs": 3, "label_optimizer": {"name": "sgd", "learning_rate": 0.5}},
    }
    job = job_of(content, data={"rows": 60}, training={"seed": 8, "label_optimizer": {"learning_rate": 0.25}})
    assert job.data == SyntheticData(rows=60, seed=3)
    assert (job.training.epochs, job.training.seed) == (3, 8)
    assert (job.training.label_optimizer.name, job.training.label_optimizer.learning_rate) == ("sgd", 0.25)
    assert content["data"] == {"source": "synthetic", "rows": 50, "seed": 3}


def test_another_mechanism_drops_the_parameters_of_the_old_one_and_nothing_else() -> None:
    content = {"privacy": {"mechanism": "gaussian", "sigma": 2.0, "delta": 1e-5, "estimator": "unbiased", "draws": 2}}
    privacy = job_of(content, privacy={"mechanism": "laplace", "epsilon": 3.0}).privacy
    assert (privacy.mechanism, privacy.epsilon, privacy.sigma, privacy.delta) == ("laplace", 3.0, None, None)
    assert (privacy.estimator, privacy.draws) == ("unbiased", 2)
    with pytest.raises(JobError, match="test: privacy: mechanism 'discrete' needs epsilon"):
        job_of(content, privacy={"mechanism": "discrete"})
    # The default ε belongs to the default mechanism.
    with pytest.raises(JobError, match="mechanism 'laplace' needs epsilon"):
        job_of({"privacy": {"mechanism": "laplace"}})
    assert job_of({"privacy": {"mechanism": "none"}}).privacy.epsilon is None


def test_another_data_source_drops_the_fields_of_the_old_one() -> None:
    job = job_of({"data": {"source": "synthetic", "rows": 50}}, data={"source": "flights", "layout": "natural"})
    assert job.data == FlightsData(layout="natural")


def test_an_override_does_not_hide_a_part_that_is_no_mapping() -> None:
    for content in ({"training": 7}, {"privacy": [1]}, {"training": {"label_optimizer": "sgd"}}):
        with pytest.raises(JobError, match=r"test: (training|privacy).*valid dictionary"):
            job_of(content, privacy={"epsilon": 1.0}, training={"label_optimizer": {"name": "adam"}})


@pytest.mark.parametrize("text", ["\xff".encode("latin-1"), b"a: b: c", b"{", b"!!python/object:os.system {}"])
def test_a_file_that_is_no_yaml_is_named(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "job.yaml").write_bytes(text)
    with pytest.raises(JobError, match="is not YAML") as error:
        load_job(tmp_path / "job.yaml")
    assert str(error.value).startswith(f"{tmp_path / 'job.yaml'}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("training", "reason"),
    [
        ({"loss": "hinge"}, "training.loss: unknown loss 'hinge'; known are cross_entropy"),
        (
            {"label_optimizer": {"name": "adamx"}},
            "training.label_optimizer.name: unknown optimizer 'adamx'; known are ",
        ),
    ],
)
def test_unknown_losses_and_optimisers_are_refused_with_the_known_ones(training: dict[str, Any], reason: str) -> None:
    with pytest.raises(JobError, match=reason):
        job_of({"training": training})


@pytest.mark.parametrize(
    ("agreed", "most", "returned"),
    [
        ("score", None, "score"),
        ("score", "rounded", "scores rounded to 3 decimals"),
        ("rounded", "score", "scores rounded to 3 decimals"),
        ("rounded", "nothing", "nothing"),
        ("nothing", "score", "nothing"),
    ],
)
def test_a_side_narrows_what_is_returned_and_never_widens_it(
    agreed: Returns, most: Returns | None, returned: str
) -> None:
    assert str(PredictionConfig(returns=agreed, decimals=3).at_most(most)) == returned


EPSILON = {"privacy": {"epsilon": 0.5}}


def statistic_job(**content: Any) -> Job:
    return make_job({**EPSILON, **content}, {}, "test")


def test_method_and_section_follow_from_each_other() -> None:
    assert (statistic_job().method, statistic_job().statistic) == ("network", None)
    for content in ({"method": "statistic"}, {"statistic": {}}, {"statistic": {"share_codes": True}}):
        job = statistic_job(**content)
        assert job.statistic is not None and job.method == "statistic"
        again = make_job(job.model_dump(mode="json"), {}, "test")
        assert again == job and again.digest() == job.digest()


def test_what_the_statistic_is_counts_in_the_digest() -> None:
    sections: list[dict[str, Any]] = [
        {},
        {"noise": "laplace"},
        {"delta": 1e-7},
        {"share_codes": True},
    ]
    assert len({statistic_job(statistic=section).digest() for section in sections}) == len(sections)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ({"method": "network", "statistic": {}}, "network-without-statistic"),
        ({"method": "statistic", "privacy": {"mechanism": "none"}}, "statistic-of-one-epsilon"),
        ({"method": "statistic", "privacy": {"epsilon": 1, "draws": 2}}, "statistic-of-one-epsilon"),
        ({"method": "statistic", "model": {"wide": True}}, "wide-without-labels"),
        ({"statistic": {"share_codes": True}, "training": {"wire": "bfloat16"}}, "codes-are-whole-numbers"),
    ],
)
def test_what_does_not_fit_is_refused(content: dict[str, Any], code: str) -> None:
    with pytest.raises(JobError) as error:
        statistic_job(**content)
    assert error.value.code == code


@pytest.mark.parametrize(
    ("content", "key"), [({"method": "best"}, "method"), ({"statistic": {"delta": 0}}, "delta"), ({"statistic": 7}, "")]
)
def test_what_is_no_value_is_refused(content: dict[str, Any], key: str) -> None:
    with pytest.raises(JobError, match=f"^test: .*{key}"):
        statistic_job(**content)


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
        ({"training": {"epochs": 60}}, (0.1, 2, 60)),
        ({"training": {"validation": 0.3}}, (0.3, 2, 20)),
        ({"training": {"patience": 5}}, (0.1, 5, 20)),
        ({"training": {"validation": 0}}, PLAIN),
        ({"training": {"patience": 0}}, PLAIN),
        ({"training": {"patience": 0, "validation": 0.2, "epochs": 7}}, (0.2, 0, 7)),
        ({"training": {"epochs": 1}}, (0.0, 0, 1)),
        ({"training": {"epochs": 1, "validation": 0.2}}, (0.2, 0, 1)),
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
