"""All attacks on one recorded run, each with what that attacker has.

| name                        | what it does                                                         |
|-----------------------------|----------------------------------------------------------------------|
| `norm`                      | `‖g̃‖²` (appendix A.1)                                                |
| `spectral`                  | `|⟨g̃ - μ, v⟩|` in each batch (appendix A.2)                          |
| `spectral_embeddings`       | the same on the embeddings it sent (Sun et al.)                      |
| `shortest_distance`         | the nearer of g_0 and g_1, a hard guess (section 3.1)                |
| `shortest_distance_soft`    | how much nearer                                                      |
| `likelihood`                | recovers the noisy label, scores it by likelihood ratio              |
| `fingerprint`               | the bits of g̃ that only one label explains                           |
| `noisy_label_with_features` | `likelihood`, and a model of the label learned from all noisy labels |
| `direction`                 | cosine with gradients of known positives (Li et al.)                 |
| `completion`                | a head on its own trained half (Fu et al.)                           |
| `no_transcript`             | the reference: what features alone give away                         |

`ATTACKS` knows them by name, with those that users register; each entry says what its attacker has.

Each attack stands beside the ceiling of its own kind of attacker. One that scores by the noisy label alone cannot pass
what ε allows. Gradients and embeddings also carry what features say about the label, which ε does not bound: attacks
that use them stand beside the AUC of noisy label and best prediction from features together, computed at the label
party on the records of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path

from tpsl.attacks.as_features import as_features, embeddings_as_features
from tpsl.attacks.attacked_run import AttackedRun
from tpsl.attacks.black_box import norm_scores, spectral_scores
from tpsl.attacks.ceilings import Evaluated
from tpsl.attacks.known_labels import (
    DirectionAttack,
    KnownLabels,
    LearnedAttack,
    draw_known,
    embedding_similarity,
    feature_similarity,
)
from tpsl.attacks.report import AttackReport
from tpsl.attacks.scoring import Ceiling, ScoredBy
from tpsl.attacks.transcript_walk import AttackError, PreparedAttack, Scorer, evaluate_attacks
from tpsl.attacks.with_features import RowScores, noisy_label_with_features, side_by_side
from tpsl.data.errors import DataError
from tpsl.data.features import Features
from tpsl.data.source import Inputs
from tpsl.data.true_labels import TrueLabels, reveal
from tpsl.mechanisms import PredictedAUC, auc_ceiling, predicted_auc
from tpsl.progress import Progress, no_progress
from tpsl.registry import ExtensionError, Registry
from tpsl.training.run_folder import RunFolder
from tpsl.transport.peers import LABEL_PARTY

_KNOWN_PER_CLASS = 20


@dataclass(frozen=True)
class Attack:
    """An attack as it is registered: what its attacker has, and how that becomes scores."""

    needs: str
    """Of transcript, weights, features, trained half and known labels those that `prepare` asks the run for."""
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

    def impossible(self, run: AttackedRun) -> str | None:
        """Return why this attack does not exist for a run, if so."""
        if run.classes > 2 and not self.many_classes:
            return f"tells two classes apart, not {run.classes}"
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

    def on(self, run: AttackedRun, name: str, predicted: PredictedAUC) -> PreparedAttack:
        """Return the attack on a run."""
        closed_form, scored_by = None, self.scored_by
        if scored_by == "noisy label":
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
    "likelihood": _Reader(lambda run: run.reader.evidence, many_classes=True, closed_form=_BEST),
    "fingerprint": _Reader(lambda run: run.reader.fingerprint),
    "noisy_label_with_features": Attack(
        "transcript+weights+features",
        lambda run: noisy_label_with_features(run.read, side_by_side(run.features.values()), run.mechanism),
        many_classes=True,
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
    labels = reveal(true_labels)
    run = AttackedRun(
        RunFolder(path),
        true_labels.classes,
        len(labels),
        lambda rows: draw_known(rows, labels, _KNOWN_PER_CLASS) if known is None else known,
        features,
    )
    chosen = {name: ATTACKS.get(name) for name in (ATTACKS if which is None else which)}
    reasons = {name: attack.impossible(run) for name, attack in chosen.items()}
    not_run = {name: reason for name, reason in reasons.items() if reason is not None}
    for name, reason in not_run.items() if which is not None else ():
        raise AttackError(f"{path}: the attack {name!r} {reason}")
    if skip >= run.step_count:
        raise AttackError(f"{path}: has {run.step_count} recorded steps, so none is left after skipping {skip}")
    progress(0, run.step_count, "preparing")
    predicted = predicted_auc(run.mechanism)
    attacks = [attack.on(run, name, predicted) for name, attack in chosen.items() if name not in not_run]
    attacker_knows = run.known_labels if known is None else known
    bounds = _Ceilings(run, true_labels)
    best = bounds.best_scores({attack.scored_by for attack in attacks}) if ceilings else {}
    results = evaluate_attacks(
        run.steps(),
        [*attacks, *(PreparedAttack(f"best score from {kind}", "", score) for kind, score in best.items())],
        labels,
        leave_out=None if attacker_knows is None else attacker_knows.rows,
        skip=skip,
        progress=progress,
        total=run.step_count,
    )
    found = {kind: Ceiling.estimated(r) for kind, r in zip(best, results[len(attacks) :], strict=True)} | bounds.proved
    return AttackReport(
        mechanism=run.mechanism.name,
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
        attacks=tuple(r.beside(found[r.scored_by]) if r.scored_by in found else r for r in results[: len(attacks)]),
        not_run=not_run,
    )


class _Ceilings:
    """How far each kind of attacker can get on a run: proved from ε and δ, or estimated with the true labels."""

    def __init__(self, run: AttackedRun, true_labels: TrueLabels) -> None:
        self._run, self._true_labels = run, true_labels
        self._draws = run.job.privacy.draws
        self.epsilon, self.delta = self._draws * run.mechanism.epsilon, self._draws * run.mechanism.delta
        self.ceiling = auc_ceiling(self.epsilon, self.delta)

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
            own = run.label_inputs()
            parties += [] if own is None else as_features({LABEL_PARTY: own}).values()
        labels = reveal(self._true_labels)[run.rows]
        return Evaluated(run.rows, labels, run.classes, side_by_side(parties), features_are, read)
