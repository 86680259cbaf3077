"""`method: auto`: the same answer at every party, and the job that is run says it."""

from pathlib import Path
from typing import Any

import pytest

from tpsl.training.job import Job, make_job
from tpsl.training.method import best_method, resolve_method
from tpsl.training.observer import Watching
from tpsl.training.one_process import train
from tpsl.training.run_folder import RunFolder


def job(epsilon: float, **changes: Any) -> Job:
    content = {
        "data": {"source": "synthetic", "rows": 600, "numeric_fields": 2, "categorical_fields": 2},
        "privacy": {"epsilon": epsilon},
        "model": {"embedding_dim": 4, "bottom": [8], "top": [8], "wide": True, "members": 2},
        "method": "auto",
    }
    return make_job(content, changes, "test")


@pytest.mark.parametrize(
    ("epsilon", "records", "method"),
    [
        (0.1, 261_877, "statistic"),
        (0.5, 261_877, "statistic"),
        (1.0, 261_877, "network"),
        (2.0, 261_877, "network"),
        (0.7, 24_000, "statistic"),
        (1.0, 24_000, "network"),
    ],
)
def test_it_chooses_by_what_the_noisy_labels_are_worth(epsilon: float, records: int, method: str) -> None:
    asked = job(epsilon, statistic={"share_codes": True, "delta": 1e-7})
    found, why = best_method(asked, records)
    assert found.method == method
    assert why.startswith(f"method auto takes '{method}': {records:,} noisy labels at ε = {epsilon:g} are worth about ")
    if method == "statistic":
        assert found.statistic is not None
        assert (found.statistic.share, found.statistic.share_codes, found.statistic.delta) == (1.0, True, 1e-7)
        assert (found.model.wide, found.model.members) == (False, 1)
    else:
        changes = {"method": "network", "training": {"averaging": 0.995}}
        assert found == make_job({**asked.model_dump(mode="json"), "statistic": None}, changes, "test")
    assert best_method(found.model_copy(update={"method": "auto"}), records)[0].method == method


@pytest.mark.parametrize(
    ("epsilon", "records", "named", "releases"),
    [(0.5, 261_877, {}, 2), (0.5, 96_000, {}, 1), (0.1, 261_877, {}, 1), (0.5, 261_877, {"releases": 1}, 1)],
)
def test_many_records_get_a_second_statistic_unless_the_job_names_it(
    epsilon: float, records: int, named: dict[str, int], releases: int
) -> None:
    found = best_method(job(epsilon, statistic={"share_codes": True, **named}), records)[0]
    assert found.statistic is not None
    assert found.statistic.releases == releases


def test_a_network_gets_a_wide_part_and_averaged_weights_unless_the_job_names_them() -> None:
    plain = make_job({"privacy": {"epsilon": 4.0}, "method": "auto"}, {}, "test")
    found = best_method(plain, 261_877)[0]
    assert (found.method, found.model.wide, found.training.averaging) == ("network", True, 0.995)
    named = {"model": {"wide": False}, "training": {"averaging": 0.5}}
    found = best_method(make_job({"privacy": {"epsilon": 4.0}, "method": "auto", **named}, {}, "test"), 261_877)[0]
    assert (found.method, found.model.wide, found.training.averaging) == ("network", False, 0.5)
    several = make_job({"data": {"source": "synthetic", "classes": 4}, "method": "auto"}, {}, "test")
    assert not best_method(several, 10_000_000)[0].model.wide


def test_a_statistic_without_codes_is_for_the_smallest_epsilon() -> None:
    asked = [job(epsilon, statistic={"share_codes": False}) for epsilon in (0.1, 0.5)]
    assert [best_method(one, 261_877)[0].method for one in asked] == ["statistic", "network"]


@pytest.mark.parametrize(
    ("changes", "wide"),
    [
        ({"privacy": {"epsilon": 0.01}}, True),
        ({"privacy": {"mechanism": "none"}}, True),
        ({"privacy": {"mechanism": "gaussian", "sigma": 1.0, "delta": 1e-6}}, True),
        ({"privacy": {"gradients": "none"}, "training": {"head": "local"}}, False),
        ({"privacy": {"draws": 2}}, True),
        ({"training": {"labels": "arriving", "order": "arrival"}}, False),
        ({"training": {"exchange": "labels"}}, True),
        ({"data": {"source": "own", "parties": ["shop"]}}, False),
        ({"data": {"task": "delay5"}}, False),
        ({"model": {"cut": {"label": 4}}}, False),
    ],
)
def test_without_a_section_it_takes_a_network_whatever_the_job_says(changes: dict[str, Any], wide: bool) -> None:
    found, why = best_method(make_job({"method": "auto"}, changes, "test"), 1000)
    assert (found.method, found.model.wide, found.training.averaging) == ("network", wide, 0.995)
    assert why == "method auto takes 'network': the job has no section 'statistic'"


def test_with_many_classes_noisy_labels_are_worth_less() -> None:
    codes = {"share_codes": True}
    assert best_method(job(2.0, model={"wide": False}, statistic=codes), 261_877)[0].method == "network"
    many = job(2.0, model={"wide": False}, statistic=codes, data={"classes": 100})
    assert best_method(many, 261_877)[0].method == "statistic"


def test_the_run_keeps_the_job_as_it_was_resolved_and_goes_on_with_it(tmp_path: Path) -> None:
    said: list[str] = []
    asked = job(0.5, privacy={"noise_seed": 1}, statistic={"share_codes": False})
    first = train(asked, tmp_path / "run", watching=Watching(reason=said.append))
    assert sum(text.startswith("method auto takes 'statistic'") for text in said) == 1
    assert RunFolder(tmp_path / "run").job() == best_method(asked, 480)[0]
    assert train(asked, tmp_path / "run").as_dict() == first.as_dict()


def test_records_are_read_only_if_the_answer_depends_on_their_number() -> None:
    said: list[str] = []
    plain = make_job({}, {}, "test")
    assert resolve_method(plain, lambda: 1 // 0, said.append) == plain
    assert said == []
    assert resolve_method(make_job({"method": "auto"}, {}, "test"), lambda: 1 // 0, said.append).model.wide
    asked = job(0.5, statistic={"share_codes": False})
    assert resolve_method(asked, lambda: 480, said.append) == best_method(asked, 480)[0]
    assert [text.split(":")[0] for text in said] == ["method auto takes 'network'", "method auto takes 'statistic'"]
