"""How well an attack does: the attack AUC (appendix A.3 of the paper) with a confidence interval, and TPR at small FPR.

An AUC is computed in each batch, because the scale of gradients changes as training goes on, and averaged over batches.
True labels are used here and nowhere else in this room: to score what an attack has guessed without them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tpsl.files import for_json
from tpsl.metrics import auc_with_variance

Scores = npt.NDArray[np.floating[Any]]
Labels = npt.NDArray[np.int64]

ROC_FPR = np.unique(np.concatenate([[0.0], np.geomspace(0.001, 0.05, 12), np.linspace(0.0, 1.0, 41)]).round(5))
"""Where a ROC curve is kept: denser near 0, where attacks that are sure of a few records show."""
_STANDARD_DEVIATIONS = NormalDist().inv_cdf(0.975)  # on either side of the mean: 95 %


ScoredBy = Literal["noisy label", "statistic", "features", "noisy label and features"]
"""What an attack's scores depend on, which decides how far it can get."""


@dataclass(frozen=True)
class Ceiling:
    """The largest AUC of attackers of one kind; where it is proved and not estimated, both ends are equal to it."""

    auc: float
    low: float
    high: float
    """The ends of the two-sided 95 % confidence interval."""

    @classmethod
    def proved(cls, auc: float) -> Ceiling:
        """Return a ceiling that follows from ε and δ."""
        return cls(auc, auc, auc)

    @classmethod
    def estimated(cls, best: AttackResult) -> Ceiling:
        """Return the ceiling that the best score at hand shows; nobody needs to do worse than guessing."""
        return cls(max(0.5, best.auc), max(0.5, best.auc_low), max(0.5, best.auc_high))


