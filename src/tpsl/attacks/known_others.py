"""The strongest attacker on a run's statistic: it has the noisy sums, all vectors and every label but the one it wants.

Feature parties are told nothing of a statistic; this attacker is granted what the label party has. With every other
label known, the sums without `y_i q_i` can be computed, and what is left is `y_i q_i` and the noise, of which the
likelihood ratio says all there is to say about y_i. It is run against many records in turn, and each time only that
record's label is unknown. So its guesses are hard ones: a ranking of records would compare what the attacker on one
record knows with the label that the attacker on another is after.

A second statistic of the same records has noise of its own, and vectors that were chosen in view of the first. So given
both, the logarithms of the two ratios add up.

All guesses share the noise of the releases. How far their AUC lies from its mean by chance is found by drawing it
anew, for this evaluation only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from tpsl.attacks.auc_prediction import statistic_ceiling
from tpsl.attacks.scoring import AttackResult, Ceiling, Evaluation, Scores
from tpsl.data.features import Features, Inputs
from tpsl.data.sides import LabelRecords
from tpsl.heads.feature_map import FeatureMap
from tpsl.mechanisms import DiscreteGaussian, RandomWords, clip_rows, seeded_words
from tpsl.model.predictors import StatisticPredictor, TrainedHalves
from tpsl.model.trained import TrainedModel
from tpsl.net.messages import LABEL_PARTY
from tpsl.run.releases import statistic_ids, statistic_plan
from tpsl.run.run_folder import RunFolder
from tpsl.run.schedule import Schedule, in_parts
from tpsl.run.transcript import TranscriptStep
from tpsl.vault import StatisticPlan, Vault

Rows = npt.NDArray[np.int64]
Sums = npt.NDArray[np.int64]

_TARGETS, _NUMBERS = 2048, 1 << 21
"""Records attacked, and numbers of their vectors, at most."""
_REDRAWN = 20


@dataclass(frozen=True)
class _Records:
    """What the heads of a run read of its records."""

    halves: TrainedHalves
    head: StatisticPredictor
    inputs: Mapping[str, Features | Inputs]
    rows: Rows
    """Those whose labels left in the statistic."""

    def of(self, rows: Rows) -> npt.NDArray[np.float32]:
        """Return what is read of some rows."""
        shares = [bottom.embed(self.inputs[name], rows) for name, bottom in self.halves.bottoms.items()]
        return self.head.inputs(*shares).numpy()


@dataclass(frozen=True)
class _Summed:
    """The integer vectors q_i of one statistic, as the vault summed them."""

    feature_map: FeatureMap
    plan: StatisticPlan

    def vectors(self, inputs: npt.NDArray[np.float32]) -> npt.NDArray[np.int32]:
        """Return the vectors of records whose inputs these are."""
        found = np.concatenate(list(self.feature_map.integers(inputs, self.plan.bound)))
        return clip_rows(found, self.plan.bound, self.plan.noise.norm)


class KnownOthers:
    """The attacker on one run; `labels` are the true labels of all rows."""

    def __init__(
        self, run: RunFolder, inputs: Mapping[str, Features | Inputs], records: LabelRecords, labels: Rows
    ) -> None:
        job, self._labels, self._classes = run.job(), labels, records.classes
        own = {} if records.features is None else {LABEL_PARTY: records.features}
        halves = TrainedModel.open(run.path).halves({**inputs, **own})
        assert isinstance(halves.top, StatisticPredictor)  # the job has a statistic
        rows = records.train[Schedule(job, records.train, records.test).statistic]
        self._records = _Records(halves, halves.top, {**inputs, **own}, rows)
        maps = [head.map for head in halves.top.head.chain()]
        self._summed = [_Summed(one, statistic_plan(job, records.classes, one.width)) for one in maps]
        with Vault.open(run.vault()) as vault:
            ids = statistic_ids(job, records)
            self._released = [vault.noisy_statistics(one.plan, ids) for one in self._summed]

    @cached_property
    def targets(self) -> Rows:
        """The records that are attacked, chosen at random."""
        rows, widest = self._records.rows, max(summed.plan.width for summed in self._summed)
        most = min(_TARGETS, max(1, _NUMBERS // widest), len(rows))
        return np.sort(np.random.default_rng(0).choice(rows, most, replace=False))

    def steps(self) -> Iterator[TranscriptStep]:
        """Yield the targets as one step of which nothing was seen but the statistic."""
        nothing = np.empty((len(self.targets), 0), np.float32)
        yield TranscriptStep(0, self.targets, nothing, nothing)

    def __call__(self, seen: TranscriptStep) -> Scores:
        """Guess the labels of the targets, each by all others: `[n]` for two classes, `[n, k]` for k."""
        return self._scores(self.noises)

    @cached_property
    def noises(self) -> list[Sums]:
        """The noise of each release, which whoever knows all labels can compute.

        Another run on the same vault may have released statistics of these records under the same plan: a run's own is
        the one that its vectors leave the least of.
        """
        exact = [np.zeros(summed.plan.shape(self._classes), np.int64) for summed in self._summed]
        for rows in in_parts(self._records.rows):
            inputs, labels = self._records.of(rows), self._labels[rows]
            for summed, sums in zip(self._summed, exact, strict=True):
                vectors = summed.vectors(inputs)
                for place, label in enumerate(self._counted):
                    sums[place] += vectors[labels == label].sum(axis=0, dtype=np.int64)
        left = ([one.values - sums for one in found] for found, sums in zip(self._released, exact, strict=True))
        return [min(found, key=lambda noise: float(np.square(noise, dtype=np.float64).sum())) for found in left]

    @property
    def _counted(self) -> list[int]:
        """The class that each of the sums counts."""
        return [1] if self._classes == 2 else list(range(self._classes))

    @cached_property
    def _of_targets(self) -> list[npt.NDArray[np.int64]]:
        """The targets' vectors in each statistic."""
        inputs = self._records.of(self.targets)
        return [summed.vectors(inputs).astype(np.int64) for summed in self._summed]

    def _scores(self, added: Sequence[Sums]) -> Scores:
        labels = self._labels[self.targets]
        evidence = np.zeros((len(labels), len(self._counted)))
        for summed, vectors, noise in zip(self._summed, self._of_targets, added, strict=True):
            for place, label in enumerate(self._counted):
                left = noise[place] + np.where((labels == label)[:, None], vectors, 0)
                evidence[:, place] += summed.plan.noise.log_ratio(left, vectors).sum(axis=1)
        return (evidence[:, 0] > 0).astype(np.float64) if self._classes == 2 else evidence

    @cached_property
    def closed_form(self) -> float | None:
        """The mean AUC of these guesses, `Φ(|q|/2σ)` (k classes: `Φ(|q|/√2σ)`); none is known for Laplace noise.

        Of several statistics |q|/σ is the root of the sum of squares.
        """
        squared = np.zeros(len(self.targets))
        for summed, vectors in zip(self._summed, self._of_targets, strict=True):
            if not isinstance(summed.plan.noise, DiscreteGaussian):
                return None
            squared += (vectors.astype(np.float64) ** 2).sum(axis=1) / summed.plan.noise.deviation**2
        distances = np.sqrt(squared) / (2.0 if self._classes == 2 else 2.0**0.5)
        return float(np.mean([NormalDist().cdf(distance) for distance in distances.tolist()]))

    def judged(self, result: AttackResult) -> AttackResult:
        """Return the result with its ceiling, and the interval that belongs to guesses with noise in common."""
        words, labels = seeded_words(0, "redrawn noise"), self._labels[self.targets]
        areas = []
        for _ in range(_REDRAWN):
            evaluation = Evaluation(hard=True)
            evaluation.add(self._scores([self._redrawn(summed.plan, words) for summed in self._summed]), labels, 0)
            areas.append(evaluation.result(result.name, result.needs).auc)
        margin = NormalDist().inv_cdf(0.975) * float(np.std(areas, ddof=1))
        low, high = max(0.0, result.auc - margin), min(1.0, result.auc + margin)
        ceiling = Ceiling.proved(statistic_ceiling(self._summed[0].plan.total(self._classes)))
        return replace(result, auc_low=low, auc_high=high).beside(ceiling)

    def _redrawn(self, plan: StatisticPlan, words: RandomWords) -> Sums:
        shape = plan.shape(self._classes)
        return plan.noise.sample(shape[0] * shape[1], words).reshape(shape)
