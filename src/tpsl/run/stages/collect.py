"""After the last step: embeddings of all records for a local head, and before that a statistic, if the job has them.

**The local head.** The label party collects embeddings of the training and test records. Nothing comes back. What it
learns from them with true labels stays there (`tpsl.run.after_training`).

**The statistic**: a private head from one noisy sum over labels. Feature parties send what they have of the statistic's
records, then of the held-out and test records, which are predicted. Nothing comes back. The label party maps each
record to a vector φ, releases `T = Σ_i y_i φ_i` once, with noise, and fits the head; from the release on all is
post-processing of it. φ is made of what others send, so whatever it is, the vault bounds its norm in integers: a
feature party that chooses φ learns no more than ε and δ allow, and here it is told nothing at all.

Where the halves do not learn nothing else is evaluated, and the first part is what both sides note as the version of
the half that sent it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from tpsl.data.features import Features, Inputs, table_features
from tpsl.data.order import Rows
from tpsl.data.out_of_core import RowStack, taken
from tpsl.files import naming_what_does_not_fit, open_private, write_atomically
from tpsl.heads.feature_map import LARGEST_CODE, CodeBook, Purpose
from tpsl.heads.statistic_fit import FitReport, fit_statistic
from tpsl.net.asking import Due, Script
from tpsl.net.failures import BadMessage
from tpsl.run.build import build_feature_party, load_pretrained
from tpsl.run.checkpoint import write_weights
from tpsl.run.job_sections import MOST_CODES
from tpsl.run.releases import statistic_plan
from tpsl.run.role import Embed, FeatureRole, FeatureRun, LabelRole, Role
from tpsl.run.schedule import Schedule, in_parts
from tpsl.run.stages.evaluate import keep_predictions
from tpsl.run.stages.prepare import pretrained
from tpsl.run.vaults import RunVault

HEAD = "Head"
"""Feature party → label party: embeddings of one part of the training and test records, for the local head."""
STATISTIC = "Statistic"
"""Feature party → label party: one part of the statistic's records, then of the held-out and test records: codes of
fields if the job says so, the frozen pre-trained embedding if the half went on learning, and the cut."""
CODES, STATISTIC_HEAD = "codes.safetensors", "statistic_head.safetensors"
CODE_COLUMNS = "code_columns"
"""In the file of the head: how many codes each party gives, feature parties first."""


def label(role: LabelRole) -> Script:
    """Receive the embeddings of the statistic's records and fit the head; then those of all for the local head."""
    if role.job.statistic is not None:
        yield from _learn_from_statistic(role, role.job.statistic.share_codes)
    if role.job.training.head == "local":
        yield from _collect_for_local_head(role)


def feature(run: FeatureRun) -> None:
    """Send what the heads of the label party read; nothing comes back."""
    if (section := run.job.statistic) is not None:
        codes = [[embed_codes(role, role.side.features)] if section.share_codes else [] for role in run.roles]
        embeds = [_embed_for_head(role, *before) for role, before in zip(run.roles, codes, strict=True)]
        run.send_parts(STATISTIC, statistic_parts, embeds, versions=True)
    if run.job.training.head == "local":
        embeds = [_embed_for_head(role) for role in run.roles]
        run.send_parts(HEAD, Schedule.head_parts, embeds, versions=not run.job.trains)


def _embed_for_head(role: FeatureRole, *before: Embed) -> Embed:
    """Return what a feature party sends for a head: its cut, after the frozen pre-trained embedding if there is one."""
    parts = [*before, role.party.embed]
    if role.job.sends_frozen:
        plain = role.job.without_wide_part()
        frozen = build_feature_party(plain, role.name, role.side.features, place=role.setup.place)
        load_pretrained(frozen.bottom, pretrained(role))
        parts.insert(-1, frozen.embed)
    return lambda rows: torch.cat([embed(rows).cpu() for embed in parts], dim=1)


class _OwnInputs:
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
            write_weights(self._role.folder / "bottom.safetensors", self._untrained.bottom, self._role.workers)


# ---- the local head


def _collect_for_local_head(role: LabelRole) -> Script:
    """Receive the embeddings of all records; they go into the folder that is not private."""
    widths, own = role.widths(role.job.head_width), _OwnInputs(role)
    with _inputs_of_head(role) as write:
        for part, rows in enumerate(role.schedule.head_parts()):
            question = yield Due(HEAD, role.done, part, rows=len(rows), widths=widths)
            received = question.tensors()
            if part == 0 and not role.job.trains:
                role.note_versions(received)
            if role.result is None:
                write(own.after(role.mine(rows), received).numpy().tobytes())
            question.answer_all()
    own.keep_half()


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


