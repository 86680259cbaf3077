"""How numbers cross; what arrives over a channel is in `test_conformance.py`."""

from typing import get_args

import pytest
import torch

from tpsl.net.messages import WireDtype, WireType
from tpsl.net.rounding import are_scales, as_received, as_sent, from_wire, rounded, row_scales, wire_bytes

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