@dataclass(frozen=True)
class AttackResult:
    """What one attack reached, beside what it can reach."""

    name: str
    auc: float
    """The mean over batches of the attack AUC; with k classes of its mean over all pairs of classes."""
    auc_low: float
    auc_high: float
    """The ends of the two-sided 95 % confidence interval for the mean."""
    auc_folded: float
    """`max(auc, 1 - auc)`: what the attacker has who knows on which side the positives are."""
    tpr_at_fpr_0_001: float
    tpr_at_fpr_0_01: float
    """The largest TPR at a FPR of at most 0.1 % and 1 %, one threshold for all batches; NaN for k classes."""
    closed_form: float | None
    """The AUC that follows from the mechanism's table, where this attack has one."""
    scored_by: ScoredBy
    """What its scores depend on, which decides which ceiling is its own."""
    ceiling: float
    """The most that attackers of this kind can reach; NaN where it is not known.

    Of one who has the noisy label alone: what ε and δ allow. Of one who has features too: the AUC of noisy label and
    prediction from features together, the best at hand (`tpsl.attacks.with_features`); of one who has only features,
    that of the prediction.
    """
    ceiling_low: float
    ceiling_high: float
    """The ends of the 95 % confidence interval of an estimated ceiling; both are the ceiling where it is proved."""
    records: int
    batches: int
    one_class_batches: int
    """Batches in which an AUC does not exist; they are left out."""
    needs: str
    roc: tuple[float, ...] = ()
    """The TPR at each of `ROC_FPR`, the mean over batches (and pairs of classes): the area below is `auc`."""

    @property
    def ceiling_is_estimated(self) -> bool:
        """True if the ceiling was computed on this run's records, false if it is proved or not known."""
        return self.ceiling_low < self.ceiling_high

    @property
    def above_ceiling(self) -> bool:
        """True if it lies above by more than chance: beyond a proved ceiling a bug, beyond an estimated one no more
        than a better prediction from features than the estimate has.

        A ceiling holds on average over the noise, so half of the attacks that reach theirs lie above by a little.
        """
        margin = math.hypot(self.auc_high - self.auc_low, self.ceiling_high - self.ceiling_low) / 2
        return self.auc - self.ceiling > 2 * margin  # about four standard deviations

    def beside(self, ceiling: Ceiling) -> AttackResult:
        """Return this result beside its ceiling."""
        return replace(self, ceiling=ceiling.auc, ceiling_low=ceiling.low, ceiling_high=ceiling.high)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able data; a number that does not exist is null, and the ROC curve has both its coordinates."""
        content: dict[str, Any] = for_json(asdict(self))
        content["above_ceiling"] = self.above_ceiling
        content["roc"] = {"fpr": ROC_FPR.tolist(), "tpr": list(self.roc)} if self.roc else None
        return content


@dataclass(frozen=True)
class AttackReport:
    """What all attacks reached on one run, beside what the mechanism's table predicts and what ε allows."""

    mechanism: str
    estimator: str
    draws: int
    classes: int
    epsilon: float
    """The ε of the release, over all draws."""
    delta: float
    closed_form: float
    """The mechanism's AUC under the shortest-distance attack with its hard guess."""
    closed_form_best: float
    """The mechanism's AUC under the best attack on one draw, the likelihood ratio."""
    ceiling: float
    """What ε and δ allow any attack that scores by the noisy label alone; each attack has its own ceiling beside it."""
    predicted_from: tuple[str, ...]
    """What the ceilings of attackers with features were computed from; empty where there was no need or no way."""
    records: int
    steps: int
    skip: int
    known_labels: int
    attacks: tuple[AttackResult, ...]
    not_run: Mapping[str, str]
    """Attacks that do not exist for this run, each with the reason."""

    def __getitem__(self, name: str) -> AttackResult:
        for result in self.attacks:
            if result.name == name:
                return result
        raise KeyError(name)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able data; an infinite ε becomes null."""
        attacks = {result.name: result.as_dict() for result in self.attacks}
        content: dict[str, Any] = for_json({**vars(self), "attacks": attacks, "not_run": dict(self.not_run)})
        return content


def tpr_at_fpr(scores: Scores, positive: npt.NDArray[np.bool_], fpr: float) -> float:
    """Return the largest TPR of a threshold (`score ≥ t` is a positive guess) whose FPR is at most `fpr`."""
    of_negatives = np.sort(scores[~positive])
    allowed = math.floor(fpr * len(of_negatives) + 1e-9)
    # The smallest threshold that lets at most `allowed` negatives pass lies just above this one.
    highest_refused = of_negatives[len(of_negatives) - 1 - allowed]
    return float((scores[positive] > highest_refused).mean())


def roc_at(scores: Scores, positive: npt.NDArray[np.bool_], fpr: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the TPR of the ROC curve at each FPR, the highest where there are several.

    Records with equal scores are one straight piece of the curve.
    """
    of_positives, of_negatives = np.sort(scores[positive]), np.sort(scores[~positive])
    wanted = fpr * len(of_negatives)
    last = len(of_negatives) - 1
    at = of_negatives[last - np.minimum((wanted + 1e-9).astype(np.intp), last)]  # the score where each FPR is reached
    below, upto = np.searchsorted(of_negatives, at, "left"), np.searchsorted(of_negatives, at, "right")
    share = (wanted - (len(of_negatives) - upto)) / (upto - below)
    below_positives, upto_positives = (
        np.searchsorted(of_positives, at, "left"),
        np.searchsorted(of_positives, at, "right"),
    )
    found = len(of_positives) - upto_positives + share * (upto_positives - below_positives)
    return np.where(fpr >= 1.0, 1.0, found / len(of_positives))


