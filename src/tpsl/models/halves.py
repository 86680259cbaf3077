"""The paper's network (section 5), cut in two, and the halves of one kind that a party has.

`Bottom` is f: an embedding layer and two 128-unit ReLU layers; its output is the cut. `Top` is h: two 128-unit ReLU
layers and the output. A label party with features of its own has a `Bottom` too, whose output joins the others at
the cut. These are the halves of one network, and what a party has that brings none of its own.

`Bottoms` and `Tops` hold whatever halves a party has, one for each member. Members are networks of one shape, trained
side by side on the same batches and noisy labels. Each starts from weights of its own and learns as if it were alone.
Their mean logit is steadier than any one of them, because they overfit the same noise in different ways. All of them
are post-processing of the one release: M members cost M times the computation and M times the width of the cut, and no
ε. One network alone is the case M = 1. A party's share of the cut lies member after member, `[n, M·w]`. Members are
computed in a loop, so each equals the network that is trained alone to the last bit. (Batched matrix products over all
members save 0 to 15 % of a step on a CPU, with 8 members of the paper's widths and batches of 512.)

With a wide part (Wide & Deep, Cheng et al. 2016) each party's last number is a score that it has fitted on noisy labels
(`tpsl.heads.wide_part`). The bottom half reads it and also passes it on beside its output; the top half adds the
scores of all parties to its logit, and starts from nothing else.

With `bf16` the factors of matrix products are rounded to 8 significant bits (bfloat16) and multiplied by the units that
GPUs and newer CPUs have for that; a product is added up in float32. Between two layers numbers are bfloat16, too. All
that lasts, leaves a half or decides is float32: weights, tables, what optimisers keep, the cut, logits and their
gradients.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from copy import deepcopy
from itertools import pairwise
from threading import RLock
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from tpsl.kernels.rows import gather, has_loops, loops
from tpsl.models.model_config import ModelConfig, Precision
from tpsl.registry import ExtensionError

CACHE_LINE = 16
"""Numbers in a cache line. In training, inputs get zeros behind them so that their rows are whole cache lines.

On a CPU, matrices whose rows are not cost up to 1.8 times as much: measured, the product that takes gradients through
the paper's first layer (26 fields and 13 numbers, batch 8192) takes 19 ms with rows of 429 numbers and 11 with rows of
432. On a GPU the fast products need rows of whole 16 bytes.
"""
_precision: list[Precision] = ["float32"]
"""A setting of the process, as PyTorch's own settings are."""


def precision() -> Precision:
    """Return in which precision halves compute products."""
    return _precision[0]


def compute_in(chosen: Precision) -> None:
    """Have all halves of this process compute products so, from now on."""
    torch.set_float32_matmul_precision("high" if chosen == "tf32" else "highest")
    _precision[0] = chosen


class Touched(NamedTuple):
    """What one backward pass has found, as `tpsl.kernels.rows` has it."""

    rows: Tensor
    gradient: Tensor
    begun: Any = None


class Table(nn.Embedding):
    """The embeddings of a party's categories, with lazy updates or dense ones.

    PyTorch's own way to lazy updates is a sparse gradient, which is built, sorted and added up in each step. A
    `RowOptimizer` makes the table keep what it `touched` instead, as back-propagation finds it, and goes over it once.
    Without such an optimiser the table has a `weight.grad`, sparse if updates are lazy.
    """

    def __init__(self, rows: int, dim: int, *, lazy: bool, device: str | None = None) -> None:
        super().__init__(rows, dim, sparse=lazy, device=device)
        self.touched: list[Touched] | None = None
        """What each backward pass since the last step has found."""

    def forward(self, categorical: Tensor) -> Tensor:
        """Return the embeddings of some categories, `[…, d]`."""
        if self.touched is None or not (torch.is_grad_enabled() and self.weight.requires_grad):
            return super().forward(categorical)
        rows = categorical.reshape(-1, categorical.shape[-1])
        found: Tensor = LookUp.apply(self.weight, self.touched, rows, None)  # type: ignore[no-untyped-call]
        return found.reshape(*categorical.shape, self.embedding_dim)

    def beside(self, categorical: Tensor, numeric: Tensor) -> Tensor:
        """Return the embeddings of each record's categories beside its numbers, `[n, F·d + N]`, in training padded."""
        if torch.is_grad_enabled():
            if padding := -(categorical.shape[1] * self.embedding_dim + numeric.shape[1]) % CACHE_LINE:
                numeric = functional.pad(numeric, (0, padding))
            if self.touched is not None and self.weight.requires_grad:
                found: Tensor = LookUp.apply(self.weight, self.touched, categorical, numeric)  # type: ignore[no-untyped-call]
                return found
        embeddings = functional.embedding(categorical, self.weight, sparse=self.sparse).flatten(start_dim=1)
        return torch.cat([embeddings, numeric], dim=1) if numeric.shape[1] else embeddings


