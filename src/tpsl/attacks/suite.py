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

`ATTACKS` says what each attacker has. With several feature parties the attacker is all of them together.

Each attack stands beside the ceiling of its own kind of attacker. One that scores by the noisy label alone cannot pass
what ε allows. Gradients and embeddings also carry what features say about the label, which ε does not bound: attacks
that use them stand beside the AUC of noisy label and best prediction from features together, computed at the label
party on the records of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from safetensors.torch import load_file

from tpsl.attacks.attack import Attack, AttackError, Labels, evaluate_attacks, joint_steps
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
from tpsl.attacks.noisy_label import NoisyLabelReader
from tpsl.attacks.report import AttackReport
from tpsl.attacks.scoring import Ceiling, ScoredBy, Scores
from tpsl.attacks.white_box import WhiteBox
from tpsl.attacks.with_features import (
    ReadTranscript,
    RowScores,
    embeddings_as_features,
    noisy_label_with_features,
    read_transcript,
    side_by_side,
)
from tpsl.data.dataset import feature_party_names, load_feature_party, load_label_party
from tpsl.data.errors import DataError
from tpsl.data.features import Features
from tpsl.data.true_labels import TrueLabels, reveal
from tpsl.mechanisms import auc_ceiling, predicted_auc
from tpsl.party import FeatureParty
from tpsl.progress import Progress, no_progress
from tpsl.training.build import build_feature_party
from tpsl.training.run_folder import RunFolder
from tpsl.training.transcript import Trajectory, Transcript, TranscriptStep
from tpsl.training.wide import load_wide, newly_scored_features
from tpsl.transport.peers import LABEL_PARTY

ATTACKS: dict[str, str] = {
    "norm": "transcript",
    "spectral": "transcript",
    "spectral_embeddings": "transcript",
    "shortest_distance": "transcript+weights",
    "shortest_distance_soft": "transcript+weights",
    "likelihood": "transcript+weights",
    "fingerprint": "transcript+weights",
    "noisy_label_with_features": "transcript+weights+features",
    "direction": "transcript+known labels",
    "completion": "features+trained half+known labels",
    "no_transcript": "features+known labels",
}
"""What each attacker has, by the name of the attack."""

_FOR_K_CLASSES = (
    "shortest_distance",
    "shortest_distance_soft",
    "likelihood",
    "noisy_label_with_features",
    "completion",
    "no_transcript",
)
_READERS = ("shortest_distance", "shortest_distance_soft", "likelihood", "fingerprint")
"""The attacks that score by the noisy label alone, where it can be read."""
_KNOWN_PER_CLASS = 20


def run_attacks(
    run: Path,
    true_labels: TrueLabels,
    *,
    known: KnownLabels | None = None,
    which: Sequence[str] | None = None,
    features: Mapping[str, Features] | None = None,
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
    names = tuple(ATTACKS if which is None else which)
    for name in names:
        if name not in ATTACKS:
            raise AttackError(f"unknown attack {name!r}; known are {', '.join(ATTACKS)}")
    suite = _Suite(RunFolder(run), true_labels, known, features)
    reasons = {name: suite.impossible(name) for name in names}
    not_run = {name: reason for name, reason in reasons.items() if reason is not None}
    for name, reason in not_run.items() if which is not None else ():
        raise AttackError(f"{run}: the attack {name!r} {reason}")
    if skip >= suite.total:
        raise AttackError(f"{run}: has {suite.total} recorded steps, so none is left after skipping {skip}")
    progress(0, suite.total, "preparing")
    attacks = [suite.attack(name) for name in names if name not in not_run]
    attacker_knows = suite.known if known is not None or any("known" in attack.needs for attack in attacks) else None
    best = suite.best_scores({attack.scored_by for attack in attacks}) if ceilings else {}
    results = evaluate_attacks(
        joint_steps(suite.transcripts),
        [*attacks, *(Attack(f"best score from {kind}", "", score) for kind, score in best.items())],
        suite.true_labels,
        leave_out=None if attacker_knows is None else attacker_knows.rows,
        skip=skip,
        progress=progress,
        total=suite.total,
    )
    found = {kind: Ceiling.estimated(r) for kind, r in zip(best, results[len(attacks) :], strict=True)}
    found |= suite.proved_ceilings
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
        predicted_from=suite.evaluated.predicted_from if best else (),
        attacks=tuple(r.beside(found[r.scored_by]) if r.scored_by in found else r for r in results[: len(attacks)]),
        not_run=not_run,
    )


