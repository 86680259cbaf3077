"""After the last step, if the job has a statistic: a private head from one noisy sum over labels.

Feature parties send what they have of the statistic's records, then of the held-out and test records, which are
predicted. Nothing comes back. The label party maps each record to a vector φ, releases `T = Σ_i y_i φ_i` once, with
noise, and fits the head; from the release on all is post-processing of it. φ is made of what others send, so whatever
it is, the vault bounds its norm in integers: a feature party that chooses φ learns no more than ε and δ allow, and here
it is told nothing at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from tpsl.data.features import Features, Inputs, table_features
from tpsl.data.order import Rows
from tpsl.data.out_of_core import RowStack, taken
from tpsl.files import write_atomically
from tpsl.heads.codes import LARGEST, CodeBook
from tpsl.heads.expansion import InputColumns
from tpsl.heads.feature_map import FeatureMap, Purpose, blocks
from tpsl.heads.second_map import second_map
from tpsl.heads.statistic_fit import FirstHead, StatisticHead, fit_head
from tpsl.mechanisms import DEFAULT_BOUND
from tpsl.net.asking import Due, Script
from tpsl.net.failures import BadMessage
from tpsl.training.releases import statistic_plan
from tpsl.training.role import FeatureRun, LabelRole, Role
from tpsl.training.schedule import Schedule, in_parts
from tpsl.training.stages.collect import HeadShare, keep_untrained, own_inputs, untrained_half
from tpsl.training.stages.evaluate import keep_predictions
from tpsl.training.statistic_config import MOST_CODES
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
    records = _Records(role)
    for part, rows in enumerate(statistic_parts(role.schedule)):
        widths = {name: _accepted_widths(role, name, records.widths) for name in role.present}
        question = yield Due(STATISTIC, role.done, part, rows=len(rows), widths=widths)
        received = question.tensors()
        _check_codes(role, received)
        records.add(part, role.mine(rows), received)
        question.answer_all()
    records.keep_untrained()
    if role.result is None and role.workers.is_first:
        learn_head(role, records)


def feature(run: FeatureRun) -> None:
    """Send what the label party's head reads of the statistic's, the held-out and the test records."""
    if run.job.statistic is None:
        return
    answers: list[Callable[[], object]] = []
    shares = [HeadShare(role) for role in run.roles]
    codes = [CodedFields(role, role.side.features) if run.job.statistic.share_codes else None for role in run.roles]
    for part, of_roles in enumerate(zip(*(statistic_parts(role.schedule) for role in run.roles), strict=True)):
        found = []
        for role, share, coded, all_rows in zip(run.roles, shares, codes, of_roles, strict=True):
            rows = role.mine(all_rows)
            embeddings = share.embed(rows)
            if coded is not None:
                embeddings = torch.cat([coded.embed(rows), embeddings.cpu()], dim=1)
            if part == 0:
                role.setup.note_sent(role.name, embeddings)
            found.append(embeddings)
        answers.append(run.send(STATISTIC, part, found))
    for answer in answers:
        answer()


def statistic_parts(schedule: Schedule) -> list[Rows]:
    """Return the rows of the statistic's records and then of the held-out and test records, in parts of bounded size.

    No part has rows of both.
    """
    return in_parts(taken(schedule.train, schedule.statistic)) + schedule.test_parts()


class CodedFields:
    """The codes of a party's own fields; what was learned for them is kept in its folder of the run.

    Of several workers the first learns it, and all make this together.
    """

    def __init__(self, role: Role, features: Features | Inputs) -> None:
        self._features, path = table_features(features, "statistic.share_codes"), role.folder / CODES
        if len(self._features.categorical_fields) + len(self._features.numeric_fields) > MOST_CODES:
            raise ValueError(f"statistic.share_codes is for at most {MOST_CODES:,} fields of a party")
        if role.workers.is_first and not path.exists():
            write_atomically(path, save(CodeBook.learn(self._features, role.schedule.train).state_dict()))
        role.workers.barrier()
        self._book = CodeBook.of(load_file(path))

    def embed(self, rows: Rows) -> Tensor:
        """Return the codes of these rows."""
        return self._book.embed(self._features, rows)


def _accepted_widths(role: LabelRole, name: str, announced: dict[str, int]) -> int | range:
    """Return how wide a party's share may be: as the job says; with codes as the first part was, within limits."""
    least = role.job.head_width(name)
    most = least + (MOST_CODES if role.job.statistic is not None and role.job.statistic.share_codes else 0)
    return announced.get(name, range(least, most + 1))


def _check_codes(role: LabelRole, received: Sequence[Tensor]) -> None:
    """Raise BadMessage unless the first columns of each share are codes, as many as it has more than embeddings."""
    for name, share in zip(role.present, received, strict=True):
        codes = share[:, : share.shape[1] - role.job.head_width(name)]
        if not bool((((codes == codes.round()) | (codes < 1)) & (codes >= 0) & (codes <= LARGEST)).all()):
            raise BadMessage(f"step {role.done}: the statistic's codes from {name} are no codes")


