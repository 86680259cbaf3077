"""The label party: its side of Algorithm 1 (no noise), Algorithm 3 (two draws, 2ε) and section 4.2 (one draw, ε)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tpsl.data.order import Rows
from tpsl.data.out_of_core import empty, parts
from tpsl.models.halves import Tops
from tpsl.models.optimizer import HalfOptimizer
from tpsl.perturb import LogitGradient
from tpsl.split.batches import Gathered
from tpsl.split.feature_party import FeatureParty
from tpsl.vault import NoisyLabels


class LabelParty:
    """Holds noisy labels and the top half h; `own` is its bottom half with its inputs, if it has any.

    Guarantee: a step is a deterministic function of the received embeddings, the own features, the weights and the
    noisy labels. There is no true label in this object, so whatever leaves it, and every weight, is post-processing
    of the vault's release (Lemma 4.1 and section 4.2), whatever the other side sends.
    """

    def __init__(
        self,
        top: Tops,
        optimizer: HalfOptimizer,
        logit_gradient: LogitGradient,
        noisy: NoisyLabels,
        own: FeatureParty | None = None,
    ) -> None:
        self.top = top
        self.optimizer = optimizer
        self.logit_gradient = logit_gradient
        self.own = own
        self.device = next(top.parameters()).device
        if not isinstance(noisy, NoisyLabels):
            raise TypeError(f"the label party trains on NoisyLabels from a vault, not on {type(noisy).__name__}")
        self._evidence = [self._evidence_of(outcomes).to(self.device) for outcomes in noisy.draws]
        self._records = 1
        self._optimizers = [half_optimizer for _, half_optimizer in self.halves.values()]
        self._parameters = [p for half_optimizer in self._optimizers for p in half_optimizer.parameters]

    @property
    def halves(self) -> dict[str, tuple[nn.Module, HalfOptimizer]]:
        """The parts with weights, by name: what a checkpoint holds."""
        halves: dict[str, tuple[nn.Module, HalfOptimizer]] = {"top": (self.top, self.optimizer)}
        if self.own is not None:
            halves["bottom"] = (self.own.bottom, self.own.optimizer)
        return halves

    def _evidence_of(self, outcomes: npt.NDArray[np.unsignedinteger]) -> Tensor:
        """Return the evidence of all outcomes of a draw, which may lie on disk."""
        shape = self.logit_gradient.evidence(outcomes[:1]).shape[1:]
        found = empty((len(outcomes), *shape), np.float32)
        for part in parts(len(outcomes)):
            found[part] = self.logit_gradient.evidence(outcomes[part]).numpy()
        return torch.from_numpy(found)

    def backward(self, batch: Rows, rows: Rows, received: Sequence[Tensor], records: int) -> list[Tensor]:
        """Take the embeddings of every feature party for a batch, or a part of one; return the gradients for each.

        `batch` are positions among the records with noisy labels, `rows` the same records in the
        tables, `records` the size n of the whole batch. What `update` needs adds up over the parts.
        """
        evidence = self.evidence(torch.tensor(batch, device=self.device))
        return self.backward_from(evidence, rows, received, records)

    def evidence(self, places: Tensor) -> tuple[Tensor, ...]:
        """Return what the noisy labels at these places, among those that are held, say of each record: of each draw."""
        return tuple(draw.index_select(0, places) for draw in self._evidence)

    def backward_from(
        self, evidence: Sequence[Tensor], rows: Rows | Gathered, received: Sequence[Tensor], records: int
    ) -> list[Tensor]:
        """Do the same as `backward` from the evidence of the batch's noisy labels; a GPU is not waited for."""
        embeddings = [e.detach().to(self.device).requires_grad_() for e in received]
        z = self.top.learning()([*embeddings, *([self.own.share(rows)] if self.own is not None else [])])
        # Each member learns from the same noisy label, at its own logits.
        logits, members = z.detach().flatten(0, 1), len(z)
        drawn = [torch.cat([draw] * members) if members > 1 else draw for draw in evidence]
        perturbed = [self.logit_gradient(logits, draw).reshape(z.shape) for draw in drawn]
        if len(perturbed) == 1:
            # Section 4.2: ṽ = GradPerturb(y, v_0, v_1) at the logit; one backward pass takes it to the cut and θ_L.
            z.backward(perturbed[0])
            gradients = [e.grad for e in embeddings]
        else:
            # Algorithm 3: g̃ is sent, ũ updates θ_L, from two independent draws.
            gradients = list(torch.autograd.grad(z, embeddings, perturbed[0], retain_graph=True, allow_unused=True))
            z.backward(perturbed[1], inputs=self._parameters)
        self._records = records
        # A top half of the user's own may not look at a party's share.
        return [torch.zeros_like(e) if g is None else g for e, g in zip(embeddings, gradients, strict=True)]

    def update(self) -> None:
        """`θ_L ← θ_L - η·(1/n)·Σ_i ∂z_i/∂θ_L·ṽ_i`, or what the optimiser makes of it."""
        for half_optimizer in self._optimizers:
            half_optimizer.step(self._records)

    def predict(self, rows: Rows, received: Sequence[Tensor]) -> Tensor:
        """Return probabilities: of class 1 for two classes (shape `[n]`), of each class for k.

        They are those of the averaged weights and, with several members, of the members' mean logits.
        """
        return self.logit_gradient.loss.probabilities(self._mean_logits(received, self._own_share(rows)))

    def head_inputs(self, rows: Rows, received: Sequence[Tensor]) -> Tensor:
        """Return what a local head may see of the label party's own: its log-odds and its own share of the cut.

        All of it is computed from noisy labels; that the local head itself is not private is its own doing.
        """
        own = self._own_share(rows)
        log_odds = self.logit_gradient.loss.log_odds(self._mean_logits(received, own))
        return torch.cat([log_odds[:, None].flatten(1), *own], dim=1)

    def _own_share(self, rows: Rows) -> list[Tensor]:
        return [self.own.embed(rows)] if self.own is not None else []

    @torch.no_grad()
    def _mean_logits(self, received: Sequence[Tensor], own: Sequence[Tensor]) -> Tensor:
        """Return the members' mean logits, by the averaged weights: shape `[n]` for two classes, `[n, k]` for k."""
        with self.optimizer.averaged():
            z: Tensor = self.top.predicting()([*(e.to(self.device) for e in received), *own])
        return z.mean(dim=0)
