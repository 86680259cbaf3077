"""After the last step, if the job has a statistic: a private head from one noisy sum over labels.

Feature parties send what they have of the statistic's records, then of the held-out and test records, which are
predicted. Nothing comes back. The label party maps each record to a vector φ, releases `T = Σ_i y_i φ_i` once, with
noise, and fits the head; from the release on all is post-processing of it. φ is made of what others send, so whatever
it is, the vault bounds its norm in integers: a feature party that chooses φ learns no more than ε and δ allow, and here
it is told nothing at all.
"""

from __future__ import annotations

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
from tpsl.files import write_atomically
from tpsl.heads.feature_map import LARGEST_CODE, CodeBook, Purpose
from tpsl.heads.statistic_fit import FitReport, fit_statistic
from tpsl.net.asking import Due, Script
from tpsl.net.failures import BadMessage
from tpsl.training.job_sections import MOST_CODES
from tpsl.training.releases import statistic_plan
from tpsl.training.role import FeatureRun, LabelRole, Role
from tpsl.training.schedule import Schedule, in_parts
from tpsl.training.stages.collect import Embed, OwnInputs, embed_for_head, send_embeddings
from tpsl.training.stages.evaluate import keep_predictions
from tpsl.training.vaults import RunVault

Floats = npt.NDArray[np.float32]

STATISTIC = "Statistic"
"""Feature party → label party: one part of the statistic's records, then of the held-out and test records: codes of
fields if the job says so, the frozen pre-trained embedding if the half went on learning, and the cut."""
CODES, STATISTIC_HEAD = "codes.safetensors", "statistic_head.safetensors"
CODE_COLUMNS = "code_columns"
"""In the file of the head: how many codes each party gives, feature parties first."""


def label(role: LabelRole) -> Script:
    """Release the statistic, fit the head, and keep what it predicts; a finished run only receives again."""
    if role.job.statistic is None:
        return
    features, is_kept = role.records.features, role.result is None
    codes = [embed_codes(role, features)] if is_kept and isinstance(features, Features) else []
    own, collected = OwnInputs(role, *codes), list[RowStack]()
    most = MOST_CODES if role.job.statistic.share_codes else 0
    widths: dict[str, int | range] = {
        name: range(width, width + most + 1) for name, width in role.widths(role.job.head_width).items()
    }
    for part, rows in enumerate(statistic_parts(role.schedule)):
        question = yield Due(STATISTIC, role.done, part, rows=len(rows), widths=widths)
        received = question.tensors()
        if part == 0:
            role.setup.note_received(role.present, received)
            widths = {name: share.shape[1] for name, share in zip(role.present, received, strict=True)}
        _check_codes(role, received)
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
        learn_head(role, collected[0].finish(), [share.shape[1] for share in received])


def feature(run: FeatureRun) -> None:
    """Send what the label party's head reads of the statistic's, the held-out and the test records."""
    if run.job.statistic is not None:
        shows = run.job.statistic.share_codes
        codes = [[embed_codes(role, role.side.features)] if shows else [] for role in run.roles]
        embeds = [embed_for_head(role, *before) for role, before in zip(run.roles, codes, strict=True)]
        send_embeddings(run, STATISTIC, statistic_parts, embeds, versions=True)


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


def _check_codes(role: LabelRole, received: list[Tensor]) -> None:
    """Raise BadMessage unless the first columns of each share are codes, as many as it has more than embeddings."""
    for name, share in zip(role.present, received, strict=True):
        codes = share[:, : share.shape[1] - role.job.head_width(name)]
        if not bool((((codes == codes.round()) | (codes < 1)) & (codes >= 0) & (codes <= LARGEST_CODE)).all()):
            raise BadMessage(f"step {role.done}: the statistic's codes from {name} are no codes")


def learn_head(role: LabelRole, inputs: Floats, shares: list[int]) -> None:
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
    purpose = Purpose(noise, plan.noise.norm, classes, job.statistic.random_features, job.training.seed)

    def tell(report: FitReport) -> None:
        role.setup.watching.notice(str(report))
        role.observer.event("statistic", **asdict(report), reliable=report.reliable)

    release, releases = role.vault.statistic, job.statistic.releases
    head = fit_statistic(records, columns, purpose, release, tell, releases, role.setup.device)
    state = {name: tensor.cpu() for name, tensor in head.state_dict().items()}
    write_atomically(role.folder / STATISTIC_HEAD, save({**state, CODE_COLUMNS: torch.tensor(codes)}))
    epoch = role.schedule.epoch_of(role.done - 1) + 1 if role.done else 1
    keep_predictions(role, epoch, head.predict(inputs[len(records) :]), head="statistic")
