"""The strongest attacker on a run's statistic: it has the noisy sums, all vectors and every label but the one it wants.

Feature parties are told nothing of a statistic; this attacker is granted what the label party has. With every other
label known, the sums without `y_i q_i` can be computed, and what is left is `y_i q_i` and the noise, of which the
likelihood ratio says all there is to say about y_i. It is run against many records in turn, and each time only that
record's label is unknown. So its guesses are hard ones: a ranking of records would compare what the attacker on one
record knows with the label that the attacker on another is after.

All guesses share the noise of one release. How far their AUC lies from its mean by chance is found by drawing the noise
anew, for this evaluation only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from tpsl.attacks.scoring import AttackResult, Ceiling, Evaluation, Scores
from tpsl.data.features import Features
from tpsl.data.sides import LabelRecords
from tpsl.data.source import Inputs
from tpsl.mechanisms import DiscreteGaussian, clip_rows, seeded_words
from tpsl.mechanisms.quantise import Norm
from tpsl.mechanisms.statistic_auc import statistic_ceiling
from tpsl.prediction.halves import TrainedHalves
from tpsl.prediction.one_process import load_halves
from tpsl.prediction.statistic_head import TrainedStatisticHead
from tpsl.training.releases import statistic_ids, statistic_plan
from tpsl.training.run_folder import RunFolder
from tpsl.training.schedule import Schedule, in_parts
from tpsl.training.transcript import TranscriptStep
from tpsl.transport.peers import LABEL_PARTY
from tpsl.vault import NoisyStatistic, Vault

Rows = npt.NDArray[np.int64]
Sums = npt.NDArray[np.int64]

_TARGETS, _NUMBERS = 2048, 1 << 21
"""Records attacked, and numbers of their vectors, at most."""
_REDRAWN = 20


@dataclass(frozen=True)
class _Vectors:
    """The integer vectors q_i of a run's records, as its vault summed them."""

    halves: TrainedHalves
    head: TrainedStatisticHead
    inputs: Mapping[str, Features | Inputs]
    bound: int
    norm: Norm

    def of(self, rows: Rows) -> npt.NDArray[np.int32]:
        """Return the vectors of some rows."""
        shares = {name: bottom.embed(self.inputs[name], rows) for name, bottom in self.halves.bottoms.items()}
        vectors = self.head.head.map.integers(self.head.inputs(shares).numpy(), self.bound)
        return clip_rows(np.concatenate(list(vectors)), self.bound, self.norm)


class KnownOthers:
    """The attacker on one run; `labels` are the true labels of all rows."""

    def __init__(
        self, run: RunFolder, inputs: Mapping[str, Features | Inputs], records: LabelRecords, labels: Rows
    ) -> None:
        job, self._labels = run.job(), labels
        own = {} if records.features is None else {LABEL_PARTY: records.features}
        halves = load_halves(run.path, inputs, records.features)
        assert isinstance(halves.top, TrainedStatisticHead)  # the job has a statistic
        plan = statistic_plan(job, records.classes, halves.top.head.map.width)
        self._vectors = _Vectors(halves, halves.top, {**inputs, **own}, plan.bound, plan.noise.norm)
        self._rows = records.train[Schedule(job, records.train, records.test).statistic]
        with Vault.open(run.vault()) as vault:
            self._statistic: NoisyStatistic = vault.noisy_statistic(plan, statistic_ids(job, records))
        self._distribution = plan.noise

    @cached_property
    def targets(self) -> Rows:
        """The records that are attacked, chosen at random."""
        most = min(_TARGETS, max(1, _NUMBERS // self._statistic.plan.width), len(self._rows))
        chosen: Rows = np.random.default_rng(0).choice(self._rows, most, replace=False)
        return np.sort(chosen)

    def steps(self) -> Iterator[TranscriptStep]:
        """Yield the targets as one step of which nothing was seen but the statistic."""
        nothing = np.empty((len(self.targets), 0), np.float32)
        yield TranscriptStep(0, self.targets, nothing, nothing)

    def __call__(self, seen: TranscriptStep) -> Scores:
        """Guess the labels of the targets, each by all others: `[n]` for two classes, `[n, k]` for k."""
        return self._scores(self.noise)

    @cached_property
    def noise(self) -> Sums:
        """The noise of the release, which whoever knows all labels can compute."""
        exact = np.zeros_like(self._statistic.values)
        for rows in in_parts(self._rows):
            vectors, labels = self._vectors.of(rows), self._labels[rows]
            for place, label in enumerate(self._counted):
                exact[place] += vectors[labels == label].sum(axis=0, dtype=np.int64)
        return self._statistic.values - exact

    @property
    def _counted(self) -> list[int]:
        """The class that each of the sums counts."""
        return [1] if self._statistic.classes == 2 else list(range(self._statistic.classes))

    @cached_property
    def _of_targets(self) -> npt.NDArray[np.int64]:
        return self._vectors.of(self.targets).astype(np.int64)

    def _scores(self, added: Sums) -> Scores:
        vectors, labels = self._of_targets, self._labels[self.targets]
        evidence = np.empty((len(vectors), len(added)))
        for place, label in enumerate(self._counted):
            left = added[place] + np.where((labels == label)[:, None], vectors, 0)
            evidence[:, place] = self._distribution.log_ratio(left, vectors).sum(axis=1)
        return (evidence[:, 0] > 0).astype(np.float64) if len(added) == 1 else evidence

    @cached_property
    def closed_form(self) -> float | None:
        """The mean AUC of these guesses, `Φ(|q|/2σ)` (k classes: `Φ(|q|/√2σ)`); none is known for Laplace noise."""
        if not isinstance(self._distribution, DiscreteGaussian):
            return None
        apart = 2.0 if self._statistic.classes == 2 else 2.0**0.5
        distances = np.sqrt((self._of_targets.astype(np.float64) ** 2).sum(axis=1)) / (
            apart * self._distribution.deviation
        )
        return float(np.mean([NormalDist().cdf(distance) for distance in distances.tolist()]))

    def judged(self, result: AttackResult) -> AttackResult:
        """Return the result with its ceiling, and the interval that belongs to guesses with noise in common."""
        words, labels = seeded_words(0, "redrawn noise"), self._labels[self.targets]
        areas = []
        for _ in range(_REDRAWN):
            evaluation = Evaluation(hard=True)
            added = self._distribution.sample(self._statistic.values.size, words).reshape(self._statistic.values.shape)
            evaluation.add(self._scores(added), labels, 0)
            areas.append(evaluation.result(result.name, result.needs).auc)
        margin = NormalDist().inv_cdf(0.975) * float(np.std(areas, ddof=1))
        low, high = max(0.0, result.auc - margin), min(1.0, result.auc + margin)
        ceiling = Ceiling.proved(statistic_ceiling(self._statistic.cost))
        return replace(result, auc_low=low, auc_high=high).beside(ceiling)
