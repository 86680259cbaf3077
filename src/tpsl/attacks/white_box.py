"""What a white-box attacker reads off a received gradient: it knows the label party's weights before the step.

By section 4.2 of the paper the received gradient is `g̃ = J^T ṽ = Σ_j w_j g_j`, with J the derivative of the logits
by the cut and `g_j = J^T v_j` the gradient for label j, which the attacker can compute for every loss. The weights w
(they add up to 1) are the label that the gradient was made for: t for the estimator `linear`, an affine function of t
for `unbiased`, and the model's probabilities times `P(t | j)`, for two classes `σ(z + λ_t)`, for `posterior`. In
units of `‖g_1 - g_0‖²`, `‖g̃ - g_0‖² - ‖g̃ - g_1‖² = 2w - 1`: the shortest-distance attack (section 3.1) guesses 1
exactly if w > ½.

With k classes w has k - 1 unknowns, and g̃ shows them only if J has that rank: not if the cut is narrow, nor where few
units of a ReLU layer are active. Where the noisy label has few outcomes none of that is needed: the attacker compares
g̃ with what the label party would have sent for each of them.

All of it takes the logits of a record to depend on its own cut alone; of a top half with batch normalisation it is an
approximation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tpsl.mechanisms import Estimator, Mechanism
from tpsl.perturb import LogitGradient
from tpsl.run.build import NO_PARTS, build_top
from tpsl.run.job import Job
from tpsl.run.own_parts import OwnParts
from tpsl.run.transcript import Trajectory, TranscriptStep

Floats = npt.NDArray[np.float64]

_ROUNDING = 1e-5
"""What is smaller than this part of the whole drowns in float32's rounding."""
_RECORDS_AT_ONCE = 1024
"""With k classes a record needs k gradients; a batch is taken in pieces of this many records."""


@dataclass(frozen=True)
class Reading:
    """What the gradients of one step, two classes, say to the white-box attacker."""

    step: int
    logits: Floats
    """The log-odds of class 1, as the label party's network predicts them: z, for cross-entropy."""
    received: Floats
    """`σ(logits) - w`: ṽ, the perturbed gradient at the logit, for cross-entropy."""
    readable: npt.NDArray[np.bool_]
    """False where the cut does not move the logit, or the label the gradient, so that nothing can be read."""

    @property
    def weights(self) -> Floats:
        """w, the label for which each gradient was made; ½ where nothing can be read."""
        return np.where(self.readable, sigmoid(self.logits) - self.received, 0.5)