class _Suite:
    """One run as its attackers see it, and the attacks on it."""

    def __init__(
        self, run: RunFolder, labels: TrueLabels, known: KnownLabels | None, features: Mapping[str, Features] | None
    ) -> None:
        self._run, self.true_labels, self._known, self._features = run, reveal(labels), known, features
        self.job = run.job()
        self._parties = feature_party_names(self.job.data)
        self.transcripts = [Transcript(run.party(name) / "transcript") for name in self._parties]
        self.total, self.records = len(self.transcripts[0]), self.transcripts[0].records
        self._finished = run.result()
        self.mechanism = self.job.privacy.build(labels.classes)
        self.predicted = predicted_auc(self.mechanism)
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
        if name not in _READERS:
            scored_by: ScoredBy = "features" if name == "no_transcript" else "noisy label and features"
            return Attack(name, ATTACKS[name], self._scores(name), scored_by=scored_by)
        return Attack(
            name,
            ATTACKS[name],
            self._reader.scores(name),
            hard=name == "shortest_distance",
            closed_form=self._reader.closed_form(name),
            scored_by="noisy label" if self._reader.exact else "noisy label and features",
        )

    @property
    def proved_ceilings(self) -> dict[ScoredBy, Ceiling]:
        """The ceilings that follow from ε and δ; without noise the label itself can be read."""
        kinds: tuple[ScoredBy, ...] = ("noisy label", "noisy label and features")
        return {kind: Ceiling.proved(self.ceiling) for kind in kinds[: 1 if self.ceiling < 1 else 2]}

    def best_scores(self, kinds: Collection[ScoredBy]) -> dict[ScoredBy, RowScores]:
        """Return the best scores at hand for those of these kinds of attackers whose ceiling is not proved."""
        best: dict[ScoredBy, RowScores] = {}
        if "features" in kinds:
            best["features"] = self.evaluated.features_alone()
        if "noisy label and features" in set(kinds) - set(self.proved_ceilings):
            exact = self._white_box.fits() and self._reader.exact
            draws = self.job.privacy.draws
            best["noisy label and features"] = self.evaluated.with_noisy_labels(self.mechanism, draws, exact=exact)
        return best

    @cached_property
    def evaluated(self) -> Evaluated:
        """The records of the transcript as the label party knows them."""
        read = self._read if self._white_box.fits() else None
        try:
            parties, features_are = list(self._held_features.values()), "the features"
        except DataError:  # of a run of two organisations the label party has what was sent
            sent = embeddings_as_features(lambda: joint_steps(self.transcripts), len(self.true_labels))
            parties, features_are = [sent], "the embeddings"
        if read is None:  # gradients depend on the label party's own features too
            own = load_label_party(self.job.data).records.features
            parties += [] if own is None else [own]
        labels, classes = self.true_labels[self._rows], self.mechanism.classes
        return Evaluated(self._rows, labels, classes, side_by_side(parties), features_are, read)

    def _scores(self, name: str) -> Callable[[TranscriptStep], Scores]:
        classes = self.mechanism.classes
        match name:
            case "norm":
                return lambda seen: norm_scores(seen.gradients)
            case "spectral":
                return lambda seen: spectral_scores(seen.gradients)
            case "spectral_embeddings":
                return lambda seen: spectral_scores(seen.embeddings)
            case "noisy_label_with_features":
                features = side_by_side(self._held_features.values())
                return noisy_label_with_features(self._read, features, self.mechanism)
            case "direction":
                return DirectionAttack(joint_steps(self.transcripts), self.known)
            case "completion":
                return LearnedAttack(embedding_similarity(self._trained_parties(), self.known), self.known, classes)
        return LearnedAttack(feature_similarity(self._held_features, self.known), self.known, classes)

    @cached_property
    def _white_box(self) -> WhiteBox:
        own = self._run.own_parts(LABEL_PARTY)
        return WhiteBox(self.job, self._parties, self.mechanism.classes, Trajectory(self._run.label), own)

    @cached_property
    def _reader(self) -> NoisyLabelReader:
        return NoisyLabelReader(self._white_box, self.mechanism, self.job.privacy.estimator)

    @cached_property
    def _read(self) -> ReadTranscript:
        steps = joint_steps(self.transcripts)
        return read_transcript(steps, self._rows, self._reader.evidence, self.mechanism.classes)

    @cached_property
    def _rows(self) -> Labels:
        rows = np.unique(np.concatenate([seen.rows for seen in self.transcripts[0]]))
        if rows[-1] >= len(self.true_labels):
            raise AttackError(f"the transcript has row {rows[-1]}, but there are {len(self.true_labels)} labels")
        return rows

    @cached_property
    def known(self) -> KnownLabels:
        """The labels that some attackers know."""
        if self._known is not None:
            return self._known
        return draw_known(self._rows, self.true_labels, _KNOWN_PER_CLASS)

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
            parties[name] = build_feature_party(self.job, name, held, own=self._run.own_parts(name))
            parties[name].bottom.load_state_dict(load_file(self._run.party(name) / "bottom.safetensors"))
        return parties
