"""Early stopping: after an epoch the label party says what noisy labels of held-out records think of its weights.

The verdict is a function of noisy labels, so it may cross. Every party keeps the best weights, and ends with them.
"""

from __future__ import annotations

from typing import Any

from tpsl.training.checkpoint import BEST, load_checkpoint, save_checkpoint, saved_steps
from tpsl.training.role import FeatureRole, LabelRole, Role
from tpsl.transport.checks import BadMessage
from tpsl.transport.messages import Verdict

ENOUGH_JUDGES = 500
"""Of fewer held-out records the noise of their labels may well choose a poor epoch."""


async def label(role: LabelRole) -> bool:
    """Judge the epoch that ends here, keep its weights if they are the best so far, and say whether to stop."""
    if not role.schedule.has_verdict(role.done):
        return False
    best, stop = role.workers.broadcast(_judged(role) if role.workers.is_first else None)
    verdict = Verdict(role.done, best=best, stop=stop)
    await role.send(verdict)
    if role.result is None:
        _obey(role, verdict)
    return verdict.stop


async def feature(role: FeatureRole) -> bool:
    """Hear whether the weights of an epoch are the best so far, which are kept, and whether training ends."""
    if not role.schedule.has_verdict(role.done):
        return False
    verdict = await role.receive(Verdict)
    if verdict.step != role.done:
        raise BadMessage(f"{role.channel.peer} judges step {verdict.step}; expected was step {role.done}")
    if not (verdict.best or saved_steps(role.folder / BEST)):
        raise BadMessage(f"{role.channel.peer} judges step {role.done} and names no epoch that is better")
    if role.workers.broadcast([verdict.best, verdict.stop]) != [verdict.best, verdict.stop]:
        raise BadMessage(f"{role.channel.peer} judges step {role.done} otherwise for other workers of this party")
    _obey(role, verdict)
    return verdict.stop


def tell_of_few_judges(role: LabelRole) -> None:
    """Say so, before the first step, if few records will judge the epochs."""
    judges = len(role.schedule.held_out)
    if role.schedule.patience and not role.done and role.workers.is_first and judges < ENOUGH_JUDGES:
        role.setup.watching.notice(
            f"{judges:,} held-out records judge the epochs, which is few for noisy labels: a poor epoch may be kept; "
            "training.validation=0.2 holds out more, training.patience=0 trains all epochs"
        )


def _judged(role: LabelRole) -> tuple[bool, bool]:
    """Return whether the epoch that ends here is the best so far, and whether training ends with it."""
    judged = [entry for entry in epochs_of_network(role) if entry["step"] <= role.done]
    best = best_epoch(judged)
    without_gain = judged[-1]["epoch"] - best["epoch"]
    return best is judged[-1], without_gain >= role.schedule.patience


def _obey(role: Role, verdict: Verdict) -> None:
    if verdict.best:
        save_checkpoint(role.folder / BEST, role.done, role.job.digest(), role.halves, role.setup.workers)
    if verdict.stop:
        role.observer.event("stopped early", step=role.done)


def restore_best(role: Role) -> None:
    """Put the halves into their best state when training has ended, if the job judges its epochs."""
    if role.schedule.patience and role.done:
        best, workers = role.folder / BEST, role.setup.workers
        step = workers.broadcast(max(saved_steps(best), default=0))
        load_checkpoint(best, step, role.job.digest(), role.halves, workers)


def epochs_of_network(role: LabelRole) -> list[dict[str, Any]]:
    """Return the metrics of the run's epochs, without those of a head that was fitted after them."""
    return [entry for entry in role.run.metrics() if "head" not in entry]


def best_epoch(judged: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the first of the epochs that explain the noisy hold-out best."""
    return max(judged, key=lambda entry: (entry["validation_log_likelihood"], -entry["epoch"]))
