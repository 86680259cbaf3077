"""Which method a job with `method: auto` trains by: chosen from what every party knows, before any label is read.

All parties hold the same job and count the same records, so each comes to the same answer by itself. No label has a
part in it: the choice costs nothing.
"""

from __future__ import annotations

import math
from typing import Any

from tpsl.progress import Notice
from tpsl.training.job import Job, make_job

_VARIANCE_OF_LABEL = 0.18
"""p(1-p) of a label with the base rate p = 0.24; of balanced ones it is 0.25."""
_ENOUGH_FOR_A_NETWORK = 10_000
"""Clean labels that the noisy ones must be worth: with fewer, one statistic gives the better head."""


def settled(job: Job, records: int, notice: Notice) -> Job:
    """Return the job with the method that `auto` stands for with this number of training records, and say which."""
    found, why = resolve(job, records)
    notice(why)
    return found


def resolve(job: Job, records: int) -> tuple[Job, str]:
    """Return the job with the method that is best for its ε and this number of training records, and why."""
    worth = records_worth(job.privacy.epsilon or math.inf, records)
    if worth >= _ENOUGH_FOR_A_NETWORK:
        return _changed(job, method="network", statistic=None), (
            f"method auto: network, because {records:,} noisy labels at ε = {job.privacy.epsilon:g} are worth about "
            f"{worth:,.0f} clean ones"
        )
    section = {} if job.statistic is None else job.statistic.model_dump(exclude={"share"})
    return _changed(job, method="statistic", statistic=section), (
        f"method auto: statistic, because {records:,} noisy labels at ε = {job.privacy.epsilon:g} are worth only about "
        f"{worth:,.0f} clean ones"
    )


def records_worth(epsilon: float, records: int) -> float:
    """Return how many clean labels this many noisy ones of randomised response are worth: `n·v / (v + s²)`.

    v is the variance of a label and `s = 1/(e^{ε/2} - e^{-ε/2})` the deviation of its unbiased noisy estimate.
    """
    noise = (2 * math.sinh(epsilon / 2)) ** -2
    return records * _VARIANCE_OF_LABEL / (_VARIANCE_OF_LABEL + noise)


def _changed(job: Job, **keys: Any) -> Job:
    """Return the job with other keys; the rest of it stays as it is."""
    return make_job({**job.model_dump(mode="json", exclude_none=True, exclude=set(keys)), **keys}, {}, "method auto")
