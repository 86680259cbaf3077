from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load, save
from torch import nn

from tpsl.models.halves import Bottom, Bottoms, Top, Tops
from tpsl.models.model_config import ModelConfig
from tpsl.registry import ExtensionError

CONFIG = ModelConfig(embedding_dim=4, bottom=(16, 8), top=(16,), members=3)


def generators(count: int = 3) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in range(count)]


def bottoms(config: ModelConfig = CONFIG, count: int = 3) -> Bottoms:
    return Bottoms([Bottom(30, 3, 2, config, generator) for generator in generators(count)], 8)


def tops(shares: int, classes: int, count: int = 3) -> Tops:
    return Tops([Top(8 * shares, classes, CONFIG, generator) for generator in generators(count)], classes)


def batch(n: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, 30, (n, 3), generator=generator, dtype=torch.int32), torch.randn(n, 2, generator=generator)


def test_a_share_of_the_cut_lies_member_after_member() -> None:
    half = bottoms()
    alone = [Bottom(30, 3, 2, CONFIG, generator) for generator in generators()]
    cut = half(*batch())
    assert (half.width, CONFIG.cut_width("any"), cut.shape) == (24, 24, (40, 24))
    for number, member in enumerate(alone):
        assert torch.equal(cut[:, 8 * number : 8 * (number + 1)], member(*batch()))
    assert not torch.equal(cut[:, :8], cut[:, 8:16])


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("shares", [1, 3])
def test_a_member_sees_its_slice_of_every_share(shares: int, classes: int) -> None:
    half = tops(shares, classes)
    alone = [Top(8 * shares, classes, CONFIG, generator) for generator in generators()]
    parts = [torch.randn(40, 24, generator=torch.Generator().manual_seed(share)) for share in range(shares)]
    cut = torch.cat(parts, dim=1).requires_grad_()
    logits = half(cut.split(24, dim=1))
    assert logits.shape == ((3, 40) if classes == 2 else (3, 40, 5))
    for number, member in enumerate(alone):
        own = torch.cat([part[:, 8 * number : 8 * (number + 1)] for part in parts], dim=1)
        assert torch.equal(logits[number], member(own))
        (slope,) = torch.autograd.grad(logits[number].sum(), cut, retain_graph=True)
        seen = slope.reshape(40, shares, 3, 8).abs().sum(dim=(0, 3)) > 0
        assert seen.tolist() == [[number == other for other in range(3)]] * shares


def test_one_member_is_the_plain_half() -> None:
    config = CONFIG.model_copy(update={"members": 1})
    plain = Bottom(30, 3, 2, config, *generators(1)), Top(16, 2, config, *generators(1))
    bottom, top = bottoms(config, 1), tops(2, 2, 1)
    for made, alone in zip((bottom, top), plain, strict=True):
        assert list(made.state_dict()) == [f"members.0.{name}" for name in alone.state_dict()]
        assert all(torch.equal(a, b) for a, b in zip(made.parameters(), alone.parameters(), strict=True))
    shares = [bottom(*batch()), torch.randn(40, 8)]
    assert torch.equal(shares[0], plain[0](*batch()))
    assert torch.equal(top(shares), plain[1](torch.cat(shares, dim=1))[None])
    assert list(bottom.state_dict())[:2] == ["members.0.embedding.weight", "members.0.layers.0.weight"]
    assert config.cut_width("any") == bottom.width == 8


def test_lazy_updates_are_decided_by_the_table_of_one_member() -> None:
    config = ModelConfig(embedding_dim=1, bottom=(2,), members=3)
    for rows, lazy in ((199_999, False), (200_000, True)):
        half = Bottoms([Bottom(rows, 1, 0, config, generator) for generator in generators()], 2)
        assert [part.sparse for part in half.modules() if isinstance(part, torch.nn.Embedding)] == [lazy] * 3


def test_a_batch_without_records() -> None:
    cut = bottoms()(*batch(0))
    assert cut.shape == (0, 24)
    assert tops(1, 2)([cut]).shape == (3, 0)


@pytest.mark.parametrize("members", [0, 65])
def test_too_few_and_too_many_members_are_refused(members: int) -> None:
    with pytest.raises(ValidationError, match="members"):
        ModelConfig(members=members)


class Fails(nn.Linear):
    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        raise KeyError("no such layer")


class Half(nn.Module):
    """A linear layer, and something after it."""

    def __init__(self, after: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.after = nn.Linear(3, 8), after

    def forward(self, batch: torch.Tensor) -> Any:
        return self.after(self.linear(batch))


@pytest.mark.parametrize(
    ("half", "reason"),
    [
        (Fails(3, 8), r"fails on a batch of size 5 \(KeyError: 'no such layer'\)"),
        (nn.Linear(2, 8), r"fails on a batch of size 5 \(RuntimeError: .*shapes cannot be multiplied"),
        (nn.Linear(3, 7), r"returns float32 of shape \[5, 7\], not float32 of shape \[5, 8\]"),
        (Half(torch.Tensor.double), r"returns float64 of shape \[5, 8\]"),
        (Half(list), "returns list, not a tensor"),
        (Half(nn.Dropout(0.5)), "draws random numbers from PyTorch's generator in its forward pass, as dropout does"),
    ],
)
def test_what_is_wrong_with_a_half_is_one_sentence_that_names_it(half: nn.Module, reason: str) -> None:
    bottom = Bottoms([half], 8, "the bottom half of left, networks:half,")
    with pytest.raises(ExtensionError, match=f"^the bottom half of left, networks:half, {reason}"):
        bottom(torch.ones(5, 3))


def drawn_elsewhere(batch: torch.Tensor) -> torch.Tensor:
    """Draw from PyTorch's generator in another thread, and in this one from a generator of its own."""
    thread = Thread(target=torch.rand, args=(1,))
    thread.start()
    thread.join()
    return batch + torch.rand(batch.shape, generator=torch.Generator().manual_seed(0))


def test_what_another_thread_draws_is_no_reason() -> None:
    """Parties that run as threads of one process make their networks, which draws, while others train."""
    assert Bottoms([Half(drawn_elsewhere)], 8)(torch.ones(5, 3)).shape == (5, 8)


def test_dropout_that_does_nothing_in_prediction_is_no_reason() -> None:
    assert Bottoms([Half(nn.Dropout(0.5))], 8).eval()(torch.ones(5, 3)).shape == (5, 8)


@pytest.mark.parametrize(("classes", "width", "shape"), [(2, 1, (1, 5)), (3, 3, (1, 5, 3))])
def test_any_module_is_a_top_half(classes: int, width: int, shape: tuple[int, ...]) -> None:
    layer = nn.Linear(8, width)
    found = Tops([layer], classes)([torch.ones(5, 3), torch.ones(5, 5)])
    assert found.shape == shape
    assert torch.equal(found.reshape(5, width), layer(torch.ones(5, 8)))
    with pytest.raises(ExtensionError, match=r"^the top half returns float32 of shape \[5, 2\], not "):
        Tops([nn.Linear(8, 2)], classes)([torch.ones(5, 8)])


def test_weights_that_layers_share_are_saved_and_read_back() -> None:
    table = nn.Linear(4, 4)
    shared = Bottoms([nn.Sequential(table, nn.ReLU(), table)], 4)
    other = nn.Linear(4, 4)
    read = Bottoms([nn.Sequential(other, nn.ReLU(), other)], 4)
    read.load_state_dict(load(save(shared.state_dict())))
    assert torch.equal(read(torch.ones(2, 4)), shared(torch.ones(2, 4)))
    assert len(list(shared.parameters())) == 2
