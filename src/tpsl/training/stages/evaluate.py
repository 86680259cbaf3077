"""After each epoch: the network predicts held-out and test records, and noisy labels judge it by the held-out ones.

The first part of the embeddings is what each side notes as the version of the half that sent it. True labels have no
part in all this: the predictions are kept, and `tpsl.training.after_training` compares those of test
records with true labels when nobody can see how long that takes.
"""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import numpy.typing as npt

from tpsl.data.out_of_core import COLUMNS, RowStack
from tpsl.metrics import blocks
from tpsl.training.role import FeatureRole, LabelRole, Role
from tpsl.training.run_folder import epoch_folder
from tpsl.training.validation import noisy_validation
from tpsl.training.versions import note_received, note_sent
from tpsl.transport.checks import NOT_FINITE, BadMessage

TEST_EMBEDDINGS = "test embeddings"
"""Feature party → label party: embeddings of one part of the held-out and test records after `step` steps."""


async def label(role: LabelRole) -> None:
    """Keep what the network predicts, and what noisy labels say of it."""
    classes = role.records.classes
    predicted = RowStack(np.float32, 1 if classes == 2 else classes, COLUMNS)
    for part, rows in role.share(role.schedule.test_parts()):
        received = await role.tensors(TEST_EMBEDDINGS, role.done, part, len(rows), role.job.model.cut_width)
        if part == 0:
            note_received(role, received)
        # The workers' parts of one round follow each other.
        predicted.add(role.workers.all_gather_rows(role.party.predict(rows, received)).cpu().numpy())
    epoch = role.schedule.epoch_of(role.done - 1)
    _keep_epoch(role)
    if role.workers.is_first:
        found = predicted.finish()
        keep_predictions(role, epoch, found[:, 0] if classes == 2 else found)


def keep_predictions(role: LabelRole, epoch: int, probabilities: npt.NDArray[np.float32], **facts: str) -> None:
    """Keep what was predicted for held-out and test records, and what noisy labels say of it.

    `facts` go beside it into the metrics.
    """
    if not all(np.isfinite(probabilities[block]).all() for block in blocks(len(probabilities))):
        raise BadMessage(f"after step {role.done:,}: the predictions {NOT_FINITE}")
    judges = role.schedule.held_out
    validation, test = probabilities[: len(judges)], probabilities[len(judges) :]
    role.run.write_predictions(epoch, validation, test)
    found = {}
    if len(judges):
        noisy = role.noisy()
        judging = role.schedule.among_labelled(judges)
        found = asdict(noisy_validation(noisy.mechanism, noisy.draws, validation, judging))
    role.run.write_metrics([*role.run.metrics(), {"epoch": epoch, "step": role.done, **facts, **found}])
    role.observer.event("epoch", epoch=epoch, **found)
    role.after_epoch()


async def feature(role: FeatureRole) -> None:
    """Send the embeddings of held-out and test records; no gradient comes back."""
    for part, rows in role.share(role.schedule.test_parts()):
        embeddings = role.party.embed(rows)
        if part == 0:
            note_sent(role, embeddings)
        await role.send_part(TEST_EMBEDDINGS, role.done, part, embeddings)
    _keep_epoch(role)
    role.observer.event("epoch", epoch=role.schedule.epoch_of(role.done - 1))


def _keep_epoch(role: Role) -> None:
    """Keep what predicts after this epoch, where a committee of epochs needs it."""
    if role.setup.search is not None:
        epoch = role.schedule.epoch_of(role.done - 1)
        role.keep_what_predicts(epoch_folder(role.folder, epoch))
        role.run.keep_versions(role.name, epoch)