class WhiteBox:
    """A copy of the label party's top half that follows its weights from step to step.

    `parties` are those whose transcripts are read, side by side. Without a trajectory the weights are those before the
    first step, which the job's seed fixes: every feature party can build them, and read step 0, without any weight of
    the label party. Of a network with members the first is read: what it receives is the transcript of a network alone,
    made from the same noisy label as all the others.
    """

    def __init__(
        self,
        job: Job,
        parties: Sequence[str],
        classes: int,
        trajectory: Trajectory | None = None,
        own: OwnParts = NO_PARTS,
    ) -> None:
        self._trajectory = trajectory
        # As in a step of training, but for gradients by the weights.
        self._top = build_top(job, parties, classes, own).members[0].train().requires_grad_(False)
        self._loss = job.training.build_loss(classes)
        ends = np.cumsum([job.model.cut_width(party) for party in parties])  # a share lies member after member
        starts = zip(ends, parties, strict=True)
        self._columns = np.concatenate(
            [end - job.model.cut_width(party) + np.arange(job.model.share_width(party)) for end, party in starts]
        )
        self._last: Reading | None = None

    def fits(self) -> bool:
        """Say whether the recorded weights are those of a network of this shape."""
        try:
            self._load_weights(0)
        except ValueError:  # a shape differs
            return False
        return True

    def of_one_member(self, seen: TranscriptStep) -> TranscriptStep:
        """Return what belongs to the member that is read: all of it, if there is one network."""
        if seen.embeddings.shape[1] == len(self._columns):
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
            at_logit = (slope * torch.from_numpy(seen.gradients)).sum(dim=1) / length.where(readable, 1)
            logits = self._loss.log_odds(z.detach().double())
            v_0, v_1 = self._loss.derivatives(z.detach().double())
            predicted = v_0 + torch.sigmoid(logits) * (v_1 - v_0)  # 0 for cross-entropy, and v_0 - v_1 is 1
            apart = v_0 - v_1
            readable &= apart.abs() > _ROUNDING
            received = (at_logit.double() - predicted) / apart.where(readable, 1)
            self._last = Reading(seen.step, logits.numpy(), received.numpy(), readable.numpy())
        return self._last

    def nearness(self, seen: TranscriptStep) -> Floats:
        """Return `-‖g̃ - g_j‖²` for k classes, up to a number of each record's own: shape `[n, k]`."""
        parts = []
        for _, of_labels, received in self._label_gradients(seen):
            parts.append(2 * torch.einsum("nd,nkd->nk", received, of_labels) - of_labels.square().sum(dim=2))
        return torch.cat(parts).numpy()

    def explained_by(
        self, seen: TranscriptStep, mechanism: Mechanism, estimator: Estimator
    ) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Return the log-odds for k classes, `[n, k]`, and which outcomes explain what was received: `[n, outcomes]`.

        What the label party would have sent for an outcome is computed as it does it: by back-propagation, in float32.
        The nearest explains the received gradient, and so does each that rounding cannot tell from it.
        """
        seen, gradient = self.of_one_member(seen), LogitGradient(mechanism, estimator, self._loss)
        z, embeddings = self._forward(seen)
        received, distances, margins = torch.from_numpy(seen.gradients).double(), [], []
        for evidence in gradient.evidence(np.arange(mechanism.outcomes, dtype=np.uint32)):
            at_logits = gradient(z.detach(), evidence.expand_as(z))
            sent = torch.autograd.grad(z, embeddings, at_logits, retain_graph=True)[0].double()
            distances.append((received - sent).norm(dim=1))
            margins.append(_ROUNDING * sent.norm(dim=1))
        distance, margin = torch.stack(distances, dim=1), torch.stack(margins, dim=1)
        explains = distance <= distance.amin(dim=1, keepdim=True) + margin
        return self._loss.log_odds(z.detach().double()).numpy(), explains.numpy()

    def logits_and_weights(self, seen: TranscriptStep) -> tuple[Floats, Floats]:
        """Return the log-odds and w for k classes, w by least squares from `g̃ = Σ_j w_j g_j`: both `[n, k]`.

        Where the cut moves the logits in too few directions to tell w, it is NaN.
        """
        logits, weights = [], []
        for z, of_labels, received in self._label_gradients(seen):
            # The k weights sum to 1: the last one is what the others leave.
            last = of_labels[:, -1:]
            directions = (of_labels[:, :-1] - last).transpose(1, 2)
            wanted = (received - last.squeeze(1)).unsqueeze(2)
            solved = torch.linalg.lstsq(directions, wanted, rcond=_ROUNDING, driver="gelsy")
            others = solved.solution.squeeze(2)
            found = torch.cat([others, 1 - others.sum(dim=1, keepdim=True)], dim=1)
            found[solved.rank < z.shape[1] - 1] = torch.nan
            logits.append(self._loss.log_odds(z))
            weights.append(found)
        return torch.cat(logits).numpy(), torch.cat(weights).numpy()

    def _label_gradients(self, seen: TranscriptStep) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Return logits, `g_j` (`[n, k, d]`) and received gradients piece by piece, in double precision."""
        seen = self.of_one_member(seen)
        self._load_weights(seen.step)
        for start in range(0, len(seen.rows), _RECORDS_AT_ONCE):
            part = slice(start, start + _RECORDS_AT_ONCE)
            embeddings = torch.from_numpy(seen.embeddings[part]).requires_grad_()
            z = self._top(embeddings)
            rows = [torch.autograd.grad(z[:, j].sum(), embeddings, retain_graph=True)[0] for j in range(z.shape[1])]
            jacobian, exact = torch.stack(rows, dim=1).double(), z.detach().double()
            of_labels = torch.einsum("jnk,nkd->njd", self._loss.derivatives(exact), jacobian)
            yield exact, of_labels, torch.from_numpy(seen.gradients[part]).double()

    def _forward(self, seen: TranscriptStep) -> tuple[Tensor, Tensor]:
        self._load_weights(seen.step)
        embeddings = torch.from_numpy(seen.embeddings).requires_grad_()
        z = self._top(embeddings)
        return z.squeeze(1) if z.shape[1:] == (1,) else z, embeddings

    def _load_weights(self, step: int) -> None:
        if self._trajectory is not None:
            self._trajectory.load_into(self._top, step)
        elif step:
            raise ValueError(f"the job fixes the weights before step 0, not those before step {step}")


def sigmoid(z: Floats) -> Floats:
    """Return `σ(z)`, also where `e^-z` would overflow."""
    return torch.sigmoid(torch.from_numpy(z)).numpy()