# ---- the statistic


def _learn_from_statistic(role: LabelRole, shares_codes: bool) -> Script:
    """Release the statistic, fit the head, and keep what it predicts; a finished run only receives again."""
    features, is_kept = role.records.features, role.result is None
    codes = [embed_codes(role, features)] if is_kept and isinstance(features, Features) else []
    own, collected = _OwnInputs(role, *codes), list[RowStack]()
    most = MOST_CODES if shares_codes else 0
    widths: dict[str, int | range] = {
        name: range(width, width + most + 1) for name, width in role.widths(role.job.head_width).items()
    }
    for part, rows in enumerate(statistic_parts(role.schedule)):
        question = yield Due(STATISTIC, role.done, part, rows=len(rows), widths=widths)
        received = question.tensors()
        if part == 0:
            role.note_versions(received)
            widths = {name: share.shape[1] for name, share in zip(role.present, received, strict=True)}
        for name, share in zip(role.present, received, strict=True):
            sent = share[:, : share.shape[1] - role.job.head_width(name)]
            if not bool((((sent == sent.round()) | (sent < 1)) & (sent >= 0) & (sent <= LARGEST_CODE)).all()):
                raise BadMessage(f"step {role.done}: the statistic's codes from {name} are no codes")
        if is_kept:
            inputs = own.after(role.mine(rows), received)
            collected = collected or [RowStack(np.float32, inputs.shape[1])]
            if role.workers.is_first:
                collected[0].add(inputs.numpy())
        question.answer_all()
    own.keep_half()
    if is_kept and len(role.schedule.held_out):
        role.noisy()  # which all workers ask for together
    if is_kept and role.workers.is_first:
        _learn_head(role, collected[0].finish(), [share.shape[1] for share in received])


def statistic_parts(schedule: Schedule) -> list[Rows]:
    """Return the rows of the statistic's records and then of the held-out and test records, in parts of bounded size.

    No part has rows of both.
    """
    return in_parts(taken(schedule.train, schedule.statistic)) + schedule.test_parts()


def embed_codes(role: Role, inputs: Features | Inputs) -> Embed:
    """Return what gives the codes of a party's own fields; what was learned for them is kept in its folder of the run.

    Of several workers the first learns it, and all call this together.
    """
    features, path = table_features(inputs, "statistic.share_codes"), role.folder / CODES
    if len(features.categorical_fields) + len(features.numeric_fields) > MOST_CODES:
        raise ValueError(f"statistic.share_codes is for at most {MOST_CODES:,} fields of a party")
    if role.workers.is_first and not path.exists():
        write_atomically(path, save(CodeBook.learn(features, role.schedule.train).state_dict()))
    role.workers.barrier()
    return partial(CodeBook(load_file(path)).embed, features)


def _learn_head(role: LabelRole, inputs: npt.NDArray[np.float32], shares: list[int]) -> None:
    """Release the statistic, fit the head on it and keep both the head and what it predicts.

    `inputs` are those of the statistic's records and then of the predicted ones: the shares of the feature parties,
    which are so wide, and then the label party's own. Each begins with codes.
    """
    job, features, classes = role.job, role.records.features, role.records.classes
    assert job.statistic is not None and isinstance(role.vault, RunVault)  # handed-over labels have no statistic
    codes = [width - job.head_width(name) for name, width in zip(role.present, shares, strict=True)]
    own = (*features.categorical_fields, *features.numeric_fields) if isinstance(features, Features) else ()
    codes.append(len(own))
    begins = np.cumsum([0, *shares])
    columns = np.concatenate([begin + np.arange(count) for begin, count in zip(begins, codes, strict=True)])
    records = inputs[: len(role.schedule.statistic)]
    plan = statistic_plan(job, classes)
    noise = plan.noise.deviation / plan.bound
    purpose = Purpose(noise, plan.noise.norm, classes, seed=job.training.seed)

    def tell(report: FitReport) -> None:
        role.setup.watching.notice(str(report))
        role.observer.event("statistic", **asdict(report), reliable=report.reliable)

    release, releases = role.vault.statistic, job.statistic.releases
    head = fit_statistic(records, columns, purpose, release, tell, releases, role.setup.device)
    state = {name: tensor.cpu() for name, tensor in head.state_dict().items()}
    write_atomically(role.folder / STATISTIC_HEAD, save({**state, CODE_COLUMNS: torch.tensor(codes)}))
    keep_predictions(role, role.epochs + 1, head.predict(inputs[len(records) :]), head="statistic")
