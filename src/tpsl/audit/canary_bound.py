"""Canaries: train the user's job on fair-coin labels, attack the transcript, and bound ε from below.

Why the bound holds: if the noisy label of a record is ε-DP and everything else is computed from noisy labels, then,
given all that the attacker sees, its guess of a fair-coin label is right with probability at most `e^ε / (1 + e^ε)`,
independently for each canary. Which canaries it guesses it may choose by what it sees. So among n guesses the number of
right ones is at most binomial, and a Clopper-Pearson bound on its rate gives one on ε. With δ > 0 it has to guess every
canary, and the rate is at most `(e^ε + δ) / (1 + e^ε)`.

The same holds among the canaries of any class, which finds a class without noise, and whether a guess is right says
nothing about the guess for the next record, which finds noise that neighbours share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv

from tpsl.attacks.evidence import Evidence
from tpsl.attacks.transcript_walk import joint_steps
from tpsl.attacks.white_box import WhiteBox
from tpsl.audit.canaries import AuditError, Planted, features_moved, new_folder, plant_canaries
from tpsl.data.dataset import Dataset
from tpsl.data.true_labels import reveal
from tpsl.mechanisms import RandomWords, secure_words, seeded_words
from tpsl.net.messages import LABEL_PARTY
from tpsl.run.build import LabelPartyBuilder, build_label_party
from tpsl.run.job import Job
from tpsl.run.observer import UNWATCHED, Watching
from tpsl.run.one_process import ALL_STEPS, load_records, train_together
from tpsl.run.own_parts import OwnParts
from tpsl.run.run_folder import RunFolder
from tpsl.run.setup import RunSetup
from tpsl.run.transcript import Trajectory, Transcript
from tpsl.run.vaults import VaultChoice
from tpsl.vault import Vault
from tpsl.vault.cost import times
from tpsl.vault.noise_tests import LEVEL, at_least

Floats = npt.NDArray[np.float64]

_SAME = 0.02
"""Evidence counts as changed between two appearances if it moved by this share of the largest evidence seen."""
_REDRAWN = 0.01
"""From this share of changed canaries on, the noise is taken as redrawn, and each appearance as new evidence."""


@dataclass(frozen=True)
class AuditResult:
    """What was claimed and what was found."""

    claimed: float
    """The ε that the run states, over all draws; infinite without noise."""
    delta: float
    lower_bound: float
    """ε is at least this, at the stated confidence: for information, the accusation has a stricter level."""
    confidence: float
    passed: bool
    """Nothing is accused. Sound code is accused by chance once in a million audits, whatever the confidence."""
    canaries: int
    guessed: int
    right: int
    accuracy: float
    p_value: float
    """If the claim were true, this many right guesses would have at most this probability."""
    noise_changed: float
    """The share of canaries whose noisy label was not the same at each appearance; 0 if noise is drawn once.

    NaN where noisy labels cannot be read exactly: k classes with noise on each coordinate, partly hidden by softmax.
    """
    mechanism: str
    estimator: str
    draws: int
    epochs: int
    neighbours: int = 0
    """Pairs of neighbouring records whose guesses were compared: those in which both noisy labels could be read."""
    neighbours_p_value: float = 1.0
    """If the noise of neighbours were independent, guesses so alike would have this probability."""
    class_p_value: float = 1.0
    """If the claim were true of every class, the best guessed class would be guessed so well with this probability."""
    accusations: tuple[str, ...] = ()
    """What sound code does not show, a sentence each."""


def audit(
    job: Job,
    folder: Path,
    *,
    canaries: int = 20_000,
    confidence: float = 0.95,
    seed: int | None = None,
    data: Dataset | None = None,
    own: Mapping[str, OwnParts] = MappingProxyType({}),
    watching: Watching = UNWATCHED,
) -> AuditResult:
    """Bound the ε of a job from below, at the label party, in a new folder with a vault of its own.

    Canaries are training records whose labels are replaced by fair coins; a job with fewer training records uses all
    of them. The strongest attack reads the noisy label of each canary off every step in which it appears. Labels that
    are no canaries get a further release in the folder's vault: the folder is the label party's and must not leave it.
    Guarantee: a job that keeps its ε with independent noise is accused with probability at most `LEVEL`.
    A `seed` repeats the choice of canaries and their coins. `own` is what each party brings itself, by its name.
    """
    setup = RunSetup(job, RunFolder(folder / "run"), own, record_steps=ALL_STEPS, watching=watching)
    words = secure_words() if seed is None else seeded_words(seed, "canaries")
    return audit_run(setup, canaries, confidence, words, data)


def audit_run(
    setup: RunSetup, canaries: int, confidence: float, words: RandomWords, data: Dataset | None = None
) -> AuditResult:
    """Do what `audit` does for a run that is not there yet, in a new folder; it may start from an earlier one.

    Where the label party has features of its own it does not: they are moved to another party, whose half is new.
    """
    if canaries < 1:
        raise ValueError(f"an audit needs at least one canary, not {canaries}")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"a confidence lies between 0 and 1, not at {confidence!r}")
    if not setup.job.trains:
        why = "it releases no labels (gradients: none)" if not setup.job.releases else "no gradients cross in it"
        raise AuditError(f"the job has no coins to guess: {why}")
    new_folder(setup.run.path.parent)
    if data is None:
        data = load_records(setup.job, setup.own, encoders=setup.encoders())
    planted = plant_canaries(data, canaries, words)
    if data.label_features is not None:
        job, own = features_moved(setup.job, setup.own)
        setup = replace(setup, job=job, own=own, start=None)
    return attack_canaries(setup, planted, confidence, words)


def attack_canaries(
    setup: RunSetup,
    planted: Planted,
    confidence: float,
    words: RandomWords,
    make_label_party: LabelPartyBuilder = build_label_party,
) -> AuditResult:
    """Train on data with canaries, with a vault beside the run; guess their coins and judge.

    `make_label_party` makes the label party that is put to the test.
    """
    vault = setup.run.path.parent / "vault"
    _store(vault, planted.data)
    choice = VaultChoice(vault, scratch=True)
    result = train_together(setup, choice, planted.data, make_label_party)
    setup.watching.notice(f"attacking {len(planted.rows):,} canaries")
    evidence, noise_changed = _evidence(setup, planted)
    claim = Claim.of(setup.job, planted.data.classes)
    coins = guess_coins(evidence, planted, claim, confidence, words)
    return judged(
        AuditResult(
            claimed=claim.epsilon,
            delta=claim.delta,
            confidence=confidence,
            passed=True,
            canaries=len(planted.rows),
            noise_changed=noise_changed,
            mechanism=result.mechanism,
            estimator=result.estimator,
            draws=result.draws,
            epochs=result.epochs,
            # Where noisy labels are read with errors, those of records that look alike may have errors in common.
            **(coins if not math.isnan(noise_changed) else {**coins, "neighbours": 0, "neighbours_p_value": 1.0}),
        )
    )


@dataclass(frozen=True)
class Claim:
    """(ε, δ) as a job states them of its noisy labels; canaries whose labels leave in a statistic cannot be read."""

    epsilon: float
    delta: float

    @classmethod
    def of(cls, job: Job, classes: int) -> Claim:
        """Return the claim of a job, over all draws."""
        mechanism, draws = job.privacy.build(classes), job.privacy.draws
        return cls(times(mechanism.epsilon, draws), times(mechanism.delta, draws))

    @property
    def success(self) -> float:
        """The probability of guessing a coin right that the claim allows."""
        return 1.0 if math.isinf(self.epsilon) else 1.0 - (1.0 - self.delta) / (1.0 + math.exp(self.epsilon))


def guess_coins(
    evidence: Floats, planted: Planted, claim: Claim, confidence: float, words: RandomWords
) -> dict[str, Any]:
    """Guess the coins by their evidence; return the bound on ε and how probable it is that a sound job does so well."""
    # Which records cannot be read may depend on features, and so be alike for neighbours: these pairs say nothing.
    pairs = planted.neighbours[(evidence[planted.neighbours] != 0).all(axis=1)]
    if claim.delta:
        guessed = np.ones(len(evidence), dtype=bool)
        evidence = np.where(evidence == 0, (words.words(len(evidence)) & np.uint64(1)) - 0.5, evidence)
    else:
        guessed = worth_guessing(evidence, confidence)
    right = (evidence > 0) == (planted.coins == 1)
    successes, trials = int(right[guessed].sum()), int(guessed.sum())
    return {
        "lower_bound": epsilon_at_least(successes, trials, claim.delta, confidence),
        "guessed": trials,
        "right": successes,
        "accuracy": successes / trials if trials else math.nan,
        "p_value": float(at_least(successes, trials, claim.success)),
        "class_p_value": _class_p_value(right, guessed, planted, claim.success),
        "neighbours": len(pairs),
        "neighbours_p_value": _neighbours_p_value(right, reveal(planted.data.labels)[planted.rows], pairs),
    }


def epsilon_at_least(right: int, guessed: int, delta: float, confidence: float) -> float:
    """Return the ε that so many right guesses of fair coins prove at least, at this confidence.

    With δ > 0 every coin has to be guessed.
    """
    rate = clopper_pearson_lower(right, guessed, confidence) if guessed else 0.0
    return math.log((rate - delta) / (1.0 - rate)) if rate > (1.0 + delta) / 2 else 0.0


def clopper_pearson_lower(right: int, trials: int, confidence: float) -> float:
    """Return the one-sided lower bound on the probability of being right (Clopper and Pearson 1934).

    Guarantee: whatever the probability, the bound lies above it in at most a share `1 - confidence` of all experiments.
    """
    if not 0 <= right <= trials or trials < 1:
        raise ValueError(f"{right} of {trials} guesses cannot be right")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"a confidence lies between 0 and 1, not at {confidence!r}")
    return float(betaincinv(right, trials - right + 1, 1.0 - confidence)) if right else 0.0


def _store(vault: Path, data: Dataset) -> None:
    """Make a vault of the training labels, all there before the first step, also where a job has them arrive."""
    records = data.label_side.records
    batch = (records.training_ids, reveal(data.labels)[data.train], records.training_units)
    Vault.create(vault, classes=data.classes, batches=[batch], counts_people=records.ids_are_new, scratch=True).close()


def judged(found: AuditResult) -> AuditResult:
    """Return the result with its accusations: what sound code shows with probability `LEVEL` at most, in all."""
    share = LEVEL / 3
    accusations = []
    if found.p_value < share:
        accusations.append(
            f"the audit found ε ≥ {found.lower_bound:.4f}, more than the claimed {found.claimed:.6g}: "
            f"{found.right:,} of {found.guessed:,} coins were guessed right "
            f"(a mechanism that keeps its claim does so well with probability {found.p_value:.2g})"
        )
    if found.class_p_value < share:
        accusations.append(
            f"the coins of one class are guessed better than the claimed ε = {found.claimed:.6g} allows "
            f"(a mechanism that keeps its claim does so well with probability {found.class_p_value:.2g})"
        )
    if found.neighbours_p_value < share:
        accusations.append(
            f"the noise of neighbouring records is not independent: in {found.neighbours:,} pairs, guesses are right "
            f"together as independent noise has it with probability {found.neighbours_p_value:.2g}"
        )
    return replace(found, passed=not accusations, accusations=tuple(accusations))


def _class_p_value(
    right: npt.NDArray[np.bool_], guessed: npt.NDArray[np.bool_], planted: Planted, success: float
) -> float:
    """Return how probable it is that the coins with some class on one side are guessed so well; all classes counted.

    For two classes every coin has both, so there is nothing to add.
    """
    classes = planted.data.classes
    if classes == 2:
        return 1.0
    of_class = (guessed & (planted.sides == label).any(axis=1) for label in range(classes))
    found = (float(at_least(right[chosen].sum(), chosen.sum(), success)) for chosen in of_class)
    return min(1.0, classes * min(found))


def _neighbours_p_value(
    right: npt.NDArray[np.bool_], labels: npt.NDArray[np.int64], pairs: npt.NDArray[np.int64]
) -> float:
    """Return how probable it is, given how many guesses are right, that neighbours are right together so often.

    Fisher's exact test, two-sided; pairs with equal labels apart from the others, because one random word may move two
    labels to opposite sides.
    """
    from scipy.stats import hypergeom  # takes a second to import

    p_values = [1.0]
    for equal in (False, True):
        first, second = right[pairs[(labels[pairs[:, 0]] == labels[pairs[:, 1]]) == equal]].T
        counts = (len(first), int(first.sum()), int(second.sum()))
        together = int((first & second).sum())
        if len(first):
            p_values.append(2 * min(hypergeom.sf(together - 1, *counts), hypergeom.cdf(together, *counts)))
    return float(min(1.0, 2 * min(p_values)))


def _evidence(setup: RunSetup, planted: Planted) -> tuple[Floats, float]:
    """Return each canary's evidence for coin 1 against 0 over all its appearances, and the share that changed.

    Noise drawn once tells the same at each appearance, which is worth no more than one. Noise drawn again tells
    something new each time, and the evidence adds up.
    """
    job, run, parties = setup.job, setup.run, list(planted.data.feature_parties)
    transcripts = [Transcript(run.party(name) / "transcript") for name in parties]
    classes, own = planted.data.classes, setup.own_parts(LABEL_PARTY)
    white_box = WhiteBox(job, parties, classes, Trajectory(run.label), own)
    read = Evidence(white_box, job.privacy.build(classes), job.privacy.estimator)
    total, times = np.zeros(len(planted.data)), np.zeros(len(planted.data))
    lowest, highest = np.full(len(planted.data), np.inf), np.full(len(planted.data), -np.inf)
    sides = np.tile(np.arange(2), (len(planted.data), 1))
    sides[planted.rows] = planted.sides
    for seen in joint_steps(transcripts):
        evidence = read(seen)
        if evidence.ndim == 2:
            evidence = np.subtract(*np.take_along_axis(evidence, sides[seen.rows], axis=1).T[::-1])
        rows, evidence = seen.rows[evidence != 0], evidence[evidence != 0]
        total[rows] += evidence
        times[rows] += 1
        lowest[rows], highest[rows] = np.minimum(lowest[rows], evidence), np.maximum(highest[rows], evidence)
    total, times, lowest, highest = (array[planted.rows] for array in (total, times, lowest, highest))
    readable = times > 0
    if not readable.any() or not read.exact:
        return total / np.maximum(times, 1), math.nan
    same = _SAME * max(float(np.abs(lowest[readable]).max()), float(np.abs(highest[readable]).max()))
    changed = float((highest[readable] - lowest[readable] > same).mean())
    return (total if changed > _REDRAWN else total / np.maximum(times, 1)), changed


def worth_guessing(evidence: Floats, confidence: float) -> npt.NDArray[np.bool_]:
    """Choose, by the evidence alone, the canaries to guess: where the bound can be expected to be highest.

    A few near-certain guesses prove more than many doubtful ones, but too few prove nothing.
    """
    strength = np.abs(evidence).round(3)
    thresholds = np.unique(strength[strength > 0])
    if not len(thresholds):
        return np.zeros(len(evidence), dtype=bool)
    ordered = np.sort(strength)[::-1]
    trials = np.searchsorted(-ordered, -thresholds, side="right")
    rate = np.cumsum(1.0 / (1.0 + np.exp(-ordered)))[trials - 1] / trials
    expected = rate - NormalDist().inv_cdf(confidence) * np.sqrt(rate * (1.0 - rate) / trials)
    chosen: npt.NDArray[np.bool_] = strength >= thresholds[int(expected.argmax())]
    return chosen
