"""How far an attacker with features could get: estimated at the label party, with true labels and what is at hand.

The true ceiling is the AUC of `ln p(x) / (1 - p(x)) + λ_t` with the true p(x) = P(y = 1 | x), which nobody knows
(`tpsl.attacks.with_features`). What is computed here is the AUC, on the records of the run, of the sum

    a · λ_t + b · additive model of the features + c · logit of the trained network

where the additive model (of the embeddings, if the features are not at hand) is fitted on the true labels of other
records, and a, b, c are the numbers under which the true labels are most likely. It is an estimate from below: no score
of x and t has a larger expected AUC than the true ceiling, and a better prediction from features would come nearer to
it. An attack that predicts better than both models lies above the estimate; `run_attacks` then takes its AUC. Three
fitted numbers flatter the sum by no more than its confidence interval covers.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tpsl.attacks.as_features import as_features, embeddings_as_features
from tpsl.attacks.attacked_run import AttackedRun
from tpsl.attacks.auc_prediction import auc_ceiling, statistic_ceiling
from tpsl.attacks.scoring import Ceiling, ScoredBy
from tpsl.attacks.with_features import (
    Floats,
    ReadTranscript,
    Rows,
    RowScores,
    best_combination,
    drawn_evidence,
    out_of_fold,
    with_bins,
)
from tpsl.data.features import Features, joined_features
from tpsl.mechanisms import Mechanism
from tpsl.net.messages import LABEL_PARTY
from tpsl.registry import ExtensionError
from tpsl.run.releases import statistic_plan
from tpsl.tables import DataError


@dataclass(frozen=True)
class Evaluated:
    """The records of a transcript as the label party knows them."""

    rows: Rows
    labels: npt.NDArray[np.int64]
    """The true labels of these rows."""
    classes: int
    features: Features
    """Of all parties, for all rows of the table."""
    features_are: str
    """What these features are, in words."""
    read: ReadTranscript | None
    """None if noisy labels and logits cannot be read."""

    @property
    def predicted_from(self) -> tuple[str, ...]:
        """What labels are predicted from, in words."""
        model = f"an additive model of {self.features_are}"
        return (model,) if self.read is None else (model, "the network's logits")

    def with_noisy_labels(self, mechanism: Mechanism, draws: int, *, exact: bool) -> RowScores:
        """Return the best score at hand for whoever has noisy labels and features.

        A noisy label is taken as the transcript shows it. Where it does not (no step shows it, `exact` is false, or it
        is a second draw, which shows in the weights alone), one is drawn in its place, for this evaluation only.
        """
        evidence = sum(drawn_evidence(mechanism, self.labels, draw) for draw in range(1, draws))
        first = drawn_evidence(mechanism, self.labels)
        if self.read is not None and exact:
            first = np.where(self.read.readable[:, None], self.read.evidence, first)
        parts = [evidence + first, self._learned]
        if self.read is not None:
            parts.append(self.read.logits)
        return RowScores(self.rows, best_combination(parts, self.labels))

    def features_alone(self) -> RowScores:
        """Return the best prediction from features alone."""
        return RowScores(self.rows, self._learned)

    @cached_property
    def _learned(self) -> Floats:
        usable = np.ones(len(self.rows), dtype=bool)
        return out_of_fold(self.features, self.rows, np.eye(self.classes)[self.labels], usable)


class Ceilings:
    """How far each kind of attacker can get on a run: proved from ε and δ, or estimated with the true labels."""

    def __init__(self, run: AttackedRun, true_labels: npt.NDArray[np.int64]) -> None:
        self._run, self._true_labels = run, true_labels
        self._draws = run.job.privacy.draws
        self.epsilon, self.delta = self._draws * run.mechanism.epsilon, self._draws * run.mechanism.delta
        self.ceiling = auc_ceiling(self.epsilon, self.delta)
        if not run.step_count:  # what is released is a statistic
            cost = statistic_plan(run.job, run.classes).total(run.classes)
            self.epsilon, self.delta, self.ceiling = cost.epsilon, cost.delta, statistic_ceiling(cost)

    @property
    def proved(self) -> dict[ScoredBy, Ceiling]:
        """The ceilings that follow from ε and δ; without noise the label itself can be read."""
        kinds: tuple[ScoredBy, ...] = ("noisy label", "noisy label and features")
        return {kind: Ceiling.proved(self.ceiling) for kind in kinds[: 1 if self.ceiling < 1 else 2]}

    def best_scores(self, kinds: Collection[ScoredBy]) -> dict[ScoredBy, RowScores]:
        """Return the best scores at hand for those of these kinds of attackers whose ceiling is not proved."""
        best: dict[ScoredBy, RowScores] = {}
        if "features" in kinds:
            best["features"] = self.evaluated.features_alone()
        if "noisy label and features" in set(kinds) - set(self.proved):
            exact = self._run.white_box.fits() and self._run.reader.exact
            best["noisy label and features"] = self.evaluated.with_noisy_labels(
                self._run.mechanism, self._draws, exact=exact
            )
        return best

    @cached_property
    def evaluated(self) -> Evaluated:
        """The records of the transcript as the label party knows them."""
        run = self._run
        read = run.read if run.white_box.fits() else None
        try:
            parties, features_are = list(run.features.values()), "the features"
        except (DataError, ExtensionError):  # of a run of two organisations the label party has what was sent
            parties, features_are = [embeddings_as_features(run.steps, run.table_rows)], "the embeddings"
        if read is None:  # gradients depend on the label party's own features too
            own = run.label_records.features
            parties += [] if own is None else as_features({LABEL_PARTY: own}).values()
        features = with_bins(joined_features(parties))
        return Evaluated(run.rows, self._true_labels[run.rows], run.classes, features, features_are, read)
