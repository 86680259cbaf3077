"""All attacks on one recorded run, each with what that attacker has.

| name                     | what it does                                            |
|--------------------------|---------------------------------------------------------|
| `norm`                   | `‖g̃‖²` (appendix A.1)                                   |
| `spectral`               | `|⟨g̃ - μ, v⟩|` in each batch (appendix A.2)             |
| `spectral_embeddings`    | the same on the embeddings it sent (Sun et al.)         |
| `shortest_distance`      | the nearer of g_0 and g_1, a hard guess (section 3.1)   |
| `shortest_distance_soft` | how much nearer                                         |
| `likelihood`             | recovers the noisy label, scores it by likelihood ratio |
| `fingerprint`            | the bits of g̃ that only one label explains              |
| `direction`              | cosine with gradients of known positives (Li et al.)    |
| `completion`             | a head on its own trained half (Fu et al.)              |
| `no_transcript`          | the reference: what features alone give away            |

`ATTACKS` says what each attacker has. With several feature parties the attacker is all of them together.

With the estimators `linear` and `unbiased` the shortest-distance guess is `t > ½`, and has the mechanism's closed form.
With `posterior` the gradient lies at `σ(z + λ_t)` between g_0 and g_1, and its nearer end says more about z than about
t. An attacker who knows the estimator does not fall for that: it divides z out and asks whether t, not g̃, is nearer
to 1. So does `shortest_distance` here, and it has the same closed form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from safetensors.torch import load_file

from tpsl.attacks.attack import Attack, AttackError, Labels, Progress, evaluate_attacks, joint_steps
from tpsl.attacks.black_box import norm_scores, spectral_scores
from tpsl.attacks.evidence import Evidence
from tpsl.attacks.fingerprint import UNDECIDED, fingerprint_attack
from tpsl.attacks.known_labels import (
    DirectionAttack,
    KnownLabels,
    LearnedAttack,
    draw_known,
    embedding_similarity,
    feature_similarity,
)
from tpsl.attacks.report import AttackReport
from tpsl.attacks.scoring import Scores
from tpsl.attacks.white_box import WhiteBox
from tpsl.data.dataset import feature_party_names, load_feature_party
from tpsl.data.errors import DataError
from tpsl.data.features import Features
from tpsl.mechanisms import auc_ceiling
from tpsl.party import FeatureParty
from tpsl.training.build import build_feature_party
from tpsl.training.run_folder import RunFolder
from tpsl.training.transcript import Trajectory, Transcript, TranscriptStep
from tpsl.training.wide import load_wide, newly_scored_features

ATTACKS: dict[str, str] = {
    "norm": "transcript",
    "spectral": "transcript",
    "spectral_embeddings": "transcript",
    "shortest_distance": "transcript+weights",
    "shortest_distance_soft": "transcript+weights",
    "likelihood": "transcript+weights",
    "fingerprint": "transcript+weights",
    "direction": "transcript+known labels",
    "completion": "features+trained half+known labels",
    "no_transcript": "features+known labels",
}
"""What each attacker has, by the name of the attack."""

_FOR_K_CLASSES = ("shortest_distance", "shortest_distance_soft", "likelihood", "completion", "no_transcript")
_KNOWN_PER_CLASS = 20


def run_attacks(
    run: Path,
    true_labels: Labels,
    *,
    known: KnownLabels | None = None,
    which: Sequence[str] | None = None,
    features: Mapping[str, Features] | None = None,
    skip: int = 0,
    progress: Progress = lambda done, total, note: None,
) -> AttackReport:
    """Attack a recorded run, by all attacks that exist for it or by those in `which`, in memory of one step.

    `true_labels` (of all rows of the table) only score the guesses; the labels that some attackers know are given by
    `known`, or 20 of each class are drawn at random from the rows in the transcript. Known records are not scored.
    `features` are the feature parties' own; they are loaded as the job says if an attack needs them and they are not
    given. The first `skip` steps are not counted.
    """
    names = tuple(ATTACKS if which is None else which)
    for name in names:
        if name not in ATTACKS:
            raise AttackError(f"unknown attack {name!r}; known are {', '.join(ATTACKS)}")
    suite = _Suite(RunFolder(run), np.asarray(true_labels, dtype=np.int64), known, features)
    reasons = {name: suite.impossible(name) for name in names}
    not_run = {name: reason for name, reason in reasons.items() if reason is not None}
    for name, reason in not_run.items() if which is not None else ():
        raise AttackError(f"{run}: the attack {name!r} {reason}")
    if skip >= suite.total:
        raise AttackError(f"{run}: has {suite.total} recorded steps, so none is left after skipping {skip}")
    attacks = [suite.attack(name) for name in names if name not in not_run]
    attacker_knows = suite.known if known is not None or any("known" in attack.needs for attack in attacks) else None
    results = evaluate_attacks(
        joint_steps(suite.transcripts),
        attacks,
        suite.true_labels,
        ceiling=suite.ceiling,
        leave_out=None if attacker_knows is None else attacker_knows.rows,
        skip=skip,
        progress=progress,
        total=suite.total,
    )
    return AttackReport(
        mechanism=suite.mechanism.name,
        estimator=suite.job.privacy.estimator,
        draws=suite.job.privacy.draws,
        classes=suite.mechanism.classes,
        epsilon=suite.epsilon,
        delta=suite.delta,
        closed_form=suite.predicted.shortest_distance,
        closed_form_best=suite.predicted.best_score,
        ceiling=suite.ceiling,
        records=suite.records,
        steps=suite.total,
        skip=skip,
        known_labels=0 if attacker_knows is None else len(attacker_knows),
        attacks=results,
        not_run=not_run,
    )


class _Suite:
    """One run as its attackers see it, and the attacks on it."""

    def __init__(
        self, run: RunFolder, true_labels: Labels, known: KnownLabels | None, features: Mapping[str, Features] | None
    ) -> None:
        self._run, self.true_labels, self._known, self._features = run, true_labels, known, features
        self.job = run.job()
        self._parties = feature_party_names(self.job.data)
        self.transcripts = [Transcript(run.party(name) / "transcript") for name in self._parties]
        self.total, self.records = len(self.transcripts[0]), self.transcripts[0].records
        self._finished = run.result()
        classes = int(true_labels.max()) + 1 if self._finished is None else self._finished.classes
        self.mechanism = self.job.privacy.build(max(2, classes))
        self.predicted = self.mechanism.predicted_auc
        draws = self.job.privacy.draws
        self.epsilon, self.delta = draws * self.mechanism.epsilon, draws * self.mechanism.delta
        self.ceiling = auc_ceiling(self.epsilon, self.delta)

    def impossible(self, name: str) -> str | None:
        """Return why an attack does not exist for this run, if so."""
        if self.mechanism.classes > 2 and name not in _FOR_K_CLASSES:
            return f"tells two classes apart, not {self.mechanism.classes}"
        if "weights" in ATTACKS[name] and not self._white_box.fits():
            return "needs all of the cut, but the label party has features of its own, which are not recorded"
        if "trained half" in ATTACKS[name] and self._finished is None:
            return "needs the trained bottom half, but the run is not finished"
        if "features" in ATTACKS[name]:
            try:
                self._held_features  # noqa: B018
            except DataError as error:
                return f"needs the feature parties' features, which are not here ({error})"
        return None

    def attack(self, name: str) -> Attack:
        """Return an attack by its name."""
        return Attack(name, ATTACKS[name], self._scores(name), name == "shortest_distance", self._closed_form(name))

    def _closed_form(self, name: str) -> float | None:
        """Return the AUC that the table predicts, where the attack sees the noisy label and nothing else."""
        if name == "likelihood" and self._evidence.exact:
            return self.predicted.best_score
        two_classes = self.mechanism.classes == 2
        if "shortest_distance" not in name or not self._evidence.exact:
            return None
        if name == "shortest_distance_soft":
            return self.predicted.best_score if two_classes else None
        # Of k classes, `posterior` leaves of coordinates only their likelihood, which has ties that t has not.
        literal = two_classes or self.job.privacy.estimator != "posterior" or not self.mechanism.outcome_shape
        return self.predicted.shortest_distance if literal else None

    def _scores(self, name: str) -> Callable[[TranscriptStep], Scores]:
        classes, posterior = self.mechanism.classes, self.job.privacy.estimator == "posterior"
        match name:
            case "norm":
                return lambda seen: norm_scores(seen.gradients)
            case "spectral":
                return lambda seen: spectral_scores(seen.gradients)
            case "spectral_embeddings":
                return lambda seen: spectral_scores(seen.embeddings)
            case "shortest_distance" if classes == 2 and posterior:
                return lambda seen: (self._evidence(seen) > 0).astype(np.float64)
            case "shortest_distance" | "shortest_distance_soft" if posterior:
                return self._evidence
            case "shortest_distance" | "shortest_distance_soft" if classes > 2:
                return self._white_box.nearness
            case "shortest_distance":
                return lambda seen: (self._white_box.read(seen).weights > 0.5).astype(np.float64)
            case "shortest_distance_soft":
                return lambda seen: self._white_box.read(seen).weights
            case "likelihood":
                return self._evidence
            case "fingerprint":
                return self._fingerprint
            case "direction":
                return DirectionAttack(joint_steps(self.transcripts), self.known)
            case "completion":
                return LearnedAttack(embedding_similarity(self._trained_parties(), self.known), self.known, classes)
        return LearnedAttack(feature_similarity(self._held_features, self.known), self.known, classes)

    def _fingerprint(self, seen: TranscriptStep) -> Scores:
        """Guess by the bits where they decide, by the recovered noisy label elsewhere."""
        received = self._white_box.of_one_member(seen).gradients
        guesses = fingerprint_attack(received, *self._white_box.both_gradients(seen))
        return np.where(guesses == UNDECIDED, self._evidence(seen) > 0, guesses).astype(np.float64)

    @cached_property
    def _white_box(self) -> WhiteBox:
        width = sum(transcript.width for transcript in self.transcripts)
        return WhiteBox.of(Trajectory(self._run.label), self.job.model, width, self.mechanism.classes)

    @cached_property
    def _evidence(self) -> Evidence:
        return Evidence(self._white_box, self.mechanism, self.job.privacy.estimator)

    @cached_property
    def known(self) -> KnownLabels:
        """The labels that some attackers know."""
        if self._known is not None:
            return self._known
        rows = np.unique(np.concatenate([seen.rows for seen in self.transcripts[0]]))
        return draw_known(rows, self.true_labels, _KNOWN_PER_CLASS)

    @cached_property
    def _held_features(self) -> Mapping[str, Features]:
        if self._features is not None:
            return self._features
        return {name: load_feature_party(self.job.data, name).features for name in self._parties}

    def _trained_parties(self) -> dict[str, FeatureParty]:
        parties = {}
        for name, held in self._held_features.items():
            if self.job.model.wide:
                held = newly_scored_features(held, load_wide(self._run.party(name)))
            parties[name] = build_feature_party(self.job, name, held)
            parties[name].bottom.load_state_dict(load_file(self._run.party(name) / "bottom.safetensors"))
        return parties
