"""All attacks on one recorded run, each with what that attacker has.

| name                        | what it does                                                         |
|-----------------------------|----------------------------------------------------------------------|
| `norm`                      | `‖g̃‖²` (appendix A.1)                                                |
| `spectral`                  | `|⟨g̃ - μ, v⟩|` in each batch (appendix A.2)                          |
| `spectral_embeddings`       | the same on the embeddings it sent (Sun et al.)                      |
| `shortest_distance`         | the nearer of g_0 and g_1, a hard guess (section 3.1)                |
| `shortest_distance_soft`    | how much nearer                                                      |
| `likelihood`                | recovers the noisy label, scores it by likelihood ratio              |
| `noisy_label_with_features` | `likelihood`, and a model of the label learned from all noisy labels |
| `direction`                 | cosine with gradients of known positives (Li et al.)                 |
| `completion`                | a head on its own trained half (Fu et al.)                           |
| `no_transcript`             | the reference: what features alone give away                         |
| `statistic`                 | knows all labels but one, and the noisy sum of a job that has one    |

`ATTACKS` knows them by name, with those that users register; each entry says what its attacker has.

Where noisy labels were handed over, no gradient crossed: of the attacks on a transcript `likelihood` is left, alone and
with features. It reads the noisy labels off the steps that the feature party makes in its own process.

Each attack stands beside the ceiling of its own kind of attacker. One that scores by the noisy label alone cannot pass
what ε allows. Gradients and embeddings also carry what features say about the label, which ε does not bound: attacks
that use them stand beside the AUC of noisy label and best prediction from features together, computed at the label
party on the records of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tpsl.attacks.attacked_run import AttackedRun
from tpsl.attacks.auc_prediction import PredictedAUC, predicted_auc
from tpsl.attacks.black_box import norm_scores, spectral_scores
from tpsl.attacks.ceilings import Ceilings
from tpsl.attacks.known_labels import (
    DirectionAttack,
    KnownLabels,
    LearnedAttack,
    draw_known,
    embedding_similarity,
    feature_similarity,
)
from tpsl.attacks.known_others import KnownOthers
from tpsl.attacks.scoring import AttackReport, AttackResult, Ceiling, ScoredBy
from tpsl.attacks.transcript_walk import AttackError, PreparedAttack, Scorer, evaluate_attacks
from tpsl.attacks.with_features import noisy_label_with_features, with_bins
from tpsl.data.features import Features, Inputs, joined_features
from tpsl.data.true_labels import TrueLabels, reveal
from tpsl.progress import Progress, no_progress
from tpsl.registry import ExtensionError, Registry
from tpsl.run.releases import planned_releases
from tpsl.run.run_folder import RunFolder
from tpsl.tables import DataError

_KNOWN_PER_CLASS = 20


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


ATTACKS: Registry[Attack] = Registry("attack")

_Reader = partial(Attack, "transcript+weights", scored_by="noisy label")
_BEST: Callable[[PredictedAUC], float] = attrgetter("best_score")
_BUILT_IN = {
    "norm": Attack("transcript", lambda run: lambda seen: norm_scores(seen.gradients)),
    "spectral": Attack("transcript", lambda run: lambda seen: spectral_scores(seen.gradients)),
    "spectral_embeddings": Attack("transcript", lambda run: lambda seen: spectral_scores(seen.embeddings)),
    "shortest_distance": _Reader(
        lambda run: run.reader.guesses, many_classes=True, hard=True, closed_form=attrgetter("likelier_class")
    ),
    "shortest_distance_soft": _Reader(lambda run: run.reader.distances, many_classes=True, closed_form=_BEST),
    "likelihood": _Reader(lambda run: run.reader.evidence, many_classes=True, closed_form=_BEST, uses_gradients=False),
    "noisy_label_with_features": Attack(
        "transcript+weights+features",
        lambda run: noisy_label_with_features(
            run.read, with_bins(joined_features(list(run.features.values()))), run.mechanism
        ),
        many_classes=True,
        uses_gradients=False,
    ),
    "direction": Attack("transcript+known labels", lambda run: DirectionAttack(run.steps(), run.known)),
    "completion": Attack(
        "features+trained half+known labels",
        lambda run: LearnedAttack(embedding_similarity(run.trained_parties(), run.known), run.known, run.classes),
        many_classes=True,
    ),
    "no_transcript": Attack(
        "features+known labels",
        lambda run: LearnedAttack(feature_similarity(run.features, run.known), run.known, run.classes),
        many_classes=True,
        scored_by="features",
        uses_gradients=False,
    ),
    "statistic": Attack(
        "statistic+all other labels",
        lambda run: run.known_others,
        many_classes=True,
        scored_by="statistic",
        hard=True,
    ),
}
for _name, _attack in _BUILT_IN.items():
    ATTACKS.register(_name, _attack)


def run_attacks(
    path: Path,
    true_labels: TrueLabels,
    *,
    known: KnownLabels | None = None,
    which: Sequence[str] | None = None,
    features: Mapping[str, Features | Inputs] | None = None,
    skip: int = 0,
    ceilings: bool = True,
    progress: Progress = no_progress,
) -> AttackReport:
    """Attack a recorded run, by all attacks that exist for it or by those in `which`.

    One step is in memory at a time, and a few numbers for each record where attacks or ceilings use features.

    `true_labels` (of all rows of the table) only score the guesses; the labels that some attackers know are given by
    `known`, or 20 of each class are drawn at random from the rows in the transcript. Known records are not scored.
    `features` are the feature parties' own; they are loaded as the job says if an attack needs them and they are not
    given. The first `skip` steps are not counted. Without `ceilings` those that take a model of the features are left
    out.
    """
    labels, folder = reveal(true_labels), RunFolder(path)
    draw = partial(draw_known, labels=labels, per_class=_KNOWN_PER_CLASS) if known is None else lambda rows: known
    know_others = partial(_know_others, folder, labels)
    run = AttackedRun(folder, true_labels.classes, len(labels), draw, know_others, features)
    if skip >= max(1, run.step_count):
        raise AttackError(f"{path}: has {run.step_count} recorded steps, so none is left after skipping {skip}")
    progress(0, run.step_count, "preparing")
    predicted = predicted_auc(run.mechanism)
    attacks, not_run = _prepared(run, path, which, predicted)
    attacker_knows = run.known_labels if known is None else known
    bounds = Ceilings(run, labels)
    best = bounds.best_scores({attack.scored_by for attack in attacks}) if ceilings else {}
    on_steps = [attack for attack in attacks if attack.scored_by != "statistic"]
    scored = [*on_steps, *(PreparedAttack(f"best score from {kind}", "", score) for kind, score in best.items())]
    known_rows = None if attacker_knows is None else attacker_knows.rows
    results = evaluate_attacks(
        run.steps(), scored, labels, leave_out=known_rows, skip=skip, progress=progress, total=run.step_count
    )
    by_attacks, by_best = results[: len(on_steps)], results[len(on_steps) :]
    found = {kind: _estimated(one, by_attacks, kind) for kind, one in zip(best, by_best, strict=True)} | bounds.proved
    reached = [r.beside(found[r.scored_by]) if r.scored_by in found else r for r in by_attacks]
    return AttackReport(
        mechanism=" and ".join(planned_releases(run.job, run.classes)) or run.mechanism.name,
        estimator=run.job.privacy.estimator,
        draws=run.job.privacy.draws,
        classes=run.classes,
        epsilon=bounds.epsilon,
        delta=bounds.delta,
        closed_form=predicted.shortest_distance,
        closed_form_best=predicted.best_score,
        ceiling=bounds.ceiling,
        records=run.records,
        steps=run.step_count,
        skip=skip,
        known_labels=0 if attacker_knows is None else len(attacker_knows),
        predicted_from=bounds.evaluated.predicted_from if best else (),
        attacks=(*reached, *_on_statistic(run, attacks, labels)),
        not_run=not_run,
    )


def _estimated(best: AttackResult, attacks: Sequence[AttackResult], kind: ScoredBy) -> Ceiling:
    """Return the bound that the best score at hand shows; an attack of this kind that does better raises it."""
    same_kind = (attack for attack in attacks if attack.scored_by == kind)
    return Ceiling.estimated(max((best, *same_kind), key=attrgetter("auc")))


def _know_others(folder: RunFolder, labels: npt.NDArray[np.int64], run: AttackedRun) -> KnownOthers:
    return KnownOthers(folder, run.inputs, run.label_records, labels)


def _on_statistic(
    run: AttackedRun, attacks: Sequence[PreparedAttack], labels: npt.NDArray[np.int64]
) -> list[AttackResult]:
    """Return what those of the attacks reached that read the statistic."""
    chosen = [attack for attack in attacks if attack.scored_by == "statistic"]
    if not chosen:
        return []
    found = evaluate_attacks(run.known_others.steps(), chosen, labels)
    return [run.known_others.judged(result) for result in found]


def _prepared(
    run: AttackedRun, path: Path, which: Sequence[str] | None, predicted: PredictedAUC
) -> tuple[list[PreparedAttack], dict[str, str]]:
    """Return the attacks on a run, and why others do not exist for it; one that was asked for by name must exist."""
    attacks, not_run = [], {}
    for name, attack in {name: ATTACKS.get(name) for name in which or ATTACKS}.items():
        if which is None and attack.reads_statistic and run.job.statistic is None:
            continue
        reason = attack.impossible(run)
        if reason is None:
            attacks.append(attack.on(run, name, predicted))
        elif which is None:
            not_run[name] = reason
        else:
            raise AttackError(f"{path}: the attack {name!r} {reason}")
    return attacks, not_run
