"""After each epoch: the network predicts held-out and test records, and noisy labels of the former give a verdict.

The first part of the embeddings is what each side notes as the version of the half that sent it. The answer to the last
part is the verdict, which is a function of noisy labels: whether the weights are the best so far, and whether training
ends. Every party keeps the best weights, and ends with them. True labels have no part in all this: the predictions are
kept, and `tpsl.run.after_training` compares those of test records with true labels when nobody can see how long
that takes.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.data.out_of_core import COLUMNS, RowStack
from tpsl.metrics import blocks
from tpsl.net.asking import Due, Script
from tpsl.net.failures import NOT_FINITE, BadMessage
from tpsl.net.messages import Message
from tpsl.net.rounding import NOT_FINITE_NUMBERS
from tpsl.run.checkpoint import BEST, load_checkpoint, save_checkpoint, saved_steps
from tpsl.run.evaluation import noisy_validation
from tpsl.run.role import FeatureRole, FeatureRun, LabelRole, Role
from tpsl.run.run_folder import epoch_folder
from tpsl.run.schedule import Schedule

ENOUGH_HELD_OUT = 500
"""Of fewer held-out records the noise of their labels may well choose a poor epoch."""

Verdict = tuple[bool, bool]
"""Whether the weights are the best so far, and whether training ends with them."""
EVALUATE = "Evaluate"
"""Feature party → label party: embeddings of one part of the held-out and test records after `step` steps. Answer: to
the last part the verdict, if the job has one."""


def label(role: LabelRole) -> Script:
    """Keep what the network predicts, and what noisy labels say of it; answer with the verdict."""
    classes, parts = role.records.classes, role.schedule.test_parts()
    predicted = RowStack(np.float32, 1 if classes == 2 else classes, COLUMNS)
    question, widths = None, role.widths(role.job.model.cut_width)
    for part, rows in enumerate(parts):
        question = yield Due(EVALUATE, role.done, part, rows=len(rows), widths=widths)
        received = question.tensors()
        if part == 0:
            role.note_versions(received)
        predicted.add(role.workers.all_gather_rows(role.party.predict(role.mine(rows), received)).cpu().numpy())
        if part + 1 < len(parts):
            question.answer_all()
    _keep_epoch(role)
    if role.workers.is_first:
        found = predicted.finish()
        keep_predictions(role, role.epochs, found[:, 0] if classes == 2 else found)
    role.checkpoint()
    role.verdict = verdict(role)
    if question is not None:
        question.answer_all(Message(numbers=as_numbers(role.verdict)))
    apply_verdict(role)


def keep_predictions(role: LabelRole, epoch: int, probabilities: npt.NDArray[np.float32], **facts: str) -> None:
    """Keep what was predicted for held-out and test records, and what noisy labels say of it.

    `facts` are added to the metrics.
    """
    if not all(np.isfinite(probabilities[block]).all() for block in blocks(len(probabilities))):
        raise BadMessage(f"after step {role.done:,}: the predictions {NOT_FINITE_NUMBERS}", NOT_FINITE)
    held_out = role.schedule.held_out
    validation, test = probabilities[: len(held_out)], probabilities[len(held_out) :]
    role.run.write_predictions(epoch, validation, test)
    found = {}
    if len(held_out):
        noisy = role.noisy()
        rows = role.schedule.among_labelled(held_out)
        found = asdict(noisy_validation(noisy.mechanism, noisy.draws, validation, rows))
    role.run.write_metrics([*role.run.metrics(), {"epoch": epoch, "step": role.done, **facts, **found}])
    role.observer.event("epoch", epoch=epoch, **found)
    role.after_epoch()


def feature(run: FeatureRun) -> None:
    """Send the embeddings of held-out and test records; the answer to the last part is the verdict."""
    embeds = [role.party.embed for role in run.roles]
    found = run.send_parts(EVALUATE, Schedule.test_parts, embeds, versions=True)
    for role in run.roles:
        _keep_epoch(role)
        role.observer.event("epoch", epoch=role.epochs)
        hear(role, found.get(role.name, Message()))


def _keep_epoch(role: Role) -> None:
    """Keep what predicts after this epoch, where an ensemble of epochs needs it."""
    if role.setup.search is not None:
        role.keep_what_predicts(epoch_folder(role.folder, role.epochs))
        role.run.keep_versions(role.name, role.epochs)


def verdict(role: LabelRole) -> Verdict | None:
    """Return the verdict on the epoch that ends after `done` steps; None where the job has none."""
    if not role.schedule.has_verdict(role.done):
        return None
    found: Verdict | None = None
    if role.workers.is_first:
        entries = [entry for entry in epochs_of_network(role) if entry["step"] <= role.done]
        best = best_epoch(entries)
        found = best is entries[-1], entries[-1]["epoch"] - best["epoch"] >= role.schedule.patience
    is_best, stops = role.workers.broadcast(found)
    return bool(is_best), bool(stops)


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
        save_checkpoint(role.folder / BEST, role.done, role.job.digest(), role.halves, role.workers)
    if stop:
        role.observer.event("stopped early", step=role.done)


def tell_of_few_held_out(role: LabelRole) -> None:
    """Say so, before the first step, if few records choose the best epoch."""
    held_out = len(role.schedule.held_out)
    if role.schedule.patience and not role.done and role.workers.is_first and held_out < ENOUGH_HELD_OUT:
        role.setup.watching.notice(
            f"only {held_out:,} held-out records choose the best epoch; with noisy labels a poor one may win: "
            "training.validation=0.2 holds out more, training.patience=0 trains all epochs"
        )


def restore_best(role: Role) -> None:
    """Put the halves into their best state when training has ended, if the job has verdicts."""
    if role.schedule.patience and role.done:
        best = role.folder / BEST
        step = role.workers.broadcast(max(saved_steps(best), default=0))
        load_checkpoint(best, step, role.job.digest(), role.halves)


def epochs_of_network(role: LabelRole) -> list[dict[str, Any]]:
    """Return the metrics of the run's epochs, without those of a head that was fitted after them."""
    return [entry for entry in role.run.metrics() if "head" not in entry]


def best_epoch(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the first of the epochs that explain the noisy hold-out best."""
    return max(entries, key=lambda entry: (entry["validation_log_likelihood"], -entry["epoch"]))
