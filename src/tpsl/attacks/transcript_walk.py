"""A walk over a transcript that runs and scores several attacks, one step in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tpsl.attacks.scoring import AttackResult, Evaluation, ScoredBy, Scores
from tpsl.progress import Progress, no_progress
from tpsl.run.transcript import Transcript, TranscriptStep

Labels = npt.NDArray[np.int64]


class AttackError(ValueError):
    """An attack that cannot be run; the message names it and says why."""


Scorer = Callable[[TranscriptStep], Scores]
"""From what was seen in a step to a score for each record: `[n]`, larger is class 1, or `[n, k]`."""


@dataclass(frozen=True)
class PreparedAttack:
    """An attack on one run, ready to score its steps."""

    name: str
    needs: str
    score: Scorer
    hard: bool = False
    closed_form: float | None = None
    scored_by: ScoredBy = "noisy label and features"


def joint_steps(transcripts: Sequence[Transcript]) -> Iterator[TranscriptStep]:
    """Return what feature parties together saw, step by step: side by side, as the label party's top half reads it."""
    for parts in zip(*transcripts, strict=True):
        if len(parts) == 1:
            yield parts[0]
            continue
        embeddings = np.concatenate([part.embeddings for part in parts], axis=1)
        gradients = np.concatenate([part.gradients for part in parts], axis=1)
        yield TranscriptStep(parts[0].step, parts[0].rows, embeddings, gradients)


def evaluate_attacks(
    steps: Iterable[TranscriptStep],
    attacks: Sequence[PreparedAttack],
    true_labels: Labels,
    *,
    leave_out: Labels | None = None,
    skip: int = 0,
    progress: Progress = no_progress,
    total: int = 0,
) -> tuple[AttackResult, ...]:
    """Run attacks over the steps of a transcript, one step in memory at a time, and score them; ceilings are left out.

    `true_labels` are those of all rows of the table. Guesses do not count on the rows in `leave_out`, whose labels the
    attacker knows, and in the first `skip` steps.
    """
    evaluations = [Evaluation(hard=attack.hard) for attack in attacks]
    seen_before = np.zeros(len(true_labels), dtype=np.int32)
    counts = np.ones(len(true_labels), dtype=bool)
    if leave_out is not None:
        counts[leave_out] = False
    for done, seen in enumerate(steps, 1):
        if seen.rows.max(initial=-1) >= len(true_labels):
            raise AttackError(f"step {seen.step} has row {seen.rows.max()}, but there are {len(true_labels)} labels")
        epoch = int(seen_before[seen.rows[0]])
        seen_before[seen.rows] += 1
        if done > skip:
            scored = counts[seen.rows]
            labels = true_labels[seen.rows[scored]]
            for attack, evaluation in zip(attacks, evaluations, strict=True):
                evaluation.add(attack.score(seen)[scored], labels, epoch)
        progress(done, total, "attacking")
    return tuple(
        evaluation.result(attack.name, attack.needs, closed_form=attack.closed_form, scored_by=attack.scored_by)
        for attack, evaluation in zip(attacks, evaluations, strict=True)
    )