class LookUp(torch.autograd.Function):
    """Rows of a table side by side, and numbers behind them; the backward pass keeps the gradient of the rows."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, touched: list[Touched], rows: Tensor, numeric: Tensor | None) -> Tensor:
        """Return `[n, F·d + N]`."""
        width = rows.shape[1] * weight.shape[1]
        # Beside numbers, rows are the factors of a product and nothing else.
        is_rounded = numeric is not None and torch.is_autocast_enabled(weight.device.type)
        dtype, behind = torch.bfloat16 if is_rounded else torch.float32, 0 if numeric is None else numeric.shape[1]
        joined = weight.new_empty(rows.shape[0], width + behind, dtype=dtype)
        gather(weight, rows, joined)
        if numeric is not None:
            joined[:, width:] = numeric
        ctx.touched, ctx.width = touched, width
        ctx.begun = loops(weight.device.type).begin(rows)
        ctx.save_for_backward(rows)
        return joined

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Keep the gradient of the rows; that of the numbers goes on to where they come from."""
        (rows,) = ctx.saved_tensors
        ctx.touched.append(Touched(rows, gradient, ctx.begun()))
        return None, None, None, gradient[:, ctx.width :].clone() if ctx.needs_input_grad[3] else None


class ReluLayers(nn.Sequential):
    """Linear layers, each with a ReLU behind it; behind the inputs that the first one reads there may be zeros."""

    def __init__(self, width: int, widths: Sequence[int]) -> None:
        layers: list[nn.Module] = []
        for next_width in widths:
            layers += [nn.Linear(width, next_width), nn.ReLU()]
            width = next_width
        super().__init__(*layers)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return what the last layer says."""
        if inputs.is_cuda and len(self) and torch.is_grad_enabled() and has_loops("cuda"):
            from tpsl.kernels.layers_triton import FusedLayers

            output: Tensor = FusedLayers.apply(inputs, *self.parameters())  # type: ignore[no-untyped-call]
            return output
        for layer in self:
            if isinstance(layer, nn.Linear):
                padding = inputs.shape[1] - layer.in_features
                weight = functional.pad(layer.weight, (0, padding)) if padding else layer.weight
                inputs = functional.linear(inputs, weight, layer.bias).relu_()
        return inputs


class Bottom(nn.Module):
    """`f`: categories and numbers of one party → its share of the cut.

    With a wide part the last number is the score: it goes into the layers, and beside their output into the cut.
    """

    def __init__(
        self,
        embedding_rows: int,
        categorical_fields: int,
        numeric_fields: int,
        config: ModelConfig,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.embedding: Table | None = None
        if categorical_fields:
            self.embedding = Table(embedding_rows, config.embedding_dim, lazy=config.is_lazy(embedding_rows))
        width = categorical_fields * config.embedding_dim + numeric_fields
        self.layers = ReluLayers(width, config.bottom)
        self.reads = (embedding_rows if categorical_fields else 0, categorical_fields, numeric_fields)
        self.deep_width, self.width = config.bottom[-1], config.bottom[-1] + config.wide
        draw_weights(self, generator)

    def forward(self, categorical: Tensor, numeric: Tensor) -> Tensor:
        """Return the embeddings `e = f(x)` of a batch, shape `[n, width]`."""
        inputs = numeric if self.embedding is None else self.embedding.beside(categorical, numeric)
        output: Tensor = self.layers(inputs)
        return output if self.width == self.deep_width else torch.cat([output, numeric[:, -1:]], dim=1)


class Top(nn.Module):
    """`h`: the cut → logits, one for two classes, k for k classes.

    With a wide part the logit is what the layers say plus the weighted scores. It begins as the mean of the scores.
    """

    def __init__(self, cut_width: int, classes: int, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self._share_width = config.share_width("any party: a wide part has one width for all")
        shares = cut_width // self._share_width if config.wide else 0
        deep_width = cut_width - shares
        self.layers = ReluLayers(deep_width, config.top)
        self.output = nn.Linear(config.top[-1] if config.top else deep_width, 1 if classes == 2 else classes)
        draw_weights(self, generator)
        self.score_weights = None
        if config.wide:
            if classes != 2:
                raise ValueError(f"a wide part is for two classes, not for {classes}: set model.wide to false")
            nn.init.zeros_(self.output.weight)
            self.score_weights = nn.Parameter(torch.full((shares,), 1 / shares))

    def forward(self, cut: Tensor) -> Tensor:
        """Return the logits, shape `[n]` for two classes and `[n, k]` for k."""
        scores = None
        if self.score_weights is not None:
            shares = cut.reshape(cut.shape[0], cut.shape[1] // self._share_width, self._share_width)
            cut, scores = shares[:, :, :-1].flatten(start_dim=1), shares[:, :, -1] @ self.score_weights[:, None]
        hidden, device = self.layers(cut), cut.device.type
        if torch.is_autocast_enabled(device):  # logits are float32 whatever the precision of products is
            with torch.autocast(device, enabled=False):
                logits: Tensor = self.output(hidden.float())
        else:
            logits = self.output(hidden)
        logits = logits if scores is None else logits + scores
        return logits.squeeze(1) if logits.shape[1] == 1 else logits


def draw_weights(module: nn.Module, generator: torch.Generator) -> None:
    """Draw weights from `N(0, 2/fan_in)`, embeddings from `N(0, 1/dim)`, and set biases to 0.

    Embeddings are the first layer's inputs; variance 1/dim makes a field count as much as one standardised number.
    """
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.Linear):
                part.weight.normal_(0.0, math.sqrt(2.0 / part.in_features), generator=generator)
                part.bias.zero_()
            elif isinstance(part, nn.Embedding):
                part.weight.normal_(0.0, math.sqrt(1.0 / part.embedding_dim), generator=generator)


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
        """Return what each member makes of its own inputs, if it is float32 of one of these shapes."""
        before = _generator_states() if self.training and not self._draws_nothing else None
        is_bf16, outputs, device = _precision[0] == "bf16", [], inputs[0][0].device.type
        for half, given in zip(self.members, inputs, strict=True):
            try:
                with torch.autocast(device, torch.bfloat16) if is_bf16 else nullcontext():
                    output = half(*given)
            except Exception as error:
                reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
                raise ExtensionError(f"{self._what} fails on a batch of size {shapes[0][0]} ({reason})") from error
            if not isinstance(output, Tensor):
                raise ExtensionError(f"{self._what} returns {type(output).__name__}, not a tensor")
            output = output.float() if is_bf16 and output.dtype == torch.bfloat16 else output
            if output.dtype != torch.float32 or output.shape not in shapes:
                found = f"{str(output.dtype).removeprefix('torch.')} of shape {list(output.shape)}"
                wanted = " or ".join(str(list(shape)) for shape in shapes)
                raise ExtensionError(f"{self._what} returns {found}, not float32 of shape {wanted}")
            outputs.append(output)
        if before is not None:
            self._require_no_draws(before, inputs)
        return outputs

    def _require_no_draws(self, before: list[Tensor], inputs: Sequence[Sequence[Tensor]]) -> None:
        """Raise if the first training pass has drawn from PyTorch's generators, whose states were these `before`.

        A run that draws there cannot be resumed or repeated to the last bit.
        """
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


class Bottoms(Members):
    """The bottom halves of one party: each maps a batch to `[n, width]`."""

    def __init__(self, members: Sequence[nn.Module], width: int, what: str = "the bottom half") -> None:
        super().__init__(members, what)
        self.width = len(members) * width
        self._member_width = width

    def forward(self, *batch: Tensor) -> Tensor:
        """Return the party's share of the cut, member after member: shape `[n, M·width]`."""
        outputs = self._outputs([batch] * len(self.members), (batch[0].shape[0], self._member_width))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)


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
        cuts = [((torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]).contiguous(),) for parts in by_member]
        if self._classes > 2:
            logits = self._outputs(cuts, (records, self._classes))
        else:
            logits = [z.reshape(records) for z in self._outputs(cuts, (records,), (records, 1))]
        return logits[0][None] if count == 1 else torch.stack(logits)


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
