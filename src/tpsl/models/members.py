"""Members: several networks of one shape, trained side by side on the same batches and noisy labels.

Each starts from weights of its own and learns as if it were alone. Their mean logit is steadier than any one of them,
because they overfit the same noise in different ways. All of them are post-processing of the one release: M members
cost M times the computation and M times the width of the cut, and no ε. One network alone is the case M = 1.

A party's share of the cut lies member after member, `[n, M·w]`. Members are whole networks in a loop, so each equals
the network that is trained alone to the last bit. Batched matrix products over all members save little on a CPU
(0 to 15 % of a step with 8 members of the paper's widths and batches of 512), because the products fill the step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import pairwise
from threading import RLock
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from tpsl.models.computing import precision, products_on
from tpsl.registry import ExtensionError


class Members(nn.Module):
    """The halves of one kind that a party has, one for each member; any modules. `what` names them in errors."""

    def __init__(self, members: Sequence[nn.Module], what: str) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self._what, self._draws_nothing = what, False
        self.register_state_dict_post_hook(_each_in_memory_of_its_own)  # type: ignore[no-untyped-call]
        self.train()

    def learning(self) -> Self:
        """Return the halves in the mode of training; to set it walks through all layers, so only where it is not."""
        return self if self.training else self.train()

    def predicting(self) -> Self:
        """Return the halves in the mode of prediction."""
        return self.eval() if self.training else self

    def _outputs(self, inputs: Sequence[Sequence[Tensor]], *shapes: tuple[int, ...]) -> list[Tensor]:
        """Return what each member makes of its own inputs, if it is float32 of one of these shapes.

        The first training pass finds out whether they draw from PyTorch's generators: a run that does cannot be resumed
        or repeated to the last bit.
        """
        if not self.training or self._draws_nothing:
            return [self._output(half, given, shapes) for half, given in zip(self.members, inputs, strict=True)]
        before = _generator_states()
        outputs = [self._output(half, given, shapes) for half, given in zip(self.members, inputs, strict=True)]
        if not all(map(torch.equal, before, _generator_states())):
            # It may have been another thread that did.
            with torch.no_grad(), _Draws() as draws:  # type: ignore[no-untyped-call]
                for half, given in zip(deepcopy(self.members), inputs, strict=True):
                    half(*given)
            if draws.seen:
                raise ExtensionError(
                    f"{self._what} draws random numbers from PyTorch's generator in its forward pass, as dropout does: "
                    "such a run could not be resumed to the same weights"
                )
        self._draws_nothing = True
        return outputs

    def _output(self, half: nn.Module, given: Sequence[Tensor], shapes: tuple[tuple[int, ...], ...]) -> Tensor:
        try:
            with products_on(given[0].device):
                made: object = half(*given)
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise ExtensionError(f"{self._what} fails on a batch of size {shapes[0][0]} ({reason})") from error
        if not isinstance(made, Tensor):
            raise ExtensionError(f"{self._what} returns {type(made).__name__}, not a tensor")
        output = made.float() if made.dtype == torch.bfloat16 and precision() == "bf16" else made
        if output.dtype != torch.float32 or output.shape not in shapes:
            found = f"{str(output.dtype).removeprefix('torch.')} of shape {list(output.shape)}"
            wanted = " or ".join(str(list(shape)) for shape in shapes)
            raise ExtensionError(f"{self._what} returns {found}, not float32 of shape {wanted}")
        return output


class Bottoms(Members):
    """The bottom halves of one party: each maps a batch to `[n, width]`."""

    def __init__(self, members: Sequence[nn.Module], width: int, what: str = "the bottom half") -> None:
        super().__init__(members, what)
        self.width = len(members) * width
        self._member_width = width

    def forward(self, *batch: Tensor) -> Tensor:
        """Return the party's share of the cut, member after member: shape `[n, M·width]`."""
        return _side_by_side(self._outputs([batch] * len(self.members), (batch[0].shape[0], self._member_width)))


