"""The row update on a CUDA device is that of `torch.optim`, in an order that does not depend on timing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device")
OPTIMIZERS = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.SparseAdam}
SHAPES = {
    "several fields": (50, 33, 5, 4, 0),
    "numbers behind": (7, 300, 2, 16, 3),
    "not a power of two": (1000, 40, 7, 12, 1),
    "wide rows": (3, 40, 1, 200, 0),
    "a row in many tiles": (5, 9000, 1, 16, 0),
}


def look_ups(rows: int, records: int, fields: int) -> Tensor:
    """Random look-ups, most of those of the first field of the last row."""
    categorical = torch.randint(0, rows, (records, fields), device="cuda", dtype=torch.int32)
    categorical[torch.rand(records, device="cuda") < 0.8, 0] = rows - 1
    return categorical


def begun(kind: str, weight: Tensor, settings: dict[str, Any]) -> Any:
    from tpsl.kernels.rows_triton import RowUpdate

    names = {"sgd": (), "adagrad": ("sum",), "adam": ("exp_avg", "exp_avg_sq")}[kind]
    state: dict[str, Any] = {name: torch.zeros_like(weight) for name in names}
    return RowUpdate(kind, weight, settings, {**state, "step": 0} if names else {})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_that_of_torch_optim(kind: str, shape: str) -> None:
    from tpsl.kernels.rows_triton import begin, gather

    torch.manual_seed(0)
    rows, records, fields, dim, numbers = SHAPES[shape]
    theirs = torch.nn.Parameter(torch.randn(rows, dim, device="cuda"))
    ours, width = theirs.detach().clone(), fields * dim
    optimizer = OPTIMIZERS[kind]([theirs], lr=0.05, **({"lr_decay": 0.1} if kind == "adagrad" else {}))  # type: ignore[arg-type]
    update = begun(kind, ours, optimizer.param_groups[0])
    for step in range(5):
        categorical = look_ups(rows, records, fields)
        found = torch.empty(records, width + numbers, device="cuda")
        gather(ours, categorical, found)
        assert torch.equal(found[:, :width], ours[categorical.long()].reshape(records, width))
        gradient = torch.randn_like(found)
        update.apply(categorical, gradient, begin(categorical)() if step % 2 else None)
        values = gradient[:, :width].reshape(-1, dim).double()
        summed = torch.sparse_coo_tensor(categorical.reshape(1, -1).long(), values, (rows, dim)).coalesce()
        theirs.grad = torch.sparse_coo_tensor(summed.indices(), summed.values().float(), (rows, dim))
        optimizer.step()
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-5)


def test_a_batch_gives_the_same_bits_every_time_and_in_a_graph() -> None:
    torch.manual_seed(0)
    start, categorical = torch.randn(40, 16, device="cuda"), look_ups(40, 5000, 3)
    gradient, found = torch.randn(5000, 48, device="cuda"), []
    for _ in range(3):
        weight = start.clone()
        begun("sgd", weight, {"lr": 0.1}).apply(categorical, gradient)
        found.append(weight)
    weight = start.clone()
    update = begun("sgd", weight, {"lr": 0.1})
    update.apply(categorical, gradient)
    weight.copy_(start)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        update.apply(categorical, gradient)
    assert torch.equal(weight, start)
    graph.replay()
    assert all(torch.equal(each, weight) for each in found)


def test_an_empty_batch_counts_a_step_and_changes_nothing() -> None:
    weight = torch.ones(3, 4, device="cuda")
    update = begun("adam", weight, {"lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-8})
    update.apply(torch.empty(0, 2, dtype=torch.int32, device="cuda"), torch.empty(0, 8, device="cuda"))
    assert torch.equal(weight, torch.ones_like(weight))
    assert float(update._state["step"]) == 1


@pytest.mark.parametrize("is_begun", [False, True])
def test_gradients_of_a_row_are_added_up(is_begun: bool) -> None:
    from tpsl.kernels.rows_triton import begin

    torch.manual_seed(0)
    categorical, gradient = look_ups(40, 5000, 3), torch.randn(5000, 50, device="cuda")
    found, expected = torch.zeros(40, 16, device="cuda"), torch.zeros(40, 16, dtype=torch.float64, device="cuda")
    begun("sgd", found, {"lr": -1.0}).apply(categorical, gradient, begin(categorical)() if is_begun else None)
    expected.index_add_(0, categorical.reshape(-1), gradient[:, :48].reshape(-1, 16).double())
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-4)
