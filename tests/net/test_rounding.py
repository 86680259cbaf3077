"""How numbers cross, and the checks of what has come; what arrives through each way is in `test_conformance.py`."""

import math
from typing import get_args

import numpy as np
import pytest
import torch

from tpsl.net.failures import NOT_FINITE, BadMessage
from tpsl.net.messages import Message, WireDtype, WireType
from tpsl.net.rounding import (
    are_scales,
    as_received,
    as_sent,
    checked_tensor,
    from_wire,
    in_memory,
    require_finite,
    rounded,
    row_scales,
    wire_bytes,
)

DTYPES: tuple[WireDtype, ...] = get_args(WireDtype)


def numbers() -> torch.Tensor:
    rows = torch.randn(64, 12, generator=torch.Generator().manual_seed(0))
    return rows * torch.logspace(-6, 6, 64)[:, None]


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_crosses_has_the_bytes_that_were_announced_and_is_the_senders_no_more(dtype: WireType) -> None:
    given = numbers()
    sent, arriving = as_sent(given, dtype), rounded(given, dtype)
    assert sent.nbytes == wire_bytes(given.shape, dtype)
    given.zero_()
    again = from_wire(sent.view(torch.uint8).view(-1), (64, 12), dtype)
    assert torch.equal(as_received(again), arriving)
    assert float(arriving.abs().sum()) > 0


@pytest.mark.parametrize("dtype", [*DTYPES, "uint8"])
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_what_is_empty_crosses_as_it_is(dtype: WireType, shape: tuple[int, int]) -> None:
    sent = as_sent(torch.empty(shape, dtype=in_memory(dtype)), dtype)
    content = np.frombuffer(bytes(sent.view(torch.uint8).view(-1).tolist()), np.uint8).copy()
    assert as_received(from_wire(torch.from_numpy(content), shape, dtype)).shape == shape


def test_int8_is_off_by_at_most_half_a_scale() -> None:
    given = numbers()
    sent = as_sent(given, "int8")
    error = (as_received(sent) - given).abs()
    assert bool((error <= row_scales(sent) * 0.50001).all())
    torch.testing.assert_close(row_scales(sent)[:, 0], given.abs().amax(dim=1) / 127)


def test_rounding_what_was_rounded_changes_nothing() -> None:
    for dtype in DTYPES:
        once = rounded(numbers(), dtype)
        torch.testing.assert_close(rounded(once, dtype), once, rtol=1e-6, atol=0)


def test_scales_are_finite_and_not_negative_or_say_that_a_row_is_not_finite() -> None:
    assert are_scales(torch.tensor([[0.0], [1e-38], [3e36], [float("nan")]]))
    for wrong in (-0.0, -1.0, float("inf"), float("-inf")):
        assert not are_scales(torch.tensor([[1.0], [wrong]]))


@pytest.mark.parametrize("tensor", [torch.ones(3), torch.ones(2, 2, 2), torch.ones(2, 2, dtype=torch.float64)])
def test_only_rows_of_float32_are_sent(tensor: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"^a tensor crosses as rows of float32, not as float\d\d of shape \("):
        as_sent(tensor, "bfloat16")


def test_a_good_tensor_passes_as_it_is() -> None:
    tensor = torch.full((4, 3), 3e38)  # the sum is infinite, the numbers are not
    assert checked_tensor(Message(tensor=tensor), "these", 4, 3) is tensor
    assert checked_tensor(Message(tensor=tensor), "these", 4, range(2, 4)) is tensor
    require_finite(tensor, "these")


@pytest.mark.parametrize(
    ("tensor", "width", "complaint"),
    [
        (None, 3, "are missing"),
        (torch.ones(4, 2), 3, r"have shape \(4, 2\), not \(4, 3\)"),
        (torch.ones(5, 3), 3, r"have shape \(5, 3\), not \(4, 3\)"),
        (torch.ones(4, 4), range(2, 4), r"have shape \(4, 4\), not \(4, 2 to 3\)"),
    ],
)
def test_a_tensor_of_another_shape_is_refused(tensor: torch.Tensor | None, width: int | range, complaint: str) -> None:
    with pytest.raises(BadMessage, match=f"^these {complaint}"):
        checked_tensor(Message(tensor=tensor), "these", 4, width)


@pytest.mark.parametrize("values", [[math.nan, 1.0], [math.inf, -math.inf], [3e38, math.nan]])
def test_one_bad_number_is_found_and_has_its_code(values: list[float]) -> None:
    tensor = torch.ones(4, 3)
    tensor[2, 1:] = torch.tensor(values)
    with pytest.raises(BadMessage, match=r"^these contain numbers that are not finite") as bad:
        require_finite(tensor, "these")
    assert bad.value.code == NOT_FINITE
