"""The end of a job: every party has its last checkpoint on disk before anybody is told that all is done.

`Finish`, part 0, of every feature party: its weights are on disk. The label party answers when the result is written.
`Finish`, part 1: the party has noted that the run is finished. The label party notes that, and does not wait for it any
more; the answer lets the party go. Of several workers the first writes.
"""

from __future__ import annotations

import math
import time

from tpsl.mechanisms import Cost
from tpsl.net.asking import Due, Script
from tpsl.net.messages import LABEL_PARTY, Message
from tpsl.run.evaluation import TEST_METRICS
from tpsl.run.releases import statistic_plan
from tpsl.run.result import NOTHING_RELEASED, FeatureResult, TrainResult
from tpsl.run.role import FeatureRun, LabelRole
from tpsl.run.stages.evaluate import best_epoch
from tpsl.vault import Spent

FINISH = "Finish"


def label(role: LabelRole) -> Script:
    """Write the weights and the result when all feature parties have finished, and let them go one by one.

    The result has no test metrics yet: they depend on true labels, and the feature parties are still connected.
    """
    question = yield Due(FINISH, role.done, 0)
    role.workers.barrier()
    if role.result is None:
        role.keep_for_new_records(trained=role.job.trains and not role.job.hands_over)
        if role.workers.is_first:
            role.run.finish(_label_result(role))
        role.workers.barrier()
        role.result = role.run.result()
    question.answer_all()
    staying = role.present
    while staying:
        question = yield Due(FINISH, role.done, 1, one_of=staying)
        for name in question.asked:
            staying = tuple(party for party in staying if party != name)
            if role.workers.is_first:
                role.run.confirm(role.name, name)
        role.workers.barrier()
        question.answer_all()


def feature(run: FeatureRun) -> None:
    """Write the weights, say so, and note the end when the label party has noted it, too."""
    for role in run.roles:
        role.keep_for_new_records(trained=not role.job.hands_over)
    run.workers.barrier()
    run.ask(FINISH)
    for role in run.roles:
        role.result = role.run.party_result(role.name) or FeatureResult(
            run=str(role.run.path),
            party=role.name,
            job=role.job.digest(),
            train_records=len(role.side.train),
            epochs=role.epochs,
            steps=role.done,
            samples_per_second=role.speed.per_second,
        )
        role.workers.barrier()
        if role.workers.is_first:
            role.run.finish_party(role.result)
    run.workers.barrier()
    for role in run.roles:
        run.label.ask(FINISH, run.done, 1, {role.name: Message()})
        if role.workers.is_first:
            role.run.confirm(role.name, LABEL_PARTY)
        if not role.job.hands_over:  # else it trains now
            role.observer.event("finished")


_VALIDATION = ("validation_loss", "validation_auc", "validation_auc_low", "validation_auc_high")


def _label_result(role: LabelRole) -> TrainResult:
    entries = role.run.metrics()
    by_noisy_labels = role.schedule.patience and role.job.statistic is None
    kept = (best_epoch(entries) if by_noisy_labels else entries[-1]) if entries else {}
    released: dict[str, Cost] = {}
    """What each record that has a part in a release spends by it: none has a part in both."""
    if role.job.releases and len(role.schedule.labelled):
        noisy = role.noisy()
        released[noisy.mechanism.name] = Cost(noisy.epsilon, noisy.delta)
    if role.job.statistic is not None:
        plan = statistic_plan(role.job, role.records.classes)
        released[f"{plan.noise.kind} statistic"] = plan.total(role.records.classes)
    total = role.vault.total() if role.job.releases else Spent()
    return TrainResult(
        run=str(role.run.path),
        data=role.job.data.source,
        mechanism=" and ".join(released) or NOTHING_RELEASED,
        estimator=role.job.privacy.estimator,
        draws=role.job.privacy.draws,
        total_epsilon=total.epsilon,
        total_delta=total.delta,
        epsilon=max((cost.epsilon for cost in released.values()), default=0.0),
        delta=max((cost.delta for cost in released.values()), default=0.0),
        private=total.private,
        classes=role.records.classes,
        train_records=len(role.records.train),
        statistic_records=len(role.schedule.statistic),
        test_records=len(role.records.test),
        epochs=role.epochs,
        kept_epoch=kept.get("epoch", 0),
        steps=role.done,
        samples_per_second=role.speed.per_second,
        seconds=time.perf_counter() - role.begun,
        **{name: kept.get(name, math.nan) for name in _VALIDATION},
        **dict.fromkeys(TEST_METRICS, math.nan),  # `AfterTraining` adds them
    )
