"""What a job promises, computed from its mechanism alone: no run, no data and no label is looked at."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from tpsl.attacks.auc_prediction import auc_ceiling, predicted_auc, predicted_statistic_auc
from tpsl.files import for_json
from tpsl.mechanisms.effective_labels import effective_labels
from tpsl.report.run_view import Promise
from tpsl.report.words import rounded_up
from tpsl.run.job import Job
from tpsl.run.job_sections import PrivacyConfig
from tpsl.run.releases import planned_releases, statistic_plan
from tpsl.run.result import NOTHING_RELEASED, TrainResult
from tpsl.vault import Spent
from tpsl.vault.cost import is_large_delta, times


def promise_of(
    job: Job,
    classes: int,
    result: TrainResult | None = None,
    total: Spent | None = None,
    records: int | None = None,
) -> Promise:
    """Return the promise of a job for this number of classes: the ε of the integers that are sampled, over all draws.

    A finished run states its ε itself, and whether its noise was secret: that is what counts then. `total` is what the
    ledger says that the records have spent in all; a finished run has noted that too, at its end. `records` is their
    number, where neither says so.
    """
    facts = _facts(job.privacy, classes)
    attack, closed_form, bound = _attacked(job, classes, facts)
    epsilon, delta = (facts.epsilon, facts.delta) if result is None else (result.epsilon, result.delta)
    if result is None and job.statistic is not None:
        delta = max(delta, statistic_plan(job, classes).total(classes).delta)
    private = math.isfinite(epsilon) and (job.privacy.noise_seed is None if result is None else result.private)
    spent = Spent(epsilon, delta, private)
    if result is not None:
        spent = spent.joined(Spent(result.total_epsilon, result.total_delta, result.private))
    if total is not None:
        spent = spent.joined(total)
    counted = result.train_records if result is not None else total.records if total is not None else records
    large = spent.private and counted is not None and is_large_delta(spent.delta, counted)
    return Promise(
        mechanism=_planned(job, classes) if result is None else result.mechanism,
        estimator=job.privacy.estimator,
        draws=job.privacy.draws,
        total_epsilon=for_json(spent.epsilon),
        total_delta=spent.delta,
        total_epsilon_text=rounded_up(spent.epsilon, 4),
        total_delta_text=rounded_up(spent.delta, 2),
        epsilon=for_json(epsilon),
        delta=delta,
        private=spent.private,
        seeded=job.privacy.noise_seed is not None,
        large_delta=large,
        epsilon_text=rounded_up(epsilon, 4),
        delta_text=rounded_up(delta, 2),
        ceiling=auc_ceiling(epsilon, delta) if bound is None else bound,
        attack=attack,
        closed_form=closed_form,
        worth_words=_worth_text(job, facts, counted),
    )


def _planned(job: Job, classes: int) -> str:
    return " and ".join(planned_releases(job, classes)) or NOTHING_RELEASED


def _worth_text(job: Job, facts: _Facts, records: int | None) -> str:
    """Return how many clean labels the noisy ones are worth at most; nothing where no noisy labels train a network.

    Any party may know it: the classes are taken as equal, which are worth most, so that no label has a part in it.
    """
    if records is None or facts.worth is None or job.method != "network":
        return ""
    return (
        f"What can be learned is limited, too: the {records:,} noisy labels say about as much as "
        f"{facts.worth * records:,.0f} clean ones, or less if the classes are not equally frequent."
    )


@dataclass(frozen=True)
class _Facts:
    """What a mechanism allows; that of no noisy label by default."""

    epsilon: float = 0.0
    delta: float = 0.0
    shortest_distance: float | None = None
    likelihood: float | None = None
    """The AUC of the best attack."""
    worth: float | None = None
    """The clean labels that one noisy label is worth, with equal classes; None without noise."""


def _attacked(job: Job, classes: int, facts: _Facts) -> tuple[str, float | None, float | None]:
    """Return the attack on what crosses that is predicted, its AUC, and the bound where ε and δ do not give it.

    Of a job that trains on noisy labels and has a statistic, too, it is the attacker on the noisy labels.
    """
    if job.method == "statistic":
        plan = statistic_plan(job, classes)
        found = predicted_statistic_auc(plan.noise, plan.bound, classes, plan.releases)
        return "statistic", found.likelier_class, found.ceiling
    if job.hands_over:
        return "likelihood", facts.likelihood, None
    return "shortest_distance", facts.shortest_distance, None


@lru_cache(maxsize=256)
def _facts(privacy: PrivacyConfig, classes: int) -> _Facts:
    """Compute once for all runs of a setting: a table of thousands of exact integers takes a tenth of a second."""
    if privacy.gradients == "none":
        return _Facts()
    mechanism = privacy.build(classes)
    predicted, private = predicted_auc(mechanism), mechanism.epsilon < math.inf
    return _Facts(
        times(mechanism.epsilon, privacy.draws),
        times(mechanism.delta, privacy.draws),
        for_json(predicted.shortest_distance),
        for_json(predicted.best_score),
        effective_labels(mechanism, [1] * classes, privacy.draws) / classes if private else None,
    )
