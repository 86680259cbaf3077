"""The shortest-distance attack (section 3.1): the white-box attacker computes `g_0` and `g_1` and sees which is nearer.

It reads what such an attacker has: its own transcript, and the label party's top half before each step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tpsl.models import Top
from tpsl.perturb import BinaryCrossEntropy
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

    For two classes, and for a label party whose only input is this party's cut.
    """
    rows, guesses, scores = [], [], []
    for seen in transcript:
        trajectory.load_into(top, seen.step)
        position = _position(top, torch.from_numpy(seen.embeddings), torch.from_numpy(seen.gradients))
        rows.append(seen.rows)
        guesses.append((position > 0).numpy().astype(np.int64))
        scores.append(position.numpy())
    return ShortestDistance(np.concatenate(rows), np.concatenate(guesses), np.concatenate(scores))


def _position(top: Top, embeddings: Tensor, received: Tensor) -> Tensor:
    """Return `(‖g̃ - g_0‖² - ‖g̃ - g_1‖²) / ‖g_1 - g_0‖² = ⟨g_1 - g_0, 2g̃ - g_0 - g_1⟩ / ‖g_1 - g_0‖²`."""
    embeddings = embeddings.requires_grad_()
    z = top(embeddings)
    (slope,) = torch.autograd.grad(z.sum(), embeddings)
    v_0, v_1 = BinaryCrossEntropy().derivatives(z.detach())
    difference = (v_1 - v_0)[:, None] * slope
    middle = ((v_0 + v_1) / 2)[:, None] * slope
    distance = difference.square().sum(dim=1)
    # Where the cut does not influence the logit at all, g_0 = g_1: the attack sees nothing and guesses 0.
    tiny = torch.finfo(distance.dtype).tiny
    position: Tensor = 2 * (difference * (received - middle)).sum(dim=1) / distance.clamp_min(tiny)
    return position
