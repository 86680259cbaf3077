"""Which method a job with `method: auto` trains by: chosen from what every party knows, before any label is read.

All parties hold the same job and count the same records, so each comes to the same answer by itself. No label has a
part in it: the choice costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tpsl.data.config import OwnData
from tpsl.mechanisms.effective_labels import effective_labels
from tpsl.progress import Notice
from tpsl.training.job import Job, make_job
from tpsl.training.statistic_config import StatisticConfig

_LABEL_WORTH = 0.1
"""Of a clean label, what a noisy one must be worth: if less, a statistic with codes of all fields gives a better head.

Measured with 24,000 to 236,000 records: where the two meet depends on ε, hardly on the number of records.
"""
_ENOUGH_WITHOUT_CODES = 4_000
"""Or what all of them together must be worth, where the statistic would be one of embeddings alone."""
_ENOUGH_FOR_TWO = 100_000
"""Records times ε from which on two statistics with codes give a better head than one does."""
_POSITIVES = 0.24
"""The share of class 1 that is assumed of two classes; of more classes, all are assumed to be as frequent."""
_AVERAGING = 0.995


def resolve_method(job: Job, count: Callable[[], int], notice: Notice) -> Job:
    """Return the job with the method that `auto` stands for, and say which; another job is returned as it is.

    `count` returns the number of training records. It is called only if the answer depends on it: records may have to
    be read for it.
    """
    if job.method != "auto":
        return job
    found, why = best_method(job, 0 if job.statistic is None else count())
    notice(why)
    return found


def best_method(job: Job, records: int) -> tuple[Job, str]:
    """Return the job with the method that is best for its ε, its classes and this number of records, and why.

    A network gets a wide part and averaged weights, unless the job names these keys itself. A statistic has a δ, and
    every change of the job is a release of its own: only a job with a section of that name may come to it. It keeps the
    section, with a second release where that is better, and has no wide part and one member: no network is trained.
    """
    content = job.content()
    if job.statistic is None:
        return _network(job, content), "method auto takes 'network': the job has no section 'statistic'"
    worth = effective_labels(job.mechanism, _counts(job.classes, records))
    enough = worth >= _LABEL_WORTH * records or (not job.statistic.share_codes and worth >= _ENOUGH_WITHOUT_CODES)
    why = f"{records:,} noisy labels at ε = {job.privacy.epsilon:g} are worth about {worth:,.0f} clean ones"
    if enough:
        return _network(job, content), f"method auto takes 'network': {why}, enough for a network"
    section = {**content["statistic"], "share": 1.0, **_releases(job.statistic, job.privacy.epsilon, records)}
    model = {**content["model"], "wide": False, "members": 1}
    found = make_job(content | {"method": "statistic", "statistic": section, "model": model}, {}, "method auto")
    return found, f"method auto takes 'statistic': {why}, too few for a network"


def _releases(section: StatisticConfig, epsilon: float | None, records: int) -> dict[str, int]:
    """Return how many statistics are best, unless the job names it itself."""
    if not section.share_codes or epsilon is None or "releases" in section.model_fields_set:
        return {}
    return {"releases": 2 if records * epsilon >= _ENOUGH_FOR_TWO else 1}


def _network(job: Job, content: dict[str, Any]) -> Job:
    """Return a job of a network with what noise asks for, as far as the job can have it and does not name it itself."""
    model, training = dict(content["model"]), dict(content["training"])
    if "wide" not in job.model.model_fields_set:
        model["wide"] = _can_be_wide(job)
    if "averaging" not in job.training.model_fields_set:
        training["averaging"] = _AVERAGING
    changes = {"method": "network", "statistic": None, "model": model, "training": training}
    return make_job(content | changes, {}, "method auto")


def _can_be_wide(job: Job) -> bool:
    """Whether two classes have noisy labels before the first step, and parties tables and one width of the cut."""
    has_labels = job.classes == 2 and job.releases and not job.has_late_labels
    return has_labels and not isinstance(job.data, OwnData) and not isinstance(job.model.cut, dict)


def _counts(classes: int, records: int) -> list[int]:
    """Return how many records each class is assumed to have."""
    if classes == 2:
        return [records - round(_POSITIVES * records), round(_POSITIVES * records)]
    return [records // classes] * classes