class Evaluation:
    """Collects an attack's scores batch by batch.

    Scores have shape `[n]` (larger: rather class 1) or `[n, k]` (larger: rather this class). With k classes every pair
    of classes is compared on its own records by the difference of the two scores; a hard guess is the class with the
    larger one, and a coin where they are equal.
    """

    def __init__(self, *, hard: bool = False) -> None:
        self._hard = hard
        self._coins = np.random.default_rng(0)
        self._areas: list[float] = []
        self._variances: dict[int, float] = defaultdict(float)
        self._one_class = 0
        self._roc = np.zeros(len(ROC_FPR))
        self._pooled: list[tuple[Scores, npt.NDArray[np.bool_]]] = []
        self._records = 0
        self._in_epoch: dict[int, int] = defaultdict(int)

    def add(self, scores: Scores, labels: Labels, epoch: int) -> None:
        """Score one batch; `epoch` says how often its records had been seen before."""
        if np.isnan(scores).any():
            raise ValueError("an attack gave a score that is not a number")
        comparisons = list(self._comparisons(scores, labels))
        found = [auc_with_variance(s, p) for s, p in comparisons]
        if not found:
            self._one_class += 1
            return
        self._areas.append(float(np.mean([area for area, _ in found])))
        self._roc += np.mean([roc_at(s, p, ROC_FPR) for s, p in comparisons], axis=0)
        # Pairs of classes share records: the spread of their mean is at most the mean of their spreads.
        self._variances[epoch] += float(np.mean([math.sqrt(variance) for _, variance in found])) ** 2
        self._records += len(labels)
        self._in_epoch[epoch] += len(labels)
        if scores.ndim == 1:
            self._pooled.append((scores.astype(np.float32), labels == 1))

    def _comparisons(self, scores: Scores, labels: Labels) -> Iterator[tuple[Scores, npt.NDArray[np.bool_]]]:
        if scores.ndim == 1:
            positive = labels == 1
            if 0 < positive.sum() < len(positive):
                yield scores, positive
            return
        for a, b in combinations(np.unique(labels).tolist(), 2):
            of_pair = (labels == a) | (labels == b)
            difference = scores[of_pair, b] - scores[of_pair, a]
            if self._hard:
                tossed = self._coins.choice([-1.0, 1.0], len(difference))
                difference = np.where(difference == 0, tossed, np.sign(difference))
            yield difference, labels[of_pair] == b

    def result(
        self,
        name: str,
        needs: str,
        *,
        closed_form: float | None = None,
        scored_by: ScoredBy = "noisy label and features",
    ) -> AttackResult:
        """Return what the attack reached over all batches, without its ceiling; NaN if none had two classes.

        Batches of one epoch have records of their own, so their variances add. In a later epoch the same noisy labels
        come again, so epochs are taken as wholly dependent: their standard deviations add. The interval is never too
        narrow for that. Nor is it narrower than that of a share of as many records: where few records or none are
        guessed wrong, the spread of those that were seen says little.
        """
        batches = len(self._areas)
        area, low, high = math.nan, math.nan, math.nan
        if batches:
            area = float(np.mean(self._areas))
            spread = sum(math.sqrt(variance) for variance in self._variances.values()) / batches
            margin = _STANDARD_DEVIATIONS * spread
            of_share = _wilson_interval(area, max(self._in_epoch.values()))
            low, high = max(0.0, min(area - margin, of_share[0])), min(1.0, max(area + margin, of_share[1]))
        tpr = [math.nan, math.nan]
        if self._pooled:
            scores, positive = (np.concatenate(parts) for parts in zip(*self._pooled, strict=True))
            tpr = [tpr_at_fpr(scores, positive, fpr) for fpr in (0.001, 0.01)]
        return AttackResult(
            name=name,
            auc=area,
            auc_low=low,
            auc_high=high,
            auc_folded=max(area, 1.0 - area),
            tpr_at_fpr_0_001=tpr[0],
            tpr_at_fpr_0_01=tpr[1],
            closed_form=closed_form,
            scored_by=scored_by,
            ceiling=math.nan,
            ceiling_low=math.nan,
            ceiling_high=math.nan,
            records=self._records,
            batches=batches,
            one_class_batches=self._one_class,
            needs=needs,
            roc=tuple((self._roc / batches).round(6).tolist()) if batches else (),
        )


def _wilson_interval(share: float, records: int) -> tuple[float, float]:
    """Return the 95 % interval of Wilson for a share of records: it has a width also where the share is 0 or 1."""
    squared = _STANDARD_DEVIATIONS**2 / records
    centre = (share + squared / 2) / (1 + squared)
    half = math.sqrt(squared * share * (1 - share) + squared**2 / 4) / (1 + squared)
    return centre - half, centre + half
