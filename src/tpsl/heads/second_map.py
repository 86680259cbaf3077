"""The map of a second statistic: random features that look where the first head has found something.

The first head was fitted on features drawn at random, most of which read fields that tell little of the label. What it
has learned is public from then on, so the second map may follow it: the logits f of the first head, as nearly as a sum
over fields gives them, `f ≈ Σ_j e_j(x_j)`, say how much each field matters and which of its values are alike. Features
are drawn again, as functions of

    c·A  with  A_r = e_r·u_j + ½·s_j·v_r      for each of the numbers c_r that say which value the field j has

with u and v standard normal and s_j the deviation of e_j, in place of plain normal A: values that act alike are near
each other, fields that act little have little weight. No label has a part in it but through what was released.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tpsl.heads.feature_map import FeatureMap, Inputs, Purpose, sampled
from tpsl.heads.statistic_fit import FirstHead
from tpsl.models.members import seed_of

_SHARES = (0.05, 0.25, 0.15, 0.15)
"""Of the variance that is expected to be left of the log-odds, by kind of b."""
_OWN = 0.5
"""How much a value of a field is told apart from those that act like it."""
_RIDGE = 1e-3


@torch.no_grad()
def second_map(first: FirstHead, inputs: Inputs, purpose: Purpose) -> FeatureMap:
    """Return the map for a second statistic of these records, of which the first head has the logits; deterministic."""
    generator = torch.Generator().manual_seed(seed_of("tpsl second map", purpose.seed))
    expansion = first.head.map.expansion
    device = expansion.shift.device
    own = slice(expansion.kinds[0] if expansion.kinds[1] else 0, None)  # fields, or embeddings where there are none
    fields, of_field = expansion.plain(sampled(inputs).to(device))[:, own].cpu(), expansion.fields[own].cpu()
    drawn = _drawn(_effects(fields, sampled(first.logits)), fields, of_field, 3 * len(expansion.shift), generator)
    again = expansion.with_random(drawn.to(device), fields.to(device))
    return FeatureMap.over(again, inputs, purpose, _SHARES, generator)


def _effects(fields: Tensor, logits: Tensor) -> Tensor:
    """Return the weights of features of fields whose sum is nearest to the logits, `[features, 1 or k]`."""
    centred = (fields - fields.mean(dim=0)).double()
    gram = centred.T @ centred
    gram.diagonal().add_(_RIDGE * len(fields))
    effects: Tensor = torch.linalg.solve(gram, centred.T @ (logits - logits.mean(dim=0)).double())
    return effects.float()


def _drawn(effects: Tensor, fields: Tensor, of_field: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return random weights of the features of fields, `[features, count]`."""
    drawn = torch.empty(len(effects), count)
    for field in sorted(set(of_field.tolist())):
        own = of_field == field
        effect = effects[own]
        alike = effect @ torch.randn(effect.shape[1], count, generator=generator)
        deviation = (fields[:, own] @ effect).var(dim=0).sum().sqrt()
        drawn[own] = alike + _OWN * deviation * torch.randn(len(effect), count, generator=generator)
    return drawn
