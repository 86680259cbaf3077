"""The shortest-distance attack (section 3.1): the white-box attacker computes `g_0` and `g_1` and sees which is nearer.

It reads what such an attacker has: its own transcript, and the label party's top half before each step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tpsl.attacks.white_box import WhiteBox
from tpsl.models import Top
from tpsl.training.transcript import Trajectory, Transcript


@dataclass(frozen=True)
class ShortestDistance:
    """The attack's guesses: for each record in the transcript its row, the hard guess and the soft score."""

    rows: npt.NDArray[np.int64]
    guesses: npt.NDArray[np.int64]
    """`ȳ`: 0 if `‖g̃ - g_0‖ ≤ ‖g̃ - g_1‖`, else 1."""
    scores: npt.NDArray[np.float32]
    """`‖g̃ - g_0‖² - ‖g̃ - g_1‖²` in units of `‖g_1 - g_0‖²`: where g̃ lies between the two gradients."""


def shortest_distance_attack(transcript: Transcript, trajectory: Trajectory, top: Top) -> ShortestDistance:
    """Attack a transcript batch by batch; `top` is any network of the label party's shape, its weights are replaced.

    For two classes, and for a label party whose only input is this party's cut. Where the cut does not influence the
    logit at all, g_0 = g_1: the attack sees nothing and guesses 0.
    """
    white_box = WhiteBox(trajectory, top)
    rows, scores = [], []
    for seen in transcript:
        rows.append(seen.rows)
        scores.append((2 * white_box.read(seen).weights - 1).astype(np.float32))
    position = np.concatenate(scores)
    return ShortestDistance(np.concatenate(rows), (position > 0).astype(np.int64), position)
