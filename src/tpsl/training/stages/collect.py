"""After the last step, if the job has a local head: the label party collects embeddings of all records for it.

Nothing comes back. Where the halves do not learn nothing else is evaluated, and the first part is what both sides note
as the version of the half that sent it. What the label party learns from the embeddings with true labels stays there
(`tpsl.training.after_training`). A statistic (`tpsl.training.stages.statistic`) collects embeddings in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from tpsl.data.order import Rows
from tpsl.files import naming_what_does_not_fit, open_private
from tpsl.net.asking import Due, Script
from tpsl.training.build import build_feature_party, load_pretrained
from tpsl.training.checkpoint import write_weights
from tpsl.training.role import FeatureRole, FeatureRun, LabelRole
from tpsl.training.schedule import Schedule
from tpsl.training.stages.prepare import pretrained

HEAD = "Head"
"""Feature party → label party: embeddings of one part of the training and test records, for the local head."""

Embed = Callable[[Rows], Tensor]


def label(role: LabelRole) -> Script:
    """Receive the embeddings of all records; they go into the folder that is not private."""
    if role.job.training.head != "local":
        return
    widths, own = role.widths(role.job.head_width), OwnInputs(role)
    with _inputs_of_head(role) as write:
        for part, rows in enumerate(role.schedule.head_parts()):
            question = yield Due(HEAD, role.done, part, rows=len(rows), widths=widths)
            received = question.tensors()
            if part == 0 and not role.job.trains:
                role.setup.note_received(role.present, received)
            if role.result is None:
                write(own.after(role.mine(rows), received).numpy().tobytes())
            question.answer_all()
    own.keep_half()


def feature(run: FeatureRun) -> None:
    """Send embeddings of all records, after the frozen pre-trained ones if there are any."""
    if run.job.training.head == "local":
        embeds = [embed_for_head(role) for role in run.roles]
        send_embeddings(run, HEAD, Schedule.head_parts, embeds, versions=not run.job.trains)


@contextmanager
def _inputs_of_head(role: LabelRole) -> Iterator[Callable[[bytes], object]]:
    """Give what writes the inputs of the local head, at the first worker of a run that is not finished."""
    if role.result is not None or not role.workers.is_first:
        yield len
        return
    folder = role.run.not_private()
    draft, target = folder / ".inputs.new", folder / "inputs.f32"
    with naming_what_does_not_fit(target), open_private(draft, "wb") as file:
        yield file.write
    draft.replace(target)


def send_embeddings(
    run: FeatureRun, method: str, parts: Callable[[Schedule], list[Rows]], embeds: list[Embed], *, versions: bool
) -> None:
    """Send what each party has of some records, part after part; note the `versions` of the halves that sent them."""
    answers = list[Callable[[], object]]()
    for part, of_roles in enumerate(zip(*(parts(role.schedule) for role in run.roles), strict=True)):
        found = [embed(role.mine(rows)) for embed, role, rows in zip(embeds, run.roles, of_roles, strict=True)]
        if part == 0 and versions:
            for role, sent in zip(run.roles, found, strict=True):
                role.setup.note_sent(role.name, sent)
        answers.append(run.send(method, part, found))
    for answer in answers:
        answer()


def embed_for_head(role: FeatureRole, *before: Embed) -> Embed:
    """Return what a feature party sends for a head: its cut, after the frozen pre-trained embedding if there is one."""
    parts = [*before, role.party.embed]
    if role.job.sends_frozen:
        plain = role.job.without_wide_part()
        frozen = build_feature_party(plain, role.name, role.side.features, place=role.setup.place)
        load_pretrained(frozen.bottom, pretrained(role))
        parts.insert(-1, frozen.embed)
    return lambda rows: torch.cat([embed(rows).cpu() for embed in parts], dim=1)


class OwnInputs:
    """What a head reads beside the shares of the feature parties: the label party's own.

    They are the network's log-odds, if one was trained, and its own features as its half embeds them.
    """

    def __init__(self, role: LabelRole, *before: Embed) -> None:
        self._role, self._before = role, before
        self._untrained = None
        """What embeds the label party's own features where its half of the network does not learn."""
        if role.result is None and not role.job.trains and role.records.features is not None:
            self._untrained = build_feature_party(
                role.job, role.name, role.records.features, role.own, role.setup.place
            )

    def after(self, rows: Rows, received: list[Tensor]) -> Tensor:
        """Return these inputs after what was received of the same rows, at the end of which is each party's cut.

        Each worker gives its own rows; all get those of all.
        """
        role = self._role
        found = [*received, *(embed(rows) for embed in self._before)]
        if role.job.trains:
            widths = role.widths(role.job.model.cut_width).values()
            cuts = [share[:, -width:] for share, width in zip(received, widths, strict=True)]
            found.append(role.party.head_inputs(rows, cuts))
        elif self._untrained is not None:
            found.append(self._untrained.embed(rows))
        return role.workers.all_gather_rows(torch.cat([part.cpu() for part in found], dim=1))

    def keep_half(self) -> None:
        """Keep the half that does not learn, for new records."""
        if self._untrained is not None:
            write_weights(self._role.folder / "bottom.safetensors", self._untrained.bottom, self._role.setup.workers)
