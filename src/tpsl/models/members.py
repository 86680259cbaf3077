"""Members: several networks of one shape, trained side by side on the same batches and noisy labels.

Each starts from weights of its own and learns as if it were alone. Their mean logit is steadier than any one of them,
because they overfit the same noise in different ways. All of them are post-processing of the one release: M members
cost M times the computation and M times the width of the cut, and no ε.

A party's share of the cut lies member after member, `[n, M·w]`. Members are whole networks in a loop, so each equals
the network that is trained alone to the last bit. Batched matrix products over all members save little on a CPU
(0 to 15 % of a step with 8 members of the paper's widths and batches of 512), because the products fill the step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tpsl.models.halves import Bottom, ModelConfig, Top


class BottomMembers(nn.Module):
    """The bottom halves of all members of one party."""

    def __init__(self, members: Sequence[Bottom]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.width = sum(member.width for member in members)

    def forward(self, categorical: Tensor, numeric: Tensor) -> Tensor:
        """Return the party's share of the cut, member after member: shape `[n, M·w]`."""
        return torch.cat([member(categorical, numeric) for member in self.members], dim=1)


class TopMembers(nn.Module):
    """The top halves of all members. Each sees its own slice of every party's share of the cut, and no other's."""

    def __init__(self, members: Sequence[Top], shares: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self._shares = shares

    def forward(self, cut: Tensor) -> Tensor:
        """Return the logits of member after member, shape `[M, n]` for two classes and `[M, n, k]` for k."""
        members = len(self.members)
        slices = cut.reshape(len(cut), self._shares, members, cut.shape[1] // (self._shares * members))
        # In one piece, as a member alone receives it: the layout may decide the order of sums in a matrix product.
        by_member = slices.permute(2, 0, 1, 3).flatten(start_dim=2).contiguous()
        return torch.stack([member(own) for member, own in zip(self.members, by_member, strict=True)])


def make_bottom(
    embedding_rows: int,
    categorical_fields: int,
    numeric_fields: int,
    config: ModelConfig,
    generators: Sequence[torch.Generator],
) -> Bottom | BottomMembers:
    """Return the bottom half of one party, with one generator of initial weights for each member."""
    _check(config, generators)
    members = [Bottom(embedding_rows, categorical_fields, numeric_fields, config, g) for g in generators]
    return members[0] if len(members) == 1 else BottomMembers(members)


def make_top(shares: int, classes: int, config: ModelConfig, generators: Sequence[torch.Generator]) -> Top | TopMembers:
    """Return the top half for a cut of so many parties' shares, with one generator for each member."""
    _check(config, generators)
    members = [Top(shares * config.share_width, classes, config, g) for g in generators]
    return members[0] if len(members) == 1 else TopMembers(members, shares)


def _check(config: ModelConfig, generators: Sequence[torch.Generator]) -> None:
    if len(generators) != config.members:
        raise ValueError(f"{config.members} members need as many generators, got {len(generators)}")
