"""After each epoch: the network predicts held-out and test records, and noisy labels judge it by the held-out ones.

The first part of the embeddings is what each side notes as the version of the half that sent it. The answer to the last
part is the verdict, which is a function of noisy labels. True labels have no part in all this: the predictions are
kept, and `tpsl.training.after_training` compares those of test records with true labels when nobody can see how long
that takes.
"""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import numpy.typing as npt

from tpsl.data.out_of_core import COLUMNS, RowStack
from tpsl.metrics import blocks
from tpsl.net.asking import Due, Script
from tpsl.net.checks import NOT_FINITE_NUMBERS
from tpsl.net.failures import NOT_FINITE, BadMessage
from tpsl.net.messages import Message
from tpsl.training.noisy_metrics import noisy_validation
from tpsl.training.role import FeatureRun, LabelRole, Role
from tpsl.training.run_folder import epoch_folder
from tpsl.training.stages import early_stopping

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
            role.setup.note_received(role.present, received)
        predicted.add(role.workers.all_gather_rows(role.party.predict(role.mine(rows), received)).cpu().numpy())
        if part + 1 < len(parts):
            question.answer_all()
    epoch = role.schedule.epoch_of(role.done - 1)
    _keep_epoch(role)
    if role.workers.is_first:
        found = predicted.finish()
        keep_predictions(role, epoch, found[:, 0] if classes == 2 else found)
    role.checkpoint()
    role.verdict = early_stopping.verdict(role)
    if question is not None:
        question.answer_all(Message(numbers=early_stopping.as_numbers(role.verdict)))
    early_stopping.apply_verdict(role)


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
        judging = role.schedule.among_labelled(held_out)
        found = asdict(noisy_validation(noisy.mechanism, noisy.draws, validation, judging))
    role.run.write_metrics([*role.run.metrics(), {"epoch": epoch, "step": role.done, **facts, **found}])
    role.observer.event("epoch", epoch=epoch, **found)
    role.after_epoch()


def feature(run: FeatureRun) -> None:
    """Send the embeddings of held-out and test records; the answer to the last part is the verdict."""
    answers = None
    for part, of_roles in enumerate(zip(*(role.schedule.test_parts() for role in run.roles), strict=True)):
        embeddings = [role.party.embed(role.mine(rows)) for role, rows in zip(run.roles, of_roles, strict=True)]
        if part == 0:
            for role, sent in zip(run.roles, embeddings, strict=True):
                role.setup.note_sent(role.name, sent)
        answers = run.send(EVALUATE, part, embeddings)
    found = answers() if answers is not None else {}
    for role in run.roles:
        _keep_epoch(role)
        role.observer.event("epoch", epoch=role.schedule.epoch_of(role.done - 1))
        early_stopping.hear(role, found.get(role.name, Message()))


def _keep_epoch(role: Role) -> None:
    """Keep what predicts after this epoch, where an ensemble of epochs needs it."""
    if role.setup.search is not None:
        epoch = role.schedule.epoch_of(role.done - 1)
        role.keep_what_predicts(epoch_folder(role.folder, epoch))
        role.run.keep_versions(role.name, epoch)
