"""The end of a job: every party has its last checkpoint on disk before anybody is told that all is done.

`Finished` from each feature party, then `Bye` three times: I have finished; so have I, and I know that you have; I have
noted it. A party that has heard the first one stays for the last: it would be waited for in vain. Of several workers
the first writes, and none says more than what all of them have heard and it has written.
"""

from __future__ import annotations

import math
import time

from tpsl.mechanisms import Cost
from tpsl.training.evaluation import TEST_METRICS
from tpsl.training.receiving import receive
from tpsl.training.releases import statistic_plan
from tpsl.training.result import NOTHING_RELEASED, FeatureResult, TrainResult
from tpsl.training.role import FeatureRole, LabelRole, Role
from tpsl.training.stages.early_stopping import best_epoch
from tpsl.transport.checks import BadMessage
from tpsl.transport.messages import Bye, Finished
from tpsl.vault import Spent


async def label(role: LabelRole) -> None:
    """Write the weights and the result when all feature parties have finished, and say goodbye.

    The result has no test metrics yet: they depend on true labels, and the feature parties are still connected.
    """
    for channel in role.channels.values():
        finished = await receive(channel, role.observer, Finished)
        if finished.step != role.done:
            raise BadMessage(f"{channel.peer} finished at step {finished.step} of {role.done}")
    role.workers.barrier()
    if role.result is None:
        _sync(role)
        if role.job.trains and not role.job.hands_over:
            role.keep_what_predicts(role.folder)
        if role.workers.is_first:
            role.keep_encoder()
            role.run.note_records(role.name, role.records.ids)
            role.run.finish(_label_result(role))
        role.workers.barrier()
        role.result = role.run.result()
    await role.send(Bye())
    for name, channel in role.channels.items():
        await receive(channel, role.observer, Bye)
        role.workers.barrier()
        if role.workers.is_first:
            role.run.confirm(role.name, name)
        role.workers.barrier()
        await channel.send(Bye())


async def feature(role: FeatureRole) -> None:
    """Write the weights, say so, and note the end when the label party has said goodbye."""
    _sync(role)
    if not role.job.hands_over:
        role.keep_what_predicts(role.folder)
    if role.workers.is_first:
        if not role.job.hands_over:
            role.keep_encoder()
        role.run.note_records(role.name, role.side.ids)
    role.workers.barrier()
    await role.channel.send(Finished(role.done))
    await role.receive(Bye)
    role.result = role.run.party_result(role.name) or _feature_result(role)
    role.workers.barrier()
    if role.workers.is_first:
        role.run.finish_party(role.result)
    role.workers.barrier()
    await role.channel.send(Bye())
    await role.receive(Bye)  # the label party has noted that this party has finished
    role.workers.barrier()
    if role.workers.is_first:
        role.run.confirm(role.name, role.channel.peer)
    role.observer.event("finished")


def _sync(role: Role) -> None:
    if role.recorder:
        role.recorder.sync()


def _epochs(role: Role) -> int:
    return role.schedule.epoch_of(role.done - 1) if role.done else 0


def _feature_result(role: FeatureRole) -> FeatureResult:
    return FeatureResult(
        run=str(role.run.path),
        party=role.name,
        job=role.job.digest(),
        train_records=len(role.side.train),
        epochs=_epochs(role),
        steps=role.done,
        samples_per_second=role.speed.per_second,
    )


_VALIDATION = ("validation_loss", "validation_auc", "validation_auc_low", "validation_auc_high")


def _label_result(role: LabelRole) -> TrainResult:
    entries = role.run.metrics()
    by_noisy_labels = role.schedule.patience and role.job.statistic is None
    kept = (best_epoch(entries) if by_noisy_labels else entries[-1]) if entries else {}
    released = _released(role)
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
        epochs=_epochs(role),
        kept_epoch=kept.get("epoch", 0),
        steps=role.done,
        samples_per_second=role.speed.per_second,
        seconds=time.perf_counter() - role.begun,
        **{name: kept.get(name, math.nan) for name in _VALIDATION},
        **dict.fromkeys(TEST_METRICS, math.nan),  # `AfterTraining` adds them
    )


def _released(role: LabelRole) -> dict[str, Cost]:
    """Return what was released, by name, and what it cost each record that has a part in it: none has one in both."""
    found = {}
    if role.job.releases and len(role.schedule.labelled):
        noisy = role.noisy()
        found[noisy.mechanism.name] = Cost(noisy.epsilon, noisy.delta)
    if role.job.statistic is not None:
        plan = statistic_plan(role.job, role.records.classes)
        found[f"{plan.noise.kind} statistic"] = plan.total(role.records.classes)
    return found
