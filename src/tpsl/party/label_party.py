"""The label party: its side of Algorithm 1 (no noise), Algorithm 3 (two draws, 2ε) and section 4.2 (one draw, ε)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import torch
from torch import Tensor

from tpsl.data.features import Features
from tpsl.models import Bottom, BottomMembers, HalfOptimizer, Top, TopMembers
from tpsl.party.feature_party import FeatureTensors, Rows
from tpsl.perturb import LogitGradient
from tpsl.vault import NoisyLabels


class LabelParty:
    """Holds noisy labels and the top half h, and a bottom half of its own if it has features.

    Guarantee: a step is a deterministic function of the received embeddings, the own features, the weights and the
    noisy labels. There is no true label in this object, so whatever leaves it, and every weight, is post-processing
    of the vault's release (Lemma 4.1 and section 4.2), whatever the other side sends.
    """

    def __init__(
        self,
        top: Top | TopMembers,
        optimizer: HalfOptimizer,
        logit_gradient: LogitGradient,
        noisy: NoisyLabels,
        own: tuple[Bottom | BottomMembers, HalfOptimizer, Features] | None = None,
    ) -> None:
        self.top = top
        self.optimizer = optimizer
        self.logit_gradient = logit_gradient
        self.device = next(top.parameters()).device
        self._evidence: list[Tensor] = []
        self._held = range(0)
        self.admit(noisy)
        self._records = 1
        self.own_bottom, self._own_optimizer, self._own_inputs = None, None, None
        if own is not None:
            self.own_bottom, self._own_optimizer = own[0], own[1]
            self._own_inputs = FeatureTensors(own[2], self.device)
        self._parameters = [p for _, half_optimizer in self.halves.values() for p in half_optimizer.parameters]

    @property
    def halves(self) -> dict[str, tuple[torch.nn.Module, HalfOptimizer]]:
        """The parts with weights, by name: what a checkpoint holds."""
        halves: dict[str, tuple[torch.nn.Module, HalfOptimizer]] = {"top": (self.top, self.optimizer)}
        if self.own_bottom is not None and self._own_optimizer is not None:
            halves["bottom"] = (self.own_bottom, self._own_optimizer)
        return halves

    def admit(self, noisy: NoisyLabels, first: int = 0) -> None:
        """Hold the noisy labels of the training records from position `first` on, and no others any more."""
        if not isinstance(noisy, NoisyLabels):
            raise TypeError(f"the label party trains on NoisyLabels from a vault, not on {type(noisy).__name__}")
        self._evidence = [self.logit_gradient.evidence(outcomes).to(self.device) for outcomes in noisy.draws]
        self._held = range(first, first + len(noisy))

    def holds(self, batch: Rows) -> bool:
        """Return whether the noisy labels of all these training records are here."""
        return len(batch) == 0 or (int(batch.min()) in self._held and int(batch.max()) in self._held)

    def backward(self, batch: Rows, rows: Rows, received: Sequence[Tensor], records: int) -> list[Tensor]:
        """Take the embeddings of every feature party for a batch, or a part of one; return the gradients for each.

        `batch` are positions among the training records (where noisy labels are), `rows` the same records in the
        tables, `records` the size n of the whole batch. What `update` needs adds up over the parts.
        """
        if not self.holds(batch):
            raise RuntimeError(f"a step on records whose noisy labels were not admitted: {self._held} are here")
        embeddings = [e.detach().to(self.device).requires_grad_() for e in received]
        z = self.top(self._cut(rows, embeddings))
        index = torch.from_numpy(batch - self._held.start).to(self.device)
        evidence = [draw.index_select(0, index) for draw in self._evidence]
        if len(evidence) == 1:
            # Section 4.2: ṽ = GradPerturb(y, v_0, v_1) at the logit; one backward pass takes it to the cut and θ_L.
            z.backward(self._logit_gradient(z.detach(), evidence[0]))
            gradients = [e.grad for e in embeddings]
        else:
            # Algorithm 3: g̃ is sent, ũ updates θ_L, from two independent draws.
            sent, own = (self._logit_gradient(z.detach(), draw) for draw in evidence)
            gradients = list(torch.autograd.grad(z, embeddings, sent, retain_graph=True))
            z.backward(own, inputs=self._parameters)
        self._records = records
        return [g for g in gradients if g is not None]

    def update(self) -> None:
        """`θ_L ← θ_L - η·(1/n)·Σ_i ∂z_i/∂θ_L·ṽ_i`, or what the optimiser makes of it."""
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad /= self._records
        for _, half_optimizer in self.halves.values():
            half_optimizer.step()

    @torch.no_grad()
    def predict(self, rows: Rows, received: Sequence[Tensor]) -> Tensor:
        """Return probabilities: of class 1 for two classes (shape `[n]`), of each class for k.

        They are those of the averaged weights and, with several members, of the members' mean logits.
        """
        z = self._logits(rows, received)
        return torch.sigmoid(z) if z.ndim == 1 else torch.softmax(z, dim=1)

    @torch.no_grad()
    def head_inputs(self, rows: Rows, received: Sequence[Tensor]) -> Tensor:
        """Return what a local head may see of the label party's own: its logits and its own share of the cut.

        All of it is computed from noisy labels; that the local head itself is not private is its own doing.
        """
        parts = [self._logits(rows, received).reshape(len(rows), -1)]
        if self.own_bottom is not None and self._own_inputs is not None and self._own_optimizer is not None:
            with self._own_optimizer.averaged():
                parts.append(self.own_bottom(*self._own_inputs.batch(rows)))
        return torch.cat(parts, dim=1)

    def _logits(self, rows: Rows, received: Sequence[Tensor]) -> Tensor:
        with ExitStack() as averaged:
            for _, half_optimizer in self.halves.values():
                averaged.enter_context(half_optimizer.averaged())
            z: Tensor = self.top(self._cut(rows, [e.to(self.device) for e in received]))
        return z.mean(dim=0) if isinstance(self.top, TopMembers) else z

    def _logit_gradient(self, z: Tensor, evidence: Tensor) -> Tensor:
        """Return ṽ for every logit: each member learns from the same noisy label, at its own logits."""
        if not isinstance(self.top, TopMembers):
            return self.logit_gradient(z, evidence)
        return self.logit_gradient(z.flatten(0, 1), torch.cat([evidence] * len(z))).reshape(z.shape)

    def _cut(self, rows: Rows, embeddings: list[Tensor]) -> Tensor:
        parts = list(embeddings)
        if self.own_bottom is not None and self._own_inputs is not None:
            parts.append(self.own_bottom(*self._own_inputs.batch(rows)))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
