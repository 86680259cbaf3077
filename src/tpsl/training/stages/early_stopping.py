"""Early stopping: after an epoch the label party says what noisy labels of held-out records think of its weights.

The verdict is a function of noisy labels, so it may cross. Every party keeps the best weights, and ends with them.
"""

from __future__ import annotations

from typing import Any

from tpsl.net.failures import BadMessage
from tpsl.net.messages import Message
from tpsl.training.checkpoint import BEST, load_checkpoint, save_checkpoint, saved_steps
from tpsl.training.role import FeatureRole, LabelRole, Role

ENOUGH_HELD_OUT = 500
"""Of fewer held-out records the noise of their labels may well choose a poor epoch."""

Verdict = tuple[bool, bool]
"""Whether the weights are the best so far, and whether training ends with them."""


def verdict(role: LabelRole) -> Verdict | None:
    """Return the verdict on the epoch that ends after `done` steps; None where the job has none."""
    if not role.schedule.has_verdict(role.done):
        return None
    found = role.workers.broadcast(_judged(role) if role.workers.is_first else None)
    return bool(found[0]), bool(found[1])


def as_numbers(found: Verdict | None) -> tuple[int, ...]:
    """Return a verdict as it crosses."""
    return () if found is None else (int(found[0]), int(found[1]))


def hear(role: FeatureRole, answer: Message) -> None:
    """Take the verdict out of an answer."""
    role.verdict = None
    if not role.schedule.has_verdict(role.done):
        return
    if len(answer.numbers) != 2 or not set(answer.numbers) <= {0, 1}:
        raise BadMessage(f"the label party sent {answer.numbers} as the verdict on step {role.done}")
    best, stop = map(bool, answer.numbers)
    if not (best or saved_steps(role.folder / BEST)):
        raise BadMessage(f"the label party says of step {role.done} that an earlier epoch was better, and none was")
    role.verdict = best, stop


def apply_verdict(role: Role) -> None:
    """Keep the weights if they are the best so far."""
    if role.verdict is None:
        return
    best, stop = role.verdict
    if best:
        save_checkpoint(role.folder / BEST, role.done, role.job.digest(), role.halves, role.setup.workers)
    if stop:
        role.observer.event("stopped early", step=role.done)


def tell_of_few_held_out(role: LabelRole) -> None:
    """Say so, before the first step, if few records will judge the epochs."""
    held_out = len(role.schedule.held_out)
    if role.schedule.patience and not role.done and role.workers.is_first and held_out < ENOUGH_HELD_OUT:
        role.setup.watching.notice(
            f"only {held_out:,} held-out records choose the best epoch; with noisy labels a poor one may win: "
            "training.validation=0.2 holds out more, training.patience=0 trains all epochs"
        )


def _judged(role: LabelRole) -> Verdict:
    """Return whether the epoch that ends here is the best so far, and whether training ends with it."""
    judged = [entry for entry in epochs_of_network(role) if entry["step"] <= role.done]
    best = best_epoch(judged)
    without_gain = judged[-1]["epoch"] - best["epoch"]
    return best is judged[-1], without_gain >= role.schedule.patience


def restore_best(role: Role) -> None:
    """Put the halves into their best state when training has ended, if the job judges its epochs."""
    if role.schedule.patience and role.done:
        best, workers = role.folder / BEST, role.setup.workers
        step = workers.broadcast(max(saved_steps(best), default=0))
        load_checkpoint(best, step, role.job.digest(), role.halves)


def epochs_of_network(role: LabelRole) -> list[dict[str, Any]]:
    """Return the metrics of the run's epochs, without those of a head that was fitted after them."""
    return [entry for entry in role.run.metrics() if "head" not in entry]


def best_epoch(judged: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the first of the epochs that explain the noisy hold-out best."""
    return max(judged, key=lambda entry: (entry["validation_log_likelihood"], -entry["epoch"]))
