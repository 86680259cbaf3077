"""What a job promises, computed from its mechanism alone: no run, no data and no label is looked at."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from tpsl.attacks.auc_prediction import auc_ceiling, predicted_auc, predicted_statistic_auc
from tpsl.files import for_json
from tpsl.mechanisms import Mechanism
from tpsl.mechanisms.effective_labels import effective_labels
from tpsl.report.run_view import Promise
from tpsl.report.words import rounded_up
from tpsl.run.job import Job
from tpsl.run.job_sections import PrivacyConfig
from tpsl.run.releases import planned_releases, statistic_plan
from tpsl.run.result import NOTHING_RELEASED, TrainResult
from tpsl.vault import Spent
from tpsl.vault.cost import is_large_delta, times

_ROC_POINTS = 101


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
    attacked = _attacked(job, classes, facts)
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
        ceiling=auc_ceiling(epsilon, delta) if attacked.ceiling is None else attacked.ceiling,
        attack=attacked.attack,
        closed_form=attacked.closed_form,
        closed_form_best=attacked.closed_form_best,
        closed_form_roc=attacked.closed_form_roc,
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
    epsilon: float = 0.0
    delta: float = 0.0
    attack: str = "shortest_distance"
    ceiling: float | None = None
    """None: that of ε and δ."""
    closed_form: float | None = None
    closed_form_best: float | None = None
    closed_form_roc: tuple[list[float], list[float]] | None = None
    worth: float | None = None
    """The clean labels that one noisy label is worth, with equal classes; None without noise."""


def _attacked(job: Job, classes: int, facts: _Facts) -> _Facts:
    """Return what the strongest attacker on what crosses, or on the statistic, can reach; `facts` are of noisy labels.

    Of a job that trains on noisy labels and has a statistic, too, it is the attacker on the noisy labels.
    """
    if job.method == "statistic":
        plan = statistic_plan(job, classes)
        found = predicted_statistic_auc(plan.noise, plan.bound, classes, plan.releases)
        area = found.likelier_class, found.best_score
        return _Facts(attack="statistic", ceiling=found.ceiling, closed_form=area[0], closed_form_best=area[1])
    return replace(facts, attack="likelihood", closed_form=facts.closed_form_best) if job.hands_over else facts


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
        closed_form=for_json(predicted.shortest_distance),
        closed_form_best=for_json(predicted.best_score),
        closed_form_roc=best_roc(mechanism),
        worth=effective_labels(mechanism, [1] * classes, privacy.draws) / classes if private else None,
    )


def best_roc(mechanism: Mechanism) -> tuple[list[float], list[float]] | None:
    """Return the ROC curve of the best attack on one noisy label of two classes, as FPR and TPR."""
    if mechanism.classes != 2:
        return None
    likelihood = mechanism.log_likelihood(np.arange(mechanism.outcomes))
    with np.errstate(invalid="ignore"):
        order = np.argsort(-(likelihood[:, 1] - likelihood[:, 0]), kind="stable")
    negative, positive = (np.concatenate([[0.0], np.cumsum(np.exp(likelihood[order, y]))]) for y in (0, 1))
    # Thousands of outcomes make a curve that a hundred points show as well.
    chosen = np.unique(np.searchsorted(negative + positive, np.linspace(0.0, 2.0, _ROC_POINTS)).clip(0, len(order)))
    false, true = (np.minimum(axis[chosen], 1.0).round(6).tolist() for axis in (negative, positive))
    return false, true
