"""After the last step, if the job has a local head: the label party collects embeddings of all records for it.

Nothing comes back. Where the halves do not learn nothing else is evaluated, and the first part is what both sides note
as the version of the half that sent it. What the label party learns from the embeddings with true labels stays there
(`tpsl.training.after_training`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from tpsl.data.order import Rows
from tpsl.files import naming_what_does_not_fit, open_private
from tpsl.net.asking import Due, Script
from tpsl.split.feature_party import FeatureParty
from tpsl.training.build import build_feature_party, load_pretrained
from tpsl.training.checkpoint import write_weights
from tpsl.training.role import FeatureRole, FeatureRun, LabelRole
from tpsl.training.stages.prepare import pretrained

HEAD = "Head"
"""Feature party → label party: embeddings of one part of the training and test records, for the local head."""


def label(role: LabelRole) -> Script:
    """Receive the embeddings of all records; they go into the folder that is not private."""
    if role.job.training.head != "local":
        return
    is_kept = role.result is None
    untrained = untrained_half(role) if is_kept else None
    widths = role.widths(role.job.head_width)
    with _inputs_of_head(role, is_kept) as write:
        for part, all_rows in enumerate(role.schedule.head_parts()):
            question = yield Due(HEAD, role.done, part, rows=len(all_rows), widths=widths)
            received, rows = question.tensors(), role.mine(all_rows)
            if part == 0 and not role.job.trains:
                role.setup.note_received(role.present, received)
            if is_kept:
                shares = [share.cpu() for share in received]
                inputs = torch.cat([*shares, *own_inputs(role, rows, received, untrained)], dim=1)
                write(role.workers.all_gather_rows(inputs).numpy().tobytes())
            question.answer_all()
    if untrained is not None:
        keep_untrained(role, untrained)


@contextmanager
def _inputs_of_head(role: LabelRole, are_kept: bool) -> Iterator[Callable[[bytes], object]]:
    """Give what writes the inputs of the local head, at the first worker; the others write nothing."""
    if not role.workers.is_first:
        yield len
        return
    folder = role.run.not_private()
    draft, target = folder / ".inputs.new", folder / "inputs.f32"
    with naming_what_does_not_fit(target), open_private(draft, "wb") as file:
        yield file.write
    if are_kept:
        draft.replace(target)
    else:
        draft.unlink()


def feature(run: FeatureRun) -> None:
    """Send embeddings of all records, after the frozen pre-trained ones if there are any."""
    if run.job.training.head != "local":
        return
    shares = [HeadShare(role) for role in run.roles]
    answers: list[Callable[[], object]] = []
    for part, of_roles in enumerate(zip(*(role.schedule.head_parts() for role in run.roles), strict=True)):
        found = [share.embed(role.mine(rows)) for share, role, rows in zip(shares, run.roles, of_roles, strict=True)]
        if part == 0 and not run.job.trains:
            for role, embeddings in zip(run.roles, found, strict=True):
                role.setup.note_sent(role.name, embeddings)
        answers.append(run.send(HEAD, part, found))
    for answer in answers:
        answer()


class HeadShare:
    """What a feature party sends for a head: its cut, after the frozen pre-trained embedding if there is one."""

    def __init__(self, role: FeatureRole) -> None:
        self._trained, self._frozen = role.party, None
        if role.job.sends_frozen:
            plain = role.job.without_wide_part()
            self._frozen = build_feature_party(plain, role.name, role.side.features, place=role.setup.place)
            load_pretrained(self._frozen.bottom, pretrained(role))

    def embed(self, rows: Rows) -> Tensor:
        """Return the share of these rows."""
        cut = self._trained.embed(rows)
        return cut if self._frozen is None else torch.cat([self._frozen.embed(rows), cut], dim=1)


def untrained_half(role: LabelRole) -> FeatureParty | None:
    """Return what embeds the label party's own features where its half of the network does not learn."""
    if role.job.trains or role.records.features is None:
        return None
    return build_feature_party(role.job, role.name, role.records.features, role.own, role.setup.place)


def keep_untrained(role: LabelRole, half: FeatureParty) -> None:
    """Keep the half that embeds the label party's own features and does not learn, for new records."""
    write_weights(role.folder / "bottom.safetensors", half.bottom, role.setup.workers)


def own_inputs(role: LabelRole, rows: Rows, received: list[Tensor], untrained: FeatureParty | None) -> list[Tensor]:
    """Return what the label party adds: its logits, and its own features as its half embeds them.

    The end of what was received from each feature party is its cut.
    """
    if role.job.trains:
        cuts = [share[:, -role.job.model.cut_width(name) :] for name, share in zip(role.present, received, strict=True)]
        return [role.party.head_inputs(rows, cuts).cpu()]
    return [untrained.embed(rows).cpu()] if untrained is not None else []
