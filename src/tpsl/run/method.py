"""What noisy labels will be worth: which method a job with `method: auto` trains by, and whether to warn of a class.

All parties hold the same job and count the same records, so each comes to the same method by itself. No label has a
part in it: the choice costs nothing. The warning of a rare class is computed from true labels. It is for the label
party's eyes, before a port is opened; none of it may cross the border, not even as time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from tpsl.data.config import OwnData
from tpsl.mechanisms.effective_labels import effective_labels, effective_labels_of_class
from tpsl.progress import Notice
from tpsl.run.job import Job, make_job
from tpsl.run.job_sections import PrivacyConfig

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

ENOUGH_OF_A_CLASS = 10.0
"""Clean labels of the rarest class that all noisy ones must be worth, or a learner finds little.

Measured by logistic regressions of 10 and 40 columns, 2,000 to 128,000 records, 0.5 to 50 % positives and ε from 0.5 to
4, whose AUC without noise is 0.7 and 0.8. Of the AUC above 0.5 that clean labels give, noisy ones that were worth 3 to
10 of the rare class kept 0.46 on average, and in 43 % of the runs the interval of the test AUC reached 0.5; worth 10 to
30 they kept 0.74 (18 %), worth 30 to 100 0.88 (5 %), and worth less than 3 they kept 0.15 (82 %).
"""
_EPSILONS = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
"""What the warning proposes: the smallest that is enough."""


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
    positives = round(_POSITIVES * records)
    counts = [records - positives, positives] if job.classes == 2 else [records // job.classes] * job.classes
    worth = effective_labels(job.mechanism, counts)
    why = f"{records:,} noisy labels at ε = {job.privacy.epsilon:g} are worth about {worth:,.0f} clean ones"
    if worth >= _LABEL_WORTH * records or (not job.statistic.share_codes and worth >= _ENOUGH_WITHOUT_CODES):
        return _network(job, content), f"method auto takes 'network': {why}, enough for a network"
    section, epsilon = content["statistic"], job.privacy.epsilon
    if job.statistic.share_codes and epsilon is not None and "releases" not in job.statistic.model_fields_set:
        section = {**section, "releases": 2 if records * epsilon >= _ENOUGH_FOR_TWO else 1}
    model = {**content["model"], "wide": False, "members": 1}
    found = make_job(content | {"method": "statistic", "statistic": section, "model": model}, {}, "method auto")
    return found, f"method auto takes 'statistic': {why}, too few for a network"


def _network(job: Job, content: dict[str, Any]) -> Job:
    """Return a job of a network with what noise asks for, as far as the job can have it and does not name it itself."""
    model, training = dict(content["model"]), dict(content["training"])
    if "wide" not in job.model.model_fields_set:
        has_labels = job.classes == 2 and job.releases
        model["wide"] = has_labels and not isinstance(job.data, OwnData) and not isinstance(job.model.cut, dict)
    training.setdefault("averaging", _AVERAGING)
    changes = {"method": "network", "statistic": None, "model": model, "training": training}
    return make_job(content | changes, {}, "method auto")


def rare_label_warning_of(job: Job, classes: Mapping[str, int]) -> str | None:
    """Return the warning for a job, with its training records of each class; None if no noisy labels train it."""
    return rare_label_warning(job.privacy, classes) if job.trains else None


def rare_label_warning(privacy: PrivacyConfig, classes: Mapping[str, int]) -> str | None:
    """Return what to expect of noisy labels if the rarest class drowns in the noise, and what helps; None if not.

    `classes` are the training records of each class, by its name.
    """
    known = {name: count for name, count in classes.items() if count}
    if len(known) < 2 or privacy.mechanism == "none":
        return None
    counts, rarest = list(classes.values()), min(known, key=known.__getitem__)
    number = list(classes).index(rarest)

    def worth_at(**changes: float) -> float:
        mechanism = privacy.model_copy(update=changes).build(len(counts))
        return effective_labels_of_class(mechanism, counts, number, privacy.draws)

    worth = worth_at()
    if worth >= ENOUGH_OF_A_CLASS:
        return None
    enough = (epsilon for epsilon in _EPSILONS if worth_at(epsilon=epsilon) >= ENOUGH_OF_A_CLASS)
    larger = next((f"ε ≥ {privacy.draws * epsilon:g}, " for epsilon in enough), "") if privacy.epsilon else ""
    few, spent = f"{worth:.1f}" if worth >= 0.1 else "less than 0.1", privacy.draws * privacy.build(len(counts)).epsilon
    return (
        f"about {known[rarest]:,} labels {rarest!r} drown in the noise at ε = {spent:.3g}, where they are worth {few} "
        f"clean ones: expect an AUC nearer to guessing (0.5) than to that of clean labels; use {larger}"
        f"{math.ceil(ENOUGH_OF_A_CLASS / worth):,} times as many records or one noisy statistic (method: statistic)"
    )