class _Records:
    """What the label party has of the statistic's records, and of those that are predicted."""

    def __init__(self, role: LabelRole) -> None:
        self._role, self.widths = role, dict[str, int]()
        self._keeps, own = role.result is None, role.records.features
        self._untrained = untrained_half(role) if self._keeps else None
        self._codes = CodedFields(role, own) if self._keeps and isinstance(own, Features) else None
        self._left_of_statistic = len(role.schedule.statistic)
        self._stacks: list[RowStack] = []
        self.code_columns: list[int] = []
        self.columns = InputColumns(np.arange(0), np.arange(0))

    def add(self, part: int, rows: Rows, received: list[Tensor]) -> None:
        """Take in this worker's rows of the next part; the first worker keeps those of all."""
        workers = self._role.workers
        if part == 0:
            self._role.setup.note_received(self._role.present, received)
            self.widths = {name: share.shape[1] for name, share in zip(self._role.present, received, strict=True)}
        if not self._keeps:
            return
        codes = [] if self._codes is None else [self._codes.embed(rows)]
        inputs = torch.cat(
            [*(share.cpu() for share in received), *codes, *own_inputs(self._role, rows, received, self._untrained)],
            dim=1,
        )
        inputs = workers.all_gather_rows(inputs)
        if not workers.is_first:
            return
        if part == 0:
            self._begin(codes, inputs.shape[1])
        of_statistic = inputs[: self._left_of_statistic]
        self._left_of_statistic -= len(of_statistic)
        for stack, found in zip(self._stacks, (of_statistic, inputs[len(of_statistic) :]), strict=True):
            if len(found):
                stack.add(found.numpy())

    def keep_untrained(self) -> None:
        """Keep the half that embeds the label party's own features, if there is one that does not learn."""
        if self._untrained is not None:
            keep_untrained(self._role, self._untrained)

    def _begin(self, codes: list[Tensor], width: int) -> None:
        """Note which columns are codes: the first ones of each share, and all of the label party's own."""
        self._stacks = [RowStack(np.float32, width) for _ in range(2)]
        places, begin = [np.arange(0)], 0
        for name, share in self.widths.items():
            self.code_columns.append(share - self._role.job.head_width(name))
            places.append(begin + np.arange(self.code_columns[-1]))
            begin += share
        own = codes[0].shape[1] if codes else 0
        places.append(begin + np.arange(own))
        self.code_columns.append(own)
        found = np.concatenate(places)
        self.columns = InputColumns(np.setdiff1d(np.arange(width), found), found)

    def finish(self) -> tuple[Floats, Floats]:
        """Return the inputs of the statistic's records, and of those that are predicted."""
        of_statistic, predicted = (stack.finish() for stack in self._stacks)
        return of_statistic, predicted


def learn_head(role: LabelRole, records: _Records) -> None:
    """Release the statistic, fit the head on it and keep both the head and what it predicts."""
    inputs, predicted = records.finish()
    assert role.job.statistic is not None
    purpose = _purpose(role)
    head = _fitted(role, FeatureMap.learn(inputs, records.columns, purpose, role.setup.device), inputs)
    if role.job.statistic.releases == 2:
        first = FirstHead(head, head.logits(inputs))
        head = _fitted(role, second_map(first, inputs, purpose), inputs, first)
    state = {name: tensor.cpu() for name, tensor in head.state_dict().items()}
    write_atomically(role.folder / STATISTIC_HEAD, save({**state, CODE_COLUMNS: torch.tensor(records.code_columns)}))
    epoch = role.schedule.epoch_of(role.done - 1) + 1 if role.done else 1
    keep_predictions(role, epoch, _predicted(head, predicted), head="statistic")


def _fitted(role: LabelRole, feature_map: FeatureMap, inputs: Floats, first: FirstHead | None = None) -> StatisticHead:
    """Release the statistic of this map and return the head fitted on it, on top of the first one if there is one."""
    assert isinstance(role.vault, RunVault)  # a job whose labels are handed over has no statistic
    phi = RowStack(np.int32, feature_map.width)
    for block in feature_map.integers(inputs, DEFAULT_BOUND):
        phi.add(block)
    integers = phi.finish()
    statistic = role.vault.statistic(feature_map.width, blocks(integers))
    head, report = fit_head(statistic, feature_map, integers, first)
    role.setup.watching.notice(str(report))
    role.observer.event("statistic", **asdict(report), reliable=report.reliable)
    return head


def _purpose(role: LabelRole) -> Purpose:
    """Return what the map is for, as the job says it."""
    assert role.job.statistic is not None
    plan = statistic_plan(role.job, role.records.classes)
    return Purpose(
        noise=plan.noise.deviation / plan.bound,
        norm=plan.noise.norm,
        classes=role.records.classes,
        random_features=role.job.statistic.random_features,
        seed=role.job.training.seed,
    )


def _predicted(head: StatisticHead, inputs: Floats) -> Floats:
    device = head.weights.device
    return np.concatenate(
        [head.probabilities(torch.from_numpy(block).to(device)).cpu().numpy() for block in blocks(inputs)]
    )
