"""Copies between a device and the wire; those of a GPU need one."""

import numpy as np
import pytest
import torch
from tpsl.transport.device_copies import Payload, arrived, leaving
from tpsl.transport.rounding import as_sent, from_wire, rounded

DEVICES = [
    torch.device("cpu"),
    pytest.param(
        torch.device("cuda"), marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
    ),
]


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8"])
def test_what_leaves_one_device_arrives_on_another_as_it_was_when_it_left(device: torch.device, dtype: str) -> None:
    given = torch.randn(300, 40, generator=torch.Generator().manual_seed(0)).to(device)
    wanted = rounded(given, dtype)  # type: ignore[arg-type]
    copied = leaving(as_sent(given, dtype))  # type: ignore[arg-type]
    given.fill_(7.0)
    crossing = copied().view(torch.uint8).view(-1)
    assert crossing.device.type == "cpu"
    payload = Payload(len(crossing), device)
    received = memoryview(crossing.numpy().tobytes())
    for start in range(0, len(received), 1000):
        assert payload.due == len(received) - start
        payload.append(received[start : start + 1000])
    assert payload.due == 0
    there = arrived(from_wire(payload.numbers, (300, 40), dtype), device)  # type: ignore[arg-type]
    assert there.device.type == device.type
    assert torch.equal(there, wanted)


def test_bytes_stay_bytes() -> None:
    payload = Payload(6, torch.device("cpu"))
    payload.append(memoryview(b"abc"))
    payload.append(memoryview(b"def"))
    rows = arrived(from_wire(payload.numbers, (2, 3), "uint8"), torch.device("cpu"))
    assert np.array_equal(rows.numpy(), np.frombuffer(b"abcdef", np.uint8).reshape(2, 3))
