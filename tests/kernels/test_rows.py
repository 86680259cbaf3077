import math
from itertools import product
from typing import Any

import numba.core.caching
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tpsl.kernels.rows import compiled, gather, has_loops, loops
from tpsl.kernels.rows_numba import _ranges_of_fields
from tpsl.models.halves import Table, Touched
from tpsl.models.model_config import OptimizerConfig
from tpsl.models.optimizer import RowOptimizer, table_optimizer

NAMES = ["sgd", "adagrad", "adam"]
OF_TORCH: dict[str, Any] = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.SparseAdam}
ROWS, DIM, FIELDS, NUMBERS = 40, 6, 5, 3


class Half(nn.Module):
    """An embedding layer, with the gradient of PyTorch or with that of a table that keeps it, and a dense layer."""

    def __init__(self, *, lazy: bool = True, dim: int = DIM) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.table = Table(ROWS, dim, lazy=lazy)
        self.layer = nn.Linear(FIELDS * dim + NUMBERS, 1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(0.0, 1 / math.sqrt(FIELDS * dim), generator=generator)

    def forward(self, categorical: Tensor, numeric: Tensor) -> Tensor:
        inputs = self.table.beside(categorical, numeric)  # zeros stand behind them
        return torch.tanh(self.layer(inputs[:, : self.layer.in_features]))


def lazy_optimizer(name: str, table: Table, rate: float) -> torch.optim.Optimizer:
    return table_optimizer(OptimizerConfig(name=name, learning_rate=rate), table, table.weight)


def batch(number: int, records: int = 32, *, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    categorical = torch.randint(0, rows, (records, FIELDS), generator=generator, dtype=torch.int32)
    return categorical, torch.randn(records, NUMBERS, generator=generator)


def trained(half: Half, optimizer: torch.optim.Optimizer, steps: int, records: int = 32, parts: int = 1) -> Half:
    for step in range(steps):
        for inputs in zip(*(tensor.chunk(parts) for tensor in batch(step, records)), strict=True):
            ((half(*inputs) - 1).square().sum() / (records or 1)).backward()
        optimizer.step()
        half.zero_grad()
    return half


@pytest.mark.parametrize("dim", [1, 6, 16, 40])
@pytest.mark.parametrize("name", NAMES)
def test_a_hundred_steps_are_those_of_torch_optim(name: str, dim: int) -> None:
    """Most rows of a batch occur several times in it."""
    simple, fast = Half(dim=dim), Half(dim=dim)
    begun = fast.table.weight.detach().clone()
    trained(simple, OF_TORCH[name]([simple.table.weight], lr=0.05), 100)
    trained(fast, lazy_optimizer(name, fast.table, 0.05), 100)
    assert fast.table.weight.grad is None
    assert (fast.table.weight - begun).abs().max() > 0.02
    torch.testing.assert_close(fast.table.weight, simple.table.weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_several_passes_before_an_update_are_one_batch(name: str) -> None:
    simple, fast = Half(), Half()
    trained(simple, OF_TORCH[name]([simple.table.weight], lr=0.05), 10, parts=4)
    trained(fast, lazy_optimizer(name, fast.table, 0.05), 10, parts=4)
    torch.testing.assert_close(fast.table.weight, simple.table.weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits_each_time_and_with_any_number_of_threads(name: str) -> None:
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 2):
            torch.set_num_threads(threads)
            table = Table(ROWS, 16, lazy=True)
            nn.init.ones_(table.weight)
            optimizer = lazy_optimizer(name, table, 0.05)
            for step in range(5):
                gradient = torch.randn(500, FIELDS, 16, generator=torch.Generator().manual_seed(step))
                table(batch(step, 500)[0]).backward(gradient)
                optimizer.step()
            results.append(table.weight.detach().clone())
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[1], results[2])


@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits_where_threads_share_the_work(name: str) -> None:
    """Each field has rows of its own, so that each thread updates some fields; all look-ups would be too few for it."""
    categorical = torch.arange(FIELDS) * 8 + batch(0, 1 << 13, rows=8)[0]
    assert len(_ranges_of_fields(categorical.numpy(), 2)) == FIELDS
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            table = Table(ROWS, 16, lazy=True)
            nn.init.uniform_(table.weight, generator=torch.Generator().manual_seed(1))
            optimizer = lazy_optimizer(name, table, 0.05)
            found = table(categorical)
            found.backward(torch.randn(found.shape, generator=torch.Generator().manual_seed(2)))
            optimizer.step()
            results.append((found.detach(), table.weight.detach().clone()))
    finally:
        torch.set_num_threads(before)
    for found, weight in results:
        assert torch.equal(found, results[0][0])
        assert torch.equal(weight, results[0][1])


def test_no_two_threads_update_the_same_row() -> None:
    rows = np.array([[0, 5, 3, 9, 10], [1, 2, 4, 8, 11]])
    assert _ranges_of_fields(rows, 2) == [(1, 3), (0, 1), (3, 4), (4, 5)], "that with most rows comes first"
    assert _ranges_of_fields(rows[:, ::-1], 2) == [(0, 5)]
    assert _ranges_of_fields(np.arange(96).reshape(1, 96), 2) == [(start, start + 12) for start in range(0, 96, 12)]
    assert _ranges_of_fields(rows, 1) == [(0, 5)]


@pytest.mark.parametrize("name", NAMES)
def test_states_go_from_torch_optim_to_the_loops_and_back(name: str) -> None:
    one, other = Half(), Half()
    optimizers = [OF_TORCH[name]([one.table.weight], lr=0.05), lazy_optimizer(name, other.table, 0.05)]
    for half, optimizer in zip((one, other), optimizers, strict=True):
        trained(half, optimizer, 3)
    states = [optimizer.state_dict() for optimizer in optimizers]
    assert states[0]["param_groups"] == states[1]["param_groups"]
    torch.testing.assert_close(states[0]["state"], states[1]["state"], rtol=1e-5, atol=1e-7)
    for optimizer, state in zip(optimizers, states[::-1], strict=True):
        optimizer.load_state_dict(state)
    for half, optimizer in zip((one, other), optimizers, strict=True):
        trained(half, optimizer, 3)
    torch.testing.assert_close(one.table.weight, other.table.weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_only_touched_rows_change_the_first_and_the_last_too(name: str) -> None:
    table = Table(ROWS, DIM, lazy=True)
    before = table.weight.detach().clone()
    optimizer = lazy_optimizer(name, table, 0.05)
    table(torch.tensor([[0, ROWS - 1], [7, 0]])).sum().backward()
    optimizer.step()
    changed = (table.weight != before).all(dim=1)
    assert changed.nonzero().flatten().tolist() == [0, 7, ROWS - 1]
    assert torch.equal(table.weight[~changed], before[~changed])


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_batch_changes_nothing_and_counts_as_a_step(name: str) -> None:
    simple, fast = Half(), Half()
    optimizers = [OF_TORCH[name]([simple.table.weight], lr=0.05), lazy_optimizer(name, fast.table, 0.05)]
    for half, optimizer in zip((simple, fast), optimizers, strict=True):
        trained(half, optimizer, 2)
        trained(half, optimizer, 1, records=0)
        trained(half, optimizer, 2)
    torch.testing.assert_close(fast.table.weight, simple.table.weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_rows_are_looked_up_beside_numbers(dtype: torch.dtype) -> None:
    weight = torch.randn(ROWS, DIM)
    categorical = batch(0)[0].to(dtype)
    expected = weight[categorical.long()].flatten(start_dim=1)
    assert torch.equal(gather(weight, categorical), expected)
    out = torch.full((len(categorical), FIELDS * DIM + NUMBERS), 7.0)
    assert gather(weight, categorical, out) is out
    assert torch.equal(out, torch.cat([expected, torch.full((len(categorical), NUMBERS), 7.0)], dim=1))


def test_a_table_gives_the_same_inputs_whether_it_keeps_its_gradient_or_not() -> None:
    keeps, does_not = Half(), Half(lazy=False)
    lazy_optimizer("sgd", keeps.table, 0.1)
    categorical, numeric = batch(3)
    assert torch.equal(keeps.table.beside(categorical, numeric), does_not.table.beside(categorical, numeric))
    assert torch.equal(keeps.table(categorical), does_not.table(categorical))
    with torch.no_grad():
        assert torch.equal(keeps.table(categorical), does_not.table(categorical))
    assert keeps.table.touched == []


def test_the_gradient_of_the_numbers_goes_on() -> None:
    half = Half()
    lazy_optimizer("sgd", half.table, 0.1)
    categorical, numeric = batch(3)
    numeric.requires_grad_()
    half.table.beside(categorical, numeric).square().sum().backward()
    torch.testing.assert_close(numeric.grad, 2 * numeric.detach())


@pytest.mark.parametrize("wrong", [-1, ROWS, 2**31 - 1])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_a_row_is_refused_and_nothing_changes(name: str, wrong: int) -> None:
    table = Table(ROWS, DIM, lazy=True)
    before = table.weight.detach().clone()
    optimizer = lazy_optimizer(name, table, 0.05)
    rows = torch.tensor([[0, wrong]], dtype=torch.int32)
    with pytest.raises(IndexError, match=f"the table has rows 0 to 39; .*{wrong}.* were looked up"):
        table(rows)
    assert table.touched is not None
    table.touched.append(Touched(rows, torch.ones(1, 2 * DIM)))
    with pytest.raises(IndexError, match="the table has rows 0 to 39"):
        optimizer.step()
    assert torch.equal(table.weight, before)


def test_gradients_of_a_row_are_added_up_in_the_order_of_the_batch() -> None:
    rows = torch.tensor([[3, 0], [3, 3], [1, 0]], dtype=torch.int32)
    gradient = torch.randn(3, 2 * DIM + 1, generator=torch.Generator().manual_seed(0))
    expected = torch.zeros(4, DIM)
    for record, field in product(range(3), range(2)):
        expected[rows[record, field]] += gradient[record, field * DIM : (field + 1) * DIM]
    for batch_rows, given, wanted in ((rows, gradient, expected), (rows[:0], gradient[:0], torch.zeros(4, DIM))):
        sums = torch.zeros(4, DIM)
        loops("cpu").RowUpdate("sgd", sums, {"lr": -1.0}, {}).apply(batch_rows, given)
        assert torch.equal(sums, wanted)


def test_where_there_are_no_loops_torch_optim_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_loops("cpu") and not has_loops("meta")
    monkeypatch.setattr("tpsl.kernels.rows._LOOPS", {"cpu": ("a_package_that_is_missing", "tpsl.kernels.rows_numba")})
    half = Half()
    optimizer = lazy_optimizer("adam", half.table, 0.05)
    assert isinstance(optimizer, torch.optim.SparseAdam) and not isinstance(optimizer, RowOptimizer)
    trained(half, optimizer, 1)
    assert half.table.touched is None


def test_loops_are_compiled_where_no_folder_is_writable(monkeypatch: pytest.MonkeyPatch) -> None:
    def double(number: int) -> int:
        return 2 * number

    monkeypatch.setattr(numba.core.caching.CompileResultCacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="cannot cache"):
        numba.njit(double, cache=True)
    assert compiled(double)(21) == 42


def test_rows_are_rounded_to_bfloat16_as_pytorch_does() -> None:
    table = torch.randn(1000, 7, generator=torch.Generator().manual_seed(0))
    table[:3] = torch.tensor([[1.00390625], [1.01171875], [float("inf")]])  # two ties, one to each side
    rows = torch.randint(0, 1000, (300, 4), generator=torch.Generator().manual_seed(1))
    rows[0] = torch.tensor([0, 1, 2, 3])
    found = gather(table, rows, torch.empty(300, 4 * 7, dtype=torch.bfloat16))
    assert torch.equal(found, gather(table, rows).bfloat16())


@pytest.mark.parametrize("name", NAMES)
def test_gradients_in_bfloat16_update_as_the_same_numbers_in_float32(name: str) -> None:
    tables = []
    for dtype in (torch.float32, torch.bfloat16):
        table = Table(ROWS, DIM, lazy=True)
        nn.init.ones_(table.weight)
        optimizer = lazy_optimizer(name, table, 0.05)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            found = table.beside(*batch(0))
        assert found.dtype == dtype
        gradient = torch.randn(found.shape, generator=torch.Generator().manual_seed(2)).bfloat16()
        found.backward(gradient.to(dtype))
        optimizer.step()
        tables.append(table.weight.detach())
    assert not torch.equal(tables[0], torch.ones_like(tables[0]))
    assert torch.equal(*tables)