class Tops(Members):
    """The top halves: each maps its cut, `[n, cut]`, to `[n]` or `[n, 1]` for two classes and `[n, k]` for k.

    A member's cut is its own part of every party's share, and no other's.
    """

    def __init__(self, members: Sequence[nn.Module], classes: int, what: str = "the top half") -> None:
        super().__init__(members, what)
        self._classes = classes

    def forward(self, shares: Sequence[Tensor]) -> Tensor:
        """Return the logits of member after member, shape `[M, n]` for two classes and `[M, n, k]` for k."""
        records, count = shares[0].shape[0], len(self.members)  # not len, which would fix it in an exported graph
        # Back-propagation through a chunk copies it.
        by_member = zip(*(share.chunk(count, dim=1) if count > 1 else [share] for share in shares), strict=True)
        # In one piece, as a member alone receives it: the layout may decide the order of sums in a matrix product.
        cuts = [(_side_by_side(parts).contiguous(),) for parts in by_member]
        if self._classes > 2:
            logits = self._outputs(cuts, (records, self._classes))
        else:
            logits = [z.reshape(records) for z in self._outputs(cuts, (records,), (records, 1))]
        return logits[0][None] if count == 1 else torch.stack(logits)


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=1)


def _each_in_memory_of_its_own(module: nn.Module, state: dict[str, Any], prefix: str, metadata: object) -> None:
    """Files of weights hold each tensor in one piece and on its own; halves may share weights between layers."""
    seen = set()
    for name, tensor in state.items():
        memory = tensor.untyped_storage().data_ptr()
        state[name] = tensor.clone() if memory in seen else tensor.contiguous()
        seen.add(memory)


class _Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notices what this thread draws from PyTorch's own generators."""

    seen = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        self.seen |= torch.Tag.nondeterministic_seeded in func.tags and given.get("generator") is None
        return func(*args, **given)


def _generator_states() -> list[Tensor]:
    """Return the states of PyTorch's own generators, of the CPU and of every GPU that has been used."""
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return [torch.get_rng_state(), *on_gpus]


_seeding = RLock()


def make_members(factory: Callable[[], Any], seeds: Sequence[int], what: str) -> list[nn.Module]:
    """Return a half for each seed, made by a factory of a user's; `what` names the half in errors.

    Guarantee: the same seeds give the same weights, and PyTorch's generators are as they were before. A half that could
    not be repeated, updated or kept in a checkpoint is refused.
    """
    members = [seeded(factory, seed) for seed in seeds]
    for member in members:
        _check(member, what)
    again = seeded(factory, seeds[0])
    if again is members[0]:
        raise ExtensionError(f"{what} is the same module each time it is made: a run would begin with trained weights")
    if not same_weights(members[0], again):
        raise ExtensionError(f"{what} has other weights each time it is made: draw them from PyTorch's generator alone")
    if any(same_weights(one, other) for one, other in pairwise(members)):
        raise ExtensionError(f"{what} has the same weights in each member: members need a factory that draws them")
    return members


def seeded(factory: Callable[[], Any], seed: int) -> Any:
    """Return what the factory makes while PyTorch's generators, which all threads share, start from this seed."""
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    with _seeding, torch.random.fork_rng(gpus):
        torch.manual_seed(seed)
        return factory()


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    """Whether two modules have the same parameters and buffers, to the last bit."""
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def _check(half: object, what: str) -> None:
    if not isinstance(half, nn.Module):
        raise ExtensionError(f"{what} is of the type {type(half).__name__}, not a torch.nn.Module")
    if any(map(is_lazy, half.parameters())):
        raise ExtensionError(f"{what} has lazy layers, whose weights do not exist yet: give their sizes")
    if not any(parameter.requires_grad for parameter in half.parameters()):
        raise ExtensionError(f"{what} has no parameters to train")
    for name, value in half.state_dict().items():
        if not isinstance(value, Tensor):
            raise ExtensionError(f"{what} keeps {name} in its state, which is no tensor: no checkpoint can hold it")
    for name, part in half.named_modules():
        for buffer in sorted(part._non_persistent_buffers_set):
            where = f"{name}.{buffer}" if name else buffer
            raise ExtensionError(f"{what} keeps {where} outside its state (persistent=False): no checkpoint has it")


def seed_of(*purpose: str | int) -> int:
    """Return the seed of the stream of this purpose, as `seed_of("tpsl weights", 7, "label top")`."""
    digest = hashlib.sha256("\x1f".join(map(str, purpose)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
