import pytest
import torch
from pydantic import ValidationError

from tpsl.models import Bottom, Bottoms, ModelConfig, Top, Tops

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
