"""`method` and `statistic` of a job: each follows from the other, and what does not fit is refused."""

from typing import Any

import pytest

from tpsl.training.job import Job, JobError, make_job

EPSILON = {"privacy": {"epsilon": 0.5}}


def job_of(**content: Any) -> Job:
    return make_job({**EPSILON, **content}, {}, "test")


def test_method_and_section_follow_from_each_other() -> None:
    assert (job_of().method, job_of().statistic) == ("network", None)
    for content, method, share in (
        ({"method": "statistic"}, "statistic", 1.0),
        ({"method": "refit"}, "refit", 0.5),
        ({"method": "refit", "statistic": {"share": 0.2}}, "refit", 0.2),
        ({"statistic": {}}, "statistic", 1.0),
        ({"statistic": {"share": 0.3, "share_codes": True}}, "refit", 0.3),
    ):
        job = job_of(**content)
        assert job.statistic is not None
        assert (job.method, job.statistic.share) == (method, share)
        again = make_job(job.model_dump(mode="json"), {}, "test")
        assert again == job and again.digest() == job.digest()


def test_what_the_statistic_is_counts_in_the_digest() -> None:
    sections: list[dict[str, Any]] = [
        {},
        {"noise": "laplace"},
        {"delta": 1e-7},
        {"share_codes": True},
        {"share": 0.5},
    ]
    assert len({job_of(statistic=section).digest() for section in sections}) == len(sections)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"method": "network", "statistic": {}}, "method 'network' has no statistic"),
        ({"method": "statistic", "statistic": {"share": 0.5}}, "method 'statistic' needs statistic.share 1, not 0.5"),
        ({"method": "refit", "statistic": {"share": 1}}, "method 'refit' needs a statistic.share below 1, not 1"),
        ({"method": "best"}, "'network', 'statistic', 'refit' or 'auto'"),
        ({"statistic": {"share": 0}}, "greater than 0"),
        ({"statistic": 7}, "statistic"),
        ({"method": "statistic", "privacy": {"mechanism": "none"}}, "needs privacy.epsilon and one draw"),
        ({"method": "refit", "privacy": {"epsilon": 1, "draws": 2}}, "needs privacy.epsilon and one draw"),
        ({"method": "statistic", "model": {"wide": True}}, "model.wide is fitted on noisy labels"),
        (
            {"method": "refit", "training": {"labels": "arriving", "order": "arrival", "epochs": 1}},
            "all labels at once",
        ),
        ({"statistic": {"share_codes": True}, "training": {"wire": "bfloat16"}}, "training.wire: float32"),
    ],
)
def test_what_does_not_fit_is_refused(content: dict[str, Any], reason: str) -> None:
    with pytest.raises(JobError, match=reason):
        job_of(**content)
