import math

import pytest
import torch
from tpsl.transport.checks import BadMessage, checked_tensor
from tpsl.transport.messages import TensorMessage


def check(tensor: torch.Tensor) -> torch.Tensor:
    return checked_tensor(TensorMessage("embeddings", 7, 1, tensor), "the airport", 7, 1, (4, 3))


def test_a_good_tensor_passes_as_it_is() -> None:
    tensor = torch.ones(4, 3)
    assert check(tensor) is tensor


@pytest.mark.parametrize(
    ("tensor", "complaint"),
    [
        (torch.ones(4, 2), r"have shape \(4, 2\), not \(4, 3\)"),
        (torch.ones(12), r"have shape \(12,\)"),
        (torch.ones(4, 3, dtype=torch.float64), "are float64, not float32"),
        (torch.ones(4, 3, dtype=torch.int32), "are int32, not float32"),
        (torch.full((4, 3), math.nan), "not finite"),
        (torch.tensor([[math.inf, -math.inf, 0.0]] * 4), "not finite"),
    ],
)
def test_a_bad_tensor_is_refused_by_name(tensor: torch.Tensor, complaint: str) -> None:
    with pytest.raises(BadMessage, match=f"step 7: the embeddings from the airport .*{complaint}"):
        check(tensor)


@pytest.mark.parametrize(("step", "part"), [(7, 0), (6, 1), (8, 1)])
def test_a_tensor_out_of_turn_is_refused(step: int, part: int) -> None:
    sentence = f"the airport sent embeddings of step 7, part 1; expected was step {step}, part {part}"
    with pytest.raises(BadMessage, match=sentence):
        checked_tensor(TensorMessage("embeddings", 7, 1, torch.ones(4, 3)), "the airport", step, part, (4, 3))


def test_one_bad_number_is_found_and_large_finite_ones_pass() -> None:
    tensor = torch.full((4, 3), 3e38)
    assert check(tensor) is tensor
    tensor[2, 1] = math.nan
    with pytest.raises(BadMessage, match="not finite"):
        check(tensor)
