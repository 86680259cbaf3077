"""An attack as it is registered: what its attacker has, and how that becomes a score for each record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tpsl.attacks.attacked_run import AttackedRun
from tpsl.attacks.auc_prediction import PredictedAUC
from tpsl.attacks.scoring import ScoredBy
from tpsl.attacks.transcript_walk import PreparedAttack, Scorer
from tpsl.registry import ExtensionError
from tpsl.tables import DataError


@dataclass(frozen=True)
class Attack:
    """An attack as it is registered: what its attacker has, and how that becomes scores."""

    needs: str
    """Of transcript, weights, statistic, features, trained half and labels those that `prepare` asks the run for."""
    prepare: Callable[[AttackedRun], Scorer]
    """From what the attacker has to what scores a step."""
    many_classes: bool = False
    """Whether it tells more than two classes apart; its scores are then `[n, k]`."""
    scored_by: ScoredBy = "noisy label and features"
    """What the scores depend on, which decides the ceiling; 'noisy label' only holds where that can be read."""
    hard: bool = False
    """Whether scores are guesses: of k classes the one with the larger score, a coin where they are equal."""
    closed_form: Callable[[PredictedAUC], float] | None = None
    """The AUC that the mechanism's table predicts, where the noisy label can be read."""
    uses_gradients: bool = True
    """Whether it uses gradients otherwise than to read noisy labels off them, if it uses them at all."""

    def impossible(self, run: AttackedRun) -> str | None:
        """Return why this attack does not exist for a run, if so."""
        if self.reads_statistic:
            return None if run.job.statistic is not None else "needs a statistic, and the run has none"
        if not run.step_count:
            return "needs gradients, and none were sent"
        if run.classes > 2 and not self.many_classes:
            return f"tells two classes apart, not {run.classes}"
        if run.job.hands_over and self.uses_gradients:
            return "uses gradients, and none crossed: the noisy labels did, and 'likelihood' is all that they tell"
        if "weights" in self.needs and not run.white_box.fits():
            return "needs all of the cut, but the label party has features of its own, which are not recorded"
        if "trained half" in self.needs and not run.finished:
            return "needs the trained bottom half, but the run is not finished"
        if "features" in self.needs:
            try:
                run.features  # noqa: B018
            except (DataError, ExtensionError) as error:
                return f"needs the feature parties' features, which are not here ({error})"
        return None

    @property
    def reads_statistic(self) -> bool:
        """Whether it attacks the statistic of a run, not its steps."""
        return self.scored_by == "statistic"

    def on(self, run: AttackedRun, name: str, predicted: PredictedAUC) -> PreparedAttack:
        """Return the attack on a run."""
        closed_form, scored_by = None, self.scored_by
        if self.reads_statistic:
            closed_form = run.known_others.closed_form
        elif scored_by == "noisy label":
            if run.reader.exact:
                closed_form = self.closed_form(predicted) if self.closed_form else None
            else:
                scored_by = "noisy label and features"
        return PreparedAttack(name, self.needs, self.prepare(run), self.hard, closed_form, scored_by)
