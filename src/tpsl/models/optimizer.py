"""How one half is updated: any optimiser and schedule of PyTorch; embedding tables apart from the dense layers.

The table's optimiser is a part of its own because it does other work: a batch touches few of its rows. Where
gradients are sparse ("lazy" updates) only touched rows are read and written.

With averaging the optimiser also keeps an average of the weights over the steps, for prediction. Tables with lazy
updates are left out of it: to average one, every step would read and write all of its rows. So are buffers, as those
of batch normalisation: prediction uses the last ones.

A party of several workers has the same half at each of them. A step begins with the sum of their gradients, and every
worker applies it in the same way; of buffers, which each computes from its own share of the batch, all then have those
of worker 0.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Optimizer, SparseAdam, lr_scheduler

from tpsl.kernels.rows import Kind, has_loops, loops
from tpsl.models.halves import Table, Touched
from tpsl.models.model_config import OptimizerConfig, ScheduleConfig
from tpsl.registry import Registry, UnknownName, called
from tpsl.workers import ALONE, Workers

OPTIMIZERS: Registry[Callable[..., Optimizer]] = Registry("optimizer")
"""Optimisers by name, those of `torch.optim` in lower case: each is called with parameters, `lr`, and its arguments."""
SCHEDULES: Registry[Callable[..., lr_scheduler.LRScheduler]] = Registry("schedule")
"""Schedules by name, likewise those of `torch.optim.lr_scheduler`: each is called with an optimiser and arguments."""
for _name, _part in (*vars(torch.optim).items(), *vars(lr_scheduler).items()):
    if not inspect.isclass(_part) or _name.startswith("_") or _part in (Optimizer, lr_scheduler.LRScheduler):
        continue
    if issubclass(_part, Optimizer):
        OPTIMIZERS.register(_name.lower(), _part)
    elif issubclass(_part, lr_scheduler.LRScheduler):
        SCHEDULES.register(_name.lower(), _part)
_AVERAGE = "average/"
_Step = TypeVar("_Step", bound=Callable[..., Any])
_SMALLEST_PIECE, _MOST_PIECES = 2048, 96
"""Numbers; pieces beside one for each tensor: not many more fit into one kernel."""


def pieces(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the same memory as flat pieces of one size, for a GPU.

    PyTorch's kernels for lists of tensors give each 65,536 numbers to one block of threads, so that a few blocks work
    on the largest tensors of a small network while the others idle. With pieces all have the same to do: a step on an
    H200 takes 180 µs instead of 197.
    """
    size = max(_SMALLEST_PIECE, -(-sum(tensor.numel() for tensor in tensors) // _MOST_PIECES))
    return [piece for tensor in tensors for piece in tensor.detach().view(-1).split(size)]  # type: ignore[no-untyped-call]


def _as_it_is(func: _Step) -> _Step:
    """Replace what PyTorch puts around each step for its profiler: of a step on 64 records it took 7 %."""
    return func


class PlainSGD(SGD):
    """`w ← w - η·g` and nothing else, for dense gradients."""

    profile_hook_step = staticmethod(_as_it_is)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            gradients = [parameter.grad.contiguous() for parameter in parameters]
            if parameters and parameters[0].is_cuda:
                parameters, gradients = pieces(parameters), pieces(gradients)
            if parameters:
                torch._foreach_add_(parameters, gradients, alpha=-group["lr"])


class WeightAverage:
    """The exponential average `a ← a + (1-d_t)·(p - a)` of some weights, with `d_t = min(d, (1+t) / (10+t))` at step t.

    At small ε a step follows the noise as much as the labels, and the weights move about a point without coming to
    rest; their average lies nearer to it. Early on, it looks back over about a tenth of the steps so far, so that a
    short run is not weighed down by where it started. It never changes the weights, and is post-processing of them.
    """

    def __init__(self, weights: Mapping[str, Tensor], decay: float) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"the decay of a weight average lies between 0 and 1, got {decay}")
        self._weights, self._decay = dict(weights), decay
        # Where the weights are, so that a CUDA graph can count.
        self._steps = torch.zeros((), dtype=torch.float64, device=next(iter(self._weights.values())).device)
        self._averages: dict[str, Tensor] = {}
        self.is_in_place = False

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights as they are after one more step."""
        self._steps += 1
        if not self._averages:
            self._averages = {name: weight.detach().clone() for name, weight in self._weights.items()}
        rate = (1 - ((1 + self._steps) / (10 + self._steps)).clamp(max=self._decay)).float()
        for name, average in self._averages.items():
            average.lerp_(self._weights[name], rate)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the averages in place of the weights, and the weights back at the end, without copying either."""
        weights, before = {name: self._weights[name].data for name in self._averages}, self.is_in_place
        try:
            self.is_in_place = True
            for name, average in self._averages.items():
                self._weights[name].data = average
            yield
        finally:
            for name, weight in weights.items():
                self._weights[name].data = weight
            self.is_in_place = before

    def state(self) -> dict[str, Tensor]:
        """Return the number of steps and the averages, for a checkpoint."""
        return {"steps": self._steps.long()} | {name: a.clone() for name, a in self._averages.items()}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over a state that `state` returned."""
        averages, steps = {name: t for name, t in tensors.items() if name != "steps"}, int(tensors["steps"])
        shapes = {name: weight.shape for name, weight in self._weights.items()} if steps > 0 else {}
        if {name: average.shape for name, average in averages.items()} != shapes:
            raise ValueError("the averages in the state are those of other weights")
        self._steps.fill_(steps)
        self._averages = {name: average.to(self._weights[name].device, copy=True) for name, average in averages.items()}


class RowOptimizer(Optimizer):
    """An optimiser of `torch.optim`, with its settings and its state, that goes over the touched rows of one table.

    From when it is made the table keeps its gradients for it.
    """

    kind: ClassVar[Kind]
    profile_hook_step = staticmethod(_as_it_is)

    def __init__(self, table: Table, **settings: Any) -> None:
        super().__init__([table.weight], **settings)
        self.table = table
        self._update: Any = None
        table.touched = self._touched = list[Touched]()

    def take_from_all(self, workers: Workers) -> None:
        """Have what the tables of all workers have touched, in order of their numbers; all call this in each step."""
        weight, found = self.table.weight.detach(), None
        if self._touched:
            batch = _joined(self._touched, weight.shape[1])
            gradient = batch.gradient[:, : batch.rows.shape[1] * weight.shape[1]].float().reshape(-1, weight.shape[1])
            found = torch.sparse_coo_tensor(batch.rows.reshape(1, -1), gradient, weight.shape, check_invariants=False)
        rows, gradient = gathered(found, weight, workers)
        self._touched[:] = [Touched(rows.int()[:, None], gradient)]

    def divide(self, records: int) -> None:
        """Divide the kept gradients by a number of records."""
        self._touched[:] = [each._replace(gradient=each.gradient / records) for each in self._touched]

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the rows that were touched since the last step; several passes count as one batch."""
        if not self._touched:
            return
        if self._update is None:
            weight = self.table.weight
            make = loops(weight.device.type).RowUpdate
            self._update = make(self.kind, weight.detach(), self.param_groups[0], self._row_state())
        batch = _joined(self._touched, self.table.embedding_dim)
        self._update.apply(batch.rows, batch.gradient, batch.begun)
        self._touched.clear()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state of this optimiser, or of that of `torch.optim`."""
        super().load_state_dict(state_dict)
        self._update = None

    def _row_state(self) -> dict[str, Any]:
        """Return what `torch.optim` would keep of the table by the first step, if anything."""
        weight = self.table.weight
        if self.kind == "adam" and weight not in self.state:
            zeros = torch.zeros_like(weight)
            self.state[weight] = {"step": 0, "exp_avg": zeros, "exp_avg_sq": zeros.clone()}
        state: dict[str, Any] = self.state.get(weight, {})
        return state


class RowSGD(RowOptimizer, SGD):
    """Stochastic gradient descent."""

    kind = "sgd"


class RowAdagrad(RowOptimizer, Adagrad):
    """Adagrad; rows that a batch does not touch would not change with dense gradients either."""

    kind = "adagrad"


class RowAdam(RowOptimizer, SparseAdam):
    """Adam in its lazy form: the moments of rows that a batch does not touch stand still."""

    kind = "adam"


def gathered(gradient: Tensor | None, weight: Tensor, workers: Workers) -> tuple[Tensor, Tensor]:
    """Return rows of a table and their sparse gradients at all workers, in order of their numbers."""
    rows, values = weight.new_empty(0, dtype=torch.int64), weight.detach()[:0]
    if gradient is not None:
        own = gradient.coalesce()
        rows, values = own.indices()[0], own.values()
    return workers.all_gather_rows(rows), workers.all_gather_rows(values)


def _joined(touched: list[Touched], dim: int) -> Touched:
    """Return several passes as one batch of single look-ups, in their order; one pass as it is."""
    if len(touched) == 1:
        return touched[0]
    rows = [each.rows.reshape(-1, 1) for each in touched]
    gradients = [each.gradient[:, : each.rows.shape[1] * dim].reshape(-1, dim) for each in touched]
    return Touched(torch.cat(rows), torch.cat(gradients))


class HalfOptimizer:
    """Updates the parameters of one half from their `.grad`, as one unit with one state.

    `averaging` is the decay of the weight average for each step, 0 for none. It does not change the updates. All
    `workers` take each step together, and have the same half to the last bit before and after it.
    """

    def __init__(
        self, half: nn.Module, config: OptimizerConfig, averaging: float = 0.0, workers: Workers = ALONE
    ) -> None:
        tables = {id(part.weight): part for part in half.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag)}
        lazy = {key for key, table in tables.items() if table.sparse}
        if lazy and not config.is_tested:
            try_out(config, sparse=True)
        self.parameters: list[nn.Parameter] = [p for p in half.parameters() if p.requires_grad]
        self._name, self._schedule_name = config.name, config.schedule.name if config.schedule else ""
        self._parts: list[Optimizer] = []
        if dense := [p for p in self.parameters if id(p) not in tables]:
            self._parts.append(_optimizer(config, dense, config.weight_decay, sparse=False))
        for parameter in (p for p in self.parameters if id(p) in tables):
            self._parts.append(table_optimizer(config, tables[id(parameter)], parameter))
        for part in self._parts:
            settle(part)
        self._schedules = [_schedule(config.schedule, part) for part in self._parts] if config.schedule else []
        self._by_rows = [part for part in self._parts if isinstance(part, RowOptimizer)]
        self._workers, self._several, self._buffers = workers, workers.are_several, list(half.buffers())
        by_rows = {id(part.table.weight) for part in self._by_rows}
        self._dense = [p for p in self.parameters if id(p) not in lazy]
        self._sparse = [p for p in self.parameters if id(p) in lazy - by_rows]
        averaged = {name: p for name, p in half.named_parameters() if id(p) not in lazy}
        self._average = WeightAverage(averaged, averaging) if averaging else None

    def step(self, records: int = 1) -> None:
        """Apply the gradients, divided by a number of records, and forget them."""
        if self._average is not None and self._average.is_in_place:
            raise RuntimeError("a step while the averaged weights are in place would change the average")
        if self._several:
            self._take_from_all()
        if records != 1:
            gradients = [p.grad for p in self.parameters if p.grad is not None]
            if dense := [gradient for gradient in gradients if not gradient.is_sparse]:
                torch._foreach_div_(pieces(dense) if dense[0].is_cuda else dense, records)
            for gradient in gradients:
                if gradient.is_sparse:
                    gradient /= records
            for by_row in self._by_rows:
                by_row.divide(records)
        with torch.no_grad():
            for part in self._parts:
                part.step()
        if self._average is not None:
            self._average.update()
        for schedule in self._schedules:
            _made(f"the schedule {self._schedule_name}", schedule.step)
        for parameter in self.parameters:
            parameter.grad = None

    def obstacle_to_capture(self) -> str | None:
        """Return why a CUDA graph cannot hold the steps, None if it can.

        To replay one changes weights and states as a step does, apart from what `count` has to put right.
        """
        if self._several:
            return "the workers of a party add up their gradients in every step"
        if self._schedules:
            return f"the schedule {self._schedule_name} changes the learning rate in every step"
        if self._sparse:
            return f"the optimizer {self._name} looks at the sparse gradients of a lazy table"
        if not all(map(_can_be_captured, self._parts)):
            return f"a CUDA graph cannot hold a step of the optimizer {self._name}"
        return None

    def count(self, steps: int) -> None:
        """Count steps that were replayed from a CUDA graph, where they are counted on the host; less than 0: that were
        only captured."""
        for state in (state for part in self._parts for state in part.state.values()):
            if isinstance(step := state.get("step"), Tensor) and not step.is_cuda:
                step += steps

    def averaged(self) -> AbstractContextManager[None]:
        """Within this context the half has its averaged weights, to predict with or to save; a step is an error.

        Without averaging, and before there is an average, these are the weights themselves.
        """
        return nullcontext() if self._average is None else self._average.in_place()

    def state(self) -> tuple[dict[str, Tensor], str]:
        """Return the state as named tensors and a JSON text, for a checkpoint."""
        tensors: dict[str, Tensor] = {}
        parts = [packed(part.state_dict(), f"{number}", tensors) for number, part in enumerate(self._parts)]
        schedules = [packed(each.state_dict(), f"schedule {n}", tensors) for n, each in enumerate(self._schedules)]
        if self._average is not None:
            tensors |= {_AVERAGE + name: value for name, value in self._average.state().items()}
        return tensors, json.dumps({"parts": parts, "schedules": schedules})

    def load_state(self, tensors: dict[str, Tensor], settings: str) -> None:
        """Take over a state that `state` returned."""
        state = json.loads(settings)
        if len(state["parts"]) != len(self._parts):
            raise ValueError(f"the state has {len(state['parts'])} parts, this optimiser has {len(self._parts)}")
        averages = {name.removeprefix(_AVERAGE): t for name, t in tensors.items() if name.startswith(_AVERAGE)}
        if bool(averages) != (self._average is not None):
            raise ValueError(f"the state is that of an optimiser {'with' if averages else 'without'} averaging")
        if self._average is not None:
            self._average.load_state(averages)
        for part, of_part in zip(self._parts, state["parts"], strict=True):
            part.load_state_dict(unpacked(of_part, tensors))
            settle(part)
        for schedule, of_schedule in zip(self._schedules, state["schedules"], strict=True):
            schedule.load_state_dict(unpacked(of_schedule, tensors))

    @torch.no_grad()
    def _take_from_all(self) -> None:
        """Have the sums of all workers' gradients, the same bits everywhere, and the buffers of worker 0.

        Dense gradients are added up, None where nobody has one; sparse ones stand in order of the workers' numbers.
        """
        if self._dense:
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._dense]
            found = torch.tensor([float(p.grad is not None) for p in self._dense], device=self._dense[0].device)
            self._workers.all_reduce([found, *gradients])
            for parameter, gradient, is_found in zip(self._dense, gradients, found.tolist(), strict=True):
                parameter.grad = gradient if is_found else None
        for parameter in self._sparse:
            rows, values = gathered(parameter.grad, parameter, self._workers)
            of_all = torch.sparse_coo_tensor(rows[None], values, parameter.shape, check_invariants=False)
            parameter.grad = of_all if len(rows) else None
        for part in self._by_rows:
            part.take_from_all(self._workers)
        for buffer in self._buffers:
            buffer.copy_(self._workers.broadcast_tensor(buffer))


def try_out(config: OptimizerConfig, *, sparse: bool) -> None:
    """Raise what is wrong with the optimiser, its arguments or its schedule, by taking a step with it."""
    parameters = [nn.Parameter(torch.ones(shape)) for shape in ([(2, 2)] if sparse else [(2, 2), (2,)])]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter).to_sparse(1) if sparse else torch.ones_like(parameter)
    optimizer = _optimizer(config, parameters, 0.0 if sparse else config.weight_decay, sparse=sparse)
    schedule = _schedule(config.schedule, optimizer) if config.schedule else None
    on = " with the sparse gradients of lazy embedding tables" if sparse else ""
    _made(f"a step of the optimizer {config.name}{on}", torch.no_grad()(optimizer.step))
    if schedule is not None and config.schedule is not None:
        _made(f"the schedule {config.schedule.name}", schedule.step)
        packed(schedule.state_dict(), f"schedule {config.schedule.name}", {})
    packed(optimizer.state_dict(), f"optimizer {config.name}", {})


def table_optimizer(config: OptimizerConfig, table: nn.Embedding | nn.EmbeddingBag, weight: nn.Parameter) -> Optimizer:
    """Return the optimiser of an embedding table: by its rows where its device has loops for that, else PyTorch's."""
    if isinstance(table, Table) and table.sparse and config.is_tested and has_loops(weight.device.type):
        by_rows: dict[str, Any] = {"sgd": RowSGD, "adagrad": RowAdagrad, "adam": RowAdam}
        made: Optimizer = _undecorated(by_rows[config.name])(table, lr=config.learning_rate)
        return made
    return _optimizer(config, [weight], 0.0, sparse=table.sparse)


def _optimizer(
    config: OptimizerConfig, parameters: list[nn.Parameter], weight_decay: float, *, sparse: bool
) -> Optimizer:
    """Return the optimiser of these parameters, which get sparse gradients or dense ones."""
    for own, key in (("lr", "learning_rate"), ("weight_decay", "weight_decay")):
        if own in config.arguments:
            raise ValueError(f"the optimizer {config.name} gets its {own} from {key}, not from its arguments")
    make = OPTIMIZERS.get(config.name)
    if sparse and make is torch.optim.Adam:
        make = torch.optim.SparseAdam
    decay = {"weight_decay": weight_decay} if weight_decay or _takes(make, "weight_decay") else {}
    if make is torch.optim.SGD and not (sparse or weight_decay or config.arguments):
        make = PlainSGD
    # In one pass over the weights and their moments, where PyTorch has eight.
    fused = {"fused": True} if make is torch.optim.Adam and not config.arguments else {}
    arguments = {"lr": config.learning_rate, **decay, **fused, **config.arguments}
    kind = _undecorated(make) if make is PlainSGD or make in vars(torch.optim).values() else make
    made: Optimizer = _made(f"the optimizer {config.name}", kind, parameters, **arguments)
    return made


@cache
def _undecorated(kind: Any) -> Any:
    """Return a subclass whose methods lack the wrappers that PyTorch needs for `torch.compile`.

    The first call of a wrapped method imports the compiler, which takes 1.3 s, and an optimizer is never compiled here.
    The caller takes steps under `torch.no_grad`, as the wrappers would.
    """
    methods = {name: getattr(kind, name) for name in dir(kind)}
    return type(kind.__name__, (kind,), {n: m.__wrapped__ for n, m in methods.items() if hasattr(m, "__wrapped__")})


def _schedule(config: ScheduleConfig, optimizer: Optimizer) -> lr_scheduler.LRScheduler:
    """Return the schedule of an optimiser; it is stepped once for each step of training."""
    make = SCHEDULES.get(config.name)
    made: lr_scheduler.LRScheduler = _made(f"the schedule {config.name}", make, optimizer, **config.arguments)
    return made


def in_one_case(name: str, registry: Registry[Callable[..., Any]]) -> str:
    """Return a known name as parties compare it: PyTorch's in lower case."""
    try:
        registry.get(name.lower())
        return name.lower()
    except UnknownName:
        registry.get(name)
        return name


def _takes(make: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(make).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _made(what: str, make: Callable[..., Any], *given: Any, **arguments: Any) -> Any:
    """Return what a call returns; an error names the argument that is not known, or what the part says itself."""
    for name in arguments:
        if not _takes(make, name):
            known = ", ".join(p for p in list(inspect.signature(make).parameters)[len(given) :])
            raise ValueError(f"{what} does not take {name!r}; it takes {known}")
    return called(what, make, *given, **arguments)


def settle(optimizer: Optimizer) -> None:
    """Have an optimiser count its steps where its parameters are, if it can; its state may come from another device."""
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = all(parameter.is_cuda for parameter in group["params"])
            for parameter in group["params"]:
                state = optimizer.state.get(parameter, {})
                if isinstance(state.get("step"), Tensor):
                    state["step"] = state["step"].to(parameter.device)
    # PyTorch warns of a step outside of a graph, as the first one is, and that of a batch of another size.
    optimizer._warned_capturable_if_run_uncaptured = True


def _can_be_captured(part: Optimizer) -> bool:
    """Whether a CUDA graph can hold a step of this optimiser, which has dense gradients or goes over rows."""
    if isinstance(part, Adagrad) and not isinstance(part, RowOptimizer):
        return not any(group["lr_decay"] for group in part.param_groups)
    return isinstance(part, RowOptimizer | SGD) or all(group.get("capturable") for group in part.param_groups)


def packed(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Return a state as JSON; its tensors are added to `tensors`, copied, under names that begin with `path`."""
    if isinstance(value, Tensor):
        tensors[path] = value.detach().clone()
        return {"tensor": path}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [packed(part, f"{path}/{at}", tensors) for at, part in enumerate(value)]
    if isinstance(value, tuple):
        return {"tuple": packed(list(value), path, tensors)}
    if isinstance(value, dict) and all(isinstance(key, int | str) for key in value):
        return {"dict": [[key, packed(part, f"{path}/{key}", tensors)] for key, part in value.items()]}
    raise ValueError(f"the state of the {path} is a {type(value).__name__}, which no checkpoint can hold")


def unpacked(content: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the state that `packed` made this of."""
    if isinstance(content, list):
        return [unpacked(part, tensors) for part in content]
    if not isinstance(content, dict):
        return content
    ((kind, value),) = content.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "tuple":
        return tuple(unpacked(value, tensors))
    return {key: unpacked(part, tensors) for key, part in value}
