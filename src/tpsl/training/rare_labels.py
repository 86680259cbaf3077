"""What a label party should know before it releases labels of which one class is rare: noise may drown it.

Everything here is computed from true labels. It is for the label party's eyes, before a port is opened; none of it may
cross the border, not even as time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tpsl.mechanisms import Mechanism
from tpsl.mechanisms.effective_labels import effective_labels_of_class
from tpsl.training.job import Job, PrivacyConfig

ENOUGH_OF_A_CLASS = 10.0
"""Clean labels of the rarest class that all noisy ones must be worth, or a learner finds little.

Measured by logistic regressions of 10 and 40 columns, 2,000 to 128,000 records, 0.5 to 50 % positives and ε from 0.5 to
4, whose AUC without noise is 0.7 and 0.8. Of the AUC above 0.5 that clean labels give, noisy ones that were worth 3 to
10 of the rare class kept 0.46 on average, and in 43 % of the runs the interval of the test AUC reached 0.5; worth 10 to
30 they kept 0.74 (18 %), worth 30 to 100 0.88 (5 %), and worth less than 3 they kept 0.15 (82 %).
"""
_EPSILONS = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
"""What is proposed: the smallest that is enough."""


def rare_label_warning(privacy: PrivacyConfig, classes: Mapping[str, int], *, split: bool) -> str | None:
    """Return what to expect of noisy labels if the rarest class drowns in the noise, and what helps; None if not.

    `classes` are the training records of each class, by its name. With `split` training a statistic helps, too.
    """
    known = {name: count for name, count in classes.items() if count}
    if len(known) < 2 or privacy.mechanism == "none":
        return None
    mechanism, counts = privacy.build(len(classes)), list(classes.values())
    rarest = min(known, key=known.__getitem__)
    number = list(classes).index(rarest)
    worth = effective_labels_of_class(mechanism, counts, number, privacy.draws)
    if worth >= ENOUGH_OF_A_CLASS:
        return None
    means = [
        *_enough_epsilon(privacy, counts, number),
        f"{math.ceil(ENOUGH_OF_A_CLASS / worth):,} times as many records",
        *(["method: statistic"] if split else []),
    ]
    return (
        f"about {known[rarest]:,} labels {rarest!r} {_fate(mechanism, counts, number)} at ε = "
        f"{privacy.draws * mechanism.epsilon:.3g}, where they are worth {_few(worth)} clean ones: expect an AUC nearer "
        f"to guessing (0.5) than to that of clean labels; use {', '.join(means[:-1])}"
        f"{' or ' if len(means) > 1 else ''}{means[-1]}"
    )


def rare_label_warning_of(job: Job, classes: Mapping[str, int]) -> str | None:
    """Return the warning for a job, with its training records of each class; None if no noisy labels of them train it.

    Labels that arrive while it runs are not counted.
    """
    is_told = job.trains and not job.has_late_labels
    return rare_label_warning(job.privacy, classes, split=not job.hands_over) if is_told else None


def _enough_epsilon(privacy: PrivacyConfig, counts: list[int], number: int) -> list[str]:
    """Return the smallest ε of a draw at which the noisy labels are worth enough, in words; nothing if none is."""
    if privacy.epsilon is None:
        return []
    for epsilon in _EPSILONS:
        mechanism = privacy.model_copy(update={"epsilon": epsilon}).build(len(counts))
        if effective_labels_of_class(mechanism, counts, number, privacy.draws) >= ENOUGH_OF_A_CLASS:
            return [f"ε ≥ {privacy.draws * epsilon:g}"]
    return []


def _fate(mechanism: Mechanism, counts: list[int], number: int) -> str:
    """Return what becomes of a class: it drowns in more false ones, where noisy labels are classes, or is too small."""
    false = mechanism.mean(0) if mechanism.classes == 2 else mechanism.mean(0)[1]
    others = (sum(counts) - counts[number]) * float(false)
    are_classes = set(np.unique(mechanism.values)) <= {0.0, 1.0}
    return f"drown in about {others:,.0f} false ones" if are_classes and others > counts[number] else "are too few"


def _few(worth: float) -> str:
    return f"{worth:.1f}" if worth >= 0.1 else "less than 0.1"
