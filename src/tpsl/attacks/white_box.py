"""What a white-box attacker reads off a received gradient: it knows the label party's weights before the step.

By section 4.2 of the paper the received gradient is `g̃ = J^T ṽ`, with J the derivative of the logits by the cut, which
the attacker can compute. For two classes J is one vector s, so `ṽ = ⟨g̃, s⟩ / ‖s‖²` and `w = σ(z) - ṽ` is the label
that the gradient was made for: t for the estimator `linear`, an affine function of t for `unbiased`, and
`σ(z + λ_t)` for `posterior`. In units of `‖g_1 - g_0‖²`, `‖g̃ - g_0‖² - ‖g̃ - g_1‖² = 2w - 1`: the shortest-distance
attack (section 3.1) guesses 1 exactly if w > ½.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tpsl.models import ModelConfig, Top
from tpsl.perturb import BinaryCrossEntropy
from tpsl.training.build import weight_generator
from tpsl.training.job import Job
from tpsl.training.transcript import Trajectory, TranscriptStep

Floats = npt.NDArray[np.float64]

_SMALLEST_DIRECTION = 1e-5
"""Directions of J that are weaker than this, against its strongest, drown in float32's rounding."""
_RECORDS_AT_ONCE = 1024
"""With k classes a record needs k gradients; a batch is taken in pieces of so many records."""


@dataclass(frozen=True)
class Reading:
    """What the gradients of one step, two classes, say to the white-box attacker."""

    step: int
    logits: Floats
    received: Floats
    """ṽ, the perturbed gradient at the logit."""
    readable: npt.NDArray[np.bool_]
    """False where the cut does not move the logit, so that nothing can be read."""

    @property
    def weights(self) -> Floats:
        """w, the label for which each gradient was made; ½ where nothing can be read."""
        return np.where(self.readable, sigmoid(self.logits) - self.received, 0.5)


