"""The audit: train the user's job on canaries, attack the transcript, and bound ε from below.

Why the bound holds: if the noisy label of a record is ε-DP and everything else is computed from noisy labels, then,
given all that the attacker sees, its guess of a fair-coin label is right with probability at most `e^ε / (1 + e^ε)`,
independently for each canary. Which canaries it guesses it may choose by what it sees. So among n guesses the number of
right ones is at most binomial, and a Clopper-Pearson bound on its rate gives one on ε. With δ > 0 it has to guess every
canary, and the rate is at most `(e^ε + δ) / (1 + e^ε)`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.attacks.attack import joint_steps
from tpsl.attacks.evidence import Evidence
from tpsl.attacks.white_box import WhiteBox
from tpsl.audit.binomial import clopper_pearson_lower, tail_probability
from tpsl.audit.canaries import Planted, plant_canaries
from tpsl.audit.folder import new_folder
from tpsl.data.dataset import Dataset, load
from tpsl.mechanisms import secure_words, seeded_words
from tpsl.training.build import LabelPartyBuilder, build_label_party
from tpsl.training.job import Job
from tpsl.training.loop import ALL_STEPS, Notice, Progress, train
from tpsl.training.transcript import Trajectory, Transcript

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
    """ε is at least this, at the stated confidence."""
    confidence: float
    passed: bool
    """The bound does not exceed the claim. A sound mechanism fails by chance in at most `1 - confidence` of audits."""
    canaries: int
    guessed: int
    right: int
    accuracy: float
    p_value: float
    """If the claim were true, so many right guesses would have at most this probability."""
    noise_changed: float
    """The share of canaries whose noisy label was not the same at each appearance; 0 if noise is drawn once.

    NaN where noisy labels cannot be read exactly: k classes with noise on each coordinate, partly hidden by softmax.
    """
    mechanism: str
    estimator: str
    draws: int
    epochs: int

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able data; an infinite ε and what does not exist become null."""
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in asdict(self).items()
        }


def audit(
    job: Job,
    folder: Path,
    *,
    canaries: int = 20_000,
    confidence: float = 0.95,
    seed: int | None = None,
    data: Dataset | None = None,
    make_label_party: LabelPartyBuilder = build_label_party,
    progress: Progress = lambda done, total, note: None,
    notice: Notice = lambda text: None,
) -> AuditResult:
    """Bound the ε of a job from below, at the label party, in a new folder with a vault of its own.

    Canaries are training records whose labels are replaced by fair coins; a job with fewer training records uses all
    of them. The strongest attack reads the noisy label of each canary off every step in which it appears. Labels that
    are no canaries get a further release in the folder's vault: the folder is the label party's and must not leave it.
    A `seed` repeats the choice of canaries and their coins. `make_label_party` makes the label party that is audited.
    """
    if canaries < 1:
        raise ValueError(f"an audit needs at least one canary, not {canaries}")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"a confidence lies between 0 and 1, not at {confidence!r}")
    new_folder(folder)
    words = secure_words() if seed is None else seeded_words(seed, "canaries")
    planted = plant_canaries(load(job.data) if data is None else data, canaries, words)
    run = folder / "run"
    result = train(
        job,
        run,
        record_steps=ALL_STEPS,
        progress=progress,
        notice=notice,
        data=planted.data,
        make_label_party=make_label_party,
    )
    notice(f"attacking {len(planted.rows):,} canaries")
    evidence, noise_changed = _evidence(job, run, planted)
    if result.delta:
        guessed = np.ones(len(evidence), dtype=bool)
        evidence = np.where(evidence == 0, (words.words(len(evidence)) & np.uint64(1)) - 0.5, evidence)
    else:
        guessed = _worth_guessing(evidence, confidence)
    right = int(((evidence[guessed] > 0) == (planted.coins[guessed] == 1)).sum())
    trials = int(guessed.sum())
    rate = clopper_pearson_lower(right, trials, confidence) if trials else 0.0
    bound = math.log((rate - result.delta) / (1.0 - rate)) if rate > (1.0 + result.delta) / 2 else 0.0
    allowed = 1.0
    if math.isfinite(result.epsilon):
        allowed = 1.0 - (1.0 - result.delta) / (1.0 + math.exp(result.epsilon))
    return AuditResult(
        claimed=result.epsilon,
        delta=result.delta,
        lower_bound=bound,
        confidence=confidence,
        passed=bound <= result.epsilon,
        canaries=len(planted.rows),
        guessed=trials,
        right=right,
        accuracy=right / trials if trials else math.nan,
        p_value=tail_probability(right, trials, allowed) if trials else 1.0,
        noise_changed=noise_changed,
        mechanism=result.mechanism,
        estimator=result.estimator,
        draws=result.draws,
        epochs=result.epochs,
    )


def _evidence(job: Job, run: Path, planted: Planted) -> tuple[Floats, float]:
    """Return each canary's evidence for label 1 against 0 over all its appearances, and the share that changed.

    Noise drawn once tells the same at each appearance, which is worth no more than one. Noise drawn anew tells
    something new each time, and the evidence adds up.
    """
    transcripts = [Transcript(run / name / "transcript") for name in planted.data.feature_parties]
    width, classes = sum(transcript.width for transcript in transcripts), planted.data.classes
    white_box = WhiteBox.of(Trajectory(run / "label"), job.model, width, classes)
    read = Evidence(white_box, job.privacy.build(classes), job.privacy.estimator)
    total, times = np.zeros(len(planted.data)), np.zeros(len(planted.data))
    lowest, highest = np.full(len(planted.data), np.inf), np.full(len(planted.data), -np.inf)
    for seen in joint_steps(transcripts):
        found = read(seen)
        evidence = found if found.ndim == 1 else found[:, 1] - found[:, 0]
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


def _worth_guessing(evidence: Floats, confidence: float) -> npt.NDArray[np.bool_]:
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
