"""Which method a job with `method: auto` trains by: chosen from what every party knows, before any label is read.

All parties hold the same job and count the same records, so each comes to the same answer by itself. No label has a
part in it: the choice costs nothing.
"""

from __future__ import annotations

from typing import Any

from tpsl.mechanisms.effective_labels import effective_labels
from tpsl.progress import Notice
from tpsl.training.job import Job, make_job

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


def settled(job: Job, records: int, notice: Notice) -> Job:
    """Return the job with the method that `auto` stands for with this number of training records, and say which."""
    found, why = resolve(job, records)
    notice(why)
    return found


def resolve(job: Job, records: int) -> tuple[Job, str]:
    """Return the job with the method that is best for its ε, its classes and this number of records, and why.

    A network gets a wide part and averaged weights, unless the job names these keys itself. A statistic keeps the job's
    section of that name, with a second release where that is better, and has no wide part and one member: no network is
    trained.
    """
    worth = effective_labels(job.mechanism, _counts(job.classes, records))
    has_codes = job.statistic is not None and job.statistic.share_codes
    enough = worth >= _LABEL_WORTH * records or (not has_codes and worth >= _ENOUGH_WITHOUT_CODES)
    content = job.model_dump(mode="json", exclude_none=True, exclude={"method"})
    if enough:
        content |= {"method": "network", "statistic": None, **_recommended(job, content)}
    else:
        section = {**content.get("statistic", {}), "share": 1.0, **_releases(job, records)}
        model = {**content["model"], "wide": False, "members": 1}
        content |= {"method": "statistic", "statistic": section, "model": model}
    why = f"{records:,} noisy labels at ε = {job.privacy.epsilon:g} are worth about {worth:,.0f} clean ones"
    found = make_job(content, {}, "method auto")
    return found, f"method auto takes '{found.method}': {why}, {'enough' if enough else 'too few'} for a network"


def _releases(job: Job, records: int) -> dict[str, int]:
    """Return how many statistics are best, unless the job names it itself."""
    section, epsilon = job.statistic, job.privacy.epsilon
    if section is None or not section.share_codes or epsilon is None or "releases" in section.model_fields_set:
        return {}
    return {"releases": 2 if records * epsilon >= _ENOUGH_FOR_TWO else 1}


def _recommended(job: Job, content: dict[str, Any]) -> dict[str, Any]:
    """Return model and training of a network with what noise asks for, as far as the job does not name it itself."""
    model, training = dict(content["model"]), dict(content["training"])
    can_be_wide = job.classes == 2 and not isinstance(job.model.cut, dict)
    if can_be_wide and "wide" not in job.model.model_fields_set:
        model["wide"] = True
    if "averaging" not in job.training.model_fields_set:
        training["averaging"] = _AVERAGING
    return {"model": model, "training": training}


def _counts(classes: int, records: int) -> list[int]:
    """Return how many records each class is assumed to have."""
    if classes == 2:
        return [records - round(_POSITIVES * records), round(_POSITIVES * records)]
    return [records // classes] * classes