class WhiteBox:
    """A copy of the label party's top half that follows its weights from step to step.

    Of a network with members it reads the first: what that member receives is the transcript of a network alone, made
    from the same noisy label as all the others.
    """

    def __init__(self, trajectory: Trajectory | None, top: Top, columns: npt.NDArray[np.int64] | None = None) -> None:
        self._trajectory = trajectory
        self._columns = columns
        self._top = top.requires_grad_(False)
        self._last: Reading | None = None

    @classmethod
    def of(cls, trajectory: Trajectory, model: ModelConfig, cut_width: int, classes: int) -> WhiteBox:
        """Return the white box of a network of this shape, with a cut of this width."""
        return cls._with(trajectory, model, cut_width, classes, torch.Generator())

    @classmethod
    def before_first_step(cls, job: Job, cut_width: int, classes: int) -> WhiteBox:
        """Return what every feature party can build from the job alone: the job's seed fixes the initial weights.

        It reads step 0. No weight of the label party has to be known or guessed for that.
        """
        generator = weight_generator(job.training.seed, "label top")
        return cls._with(None, job.model, cut_width, classes, generator)

    @classmethod
    def _with(
        cls,
        trajectory: Trajectory | None,
        model: ModelConfig,
        cut_width: int,
        classes: int,
        generator: torch.Generator,
    ) -> WhiteBox:
        if model.members == 1:
            return cls(trajectory, Top(cut_width, classes, model, generator))
        starts = range(0, cut_width, model.cut_width)  # of each party's share, which lies member after member
        columns = np.concatenate([np.arange(start, start + model.share_width) for start in starts])
        return cls(trajectory, Top(len(columns), classes, model, generator), columns)

    def fits(self) -> bool:
        """Say whether the recorded weights are those of a network of this shape."""
        try:
            self._load_weights(0)
        except RuntimeError:  # by load_state_dict, when a shape differs
            return False
        return True

    def of_one_member(self, seen: TranscriptStep) -> TranscriptStep:
        """Return what belongs to the member that is read: all of it, if there is one network."""
        if self._columns is None or seen.embeddings.shape[1] == len(self._columns):
            return seen
        return replace(seen, embeddings=seen.embeddings[:, self._columns], gradients=seen.gradients[:, self._columns])

    def read(self, seen: TranscriptStep) -> Reading:
        """Read one step, two classes; attacks that look at the same step share the work."""
        seen = self.of_one_member(seen)
        if self._last is None or self._last.step != seen.step:
            z, embeddings = self._forward(seen)
            (slope,) = torch.autograd.grad(z.sum(), embeddings)
            length = slope.square().sum(dim=1)
            readable = length > torch.finfo(length.dtype).tiny
            received = (slope * torch.from_numpy(seen.gradients)).sum(dim=1) / length.where(readable, 1)
            logits = z.detach().double().numpy()
            self._last = Reading(seen.step, logits, received.double().numpy(), readable.numpy())
        return self._last

    def both_gradients(self, seen: TranscriptStep) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return `g_0` and `g_1` of one step, two classes, to the last bit as back-propagation computes them."""
        seen = self.of_one_member(seen)
        z, embeddings = self._forward(seen)
        v_0, v_1 = BinaryCrossEntropy().derivatives(z.detach())
        (g_0,) = torch.autograd.grad(z, embeddings, v_0, retain_graph=True)
        (g_1,) = torch.autograd.grad(z, embeddings, v_1)
        return g_0.numpy(), g_1.numpy()

    def nearness(self, seen: TranscriptStep) -> Floats:
        """Return `-‖g̃ - g_j‖²` for k classes, up to a number of each record's own: shape `[n, k]`."""
        parts = []
        for z, jacobian, received in self._jacobians(seen):
            # g_j = J^T (p - e_j), so g̃ - g_j = r + J_j with r = g̃ - J^T p, and ‖r‖² is the same for every j.
            rest = received - torch.einsum("nk,nkd->nd", torch.softmax(z, dim=1), jacobian)
            parts.append(-2 * torch.einsum("nd,nkd->nk", rest, jacobian) - jacobian.square().sum(dim=2))
        return torch.cat(parts).numpy()

    def logits_and_weights(self, seen: TranscriptStep) -> tuple[Floats, Floats]:
        """Return z and `w = softmax(z) - ṽ` for k classes, ṽ by least squares from `g̃ = J^T ṽ`: both `[n, k]`.

        Where the cut moves the logits in too few directions to tell ṽ, w is NaN.
        """
        logits, weights = [], []
        for z, jacobian, received in self._jacobians(seen):
            # The k entries of ṽ sum to 0: the last one is minus the sum of the others.
            directions = (jacobian[:, :-1] - jacobian[:, -1:]).transpose(1, 2)
            solved = torch.linalg.lstsq(directions, received.unsqueeze(2), rcond=_SMALLEST_DIRECTION, driver="gelsy")
            others = solved.solution.squeeze(2)
            found = torch.cat([others, -others.sum(dim=1, keepdim=True)], dim=1)
            found[solved.rank < z.shape[1] - 1] = torch.nan
            logits.append(z)
            weights.append(torch.softmax(z, dim=1) - found)
        return torch.cat(logits).numpy(), torch.cat(weights).numpy()

    def _jacobians(self, seen: TranscriptStep) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Return logits, J and received gradients of one step piece by piece, in double precision."""
        seen = self.of_one_member(seen)
        self._load_weights(seen.step)
        for start in range(0, len(seen.rows), _RECORDS_AT_ONCE):
            part = slice(start, start + _RECORDS_AT_ONCE)
            embeddings = torch.from_numpy(seen.embeddings[part]).requires_grad_()
            z = self._top(embeddings)
            rows = [torch.autograd.grad(z[:, j].sum(), embeddings, retain_graph=True)[0] for j in range(z.shape[1])]
            received = torch.from_numpy(seen.gradients[part])
            yield z.detach().double(), torch.stack(rows, dim=1).double(), received.double()

    def _forward(self, seen: TranscriptStep) -> tuple[Tensor, Tensor]:
        self._load_weights(seen.step)
        embeddings = torch.from_numpy(seen.embeddings).requires_grad_()
        return self._top(embeddings), embeddings

    def _load_weights(self, step: int) -> None:
        if self._trajectory is not None:
            self._trajectory.load_into(self._top, step)
        elif step:
            raise ValueError(f"the job fixes the weights before step 0, not those before step {step}")


def sigmoid(z: Floats) -> Floats:
    """Return `σ(z)`, also where `e^-z` would overflow."""
    return torch.sigmoid(torch.from_numpy(z)).numpy()
