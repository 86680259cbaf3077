"""Pre-training: what it learns without labels, what it leaves alone, and tables of every shape."""

import dataclasses
import inspect

import numpy as np
import numpy.typing as npt
import pytest
import torch
from pydantic import ValidationError

from tpsl.data.features import Features
from tpsl.heads.pretraining import pretrain, sampled_cross_entropy
from tpsl.models.halves import Bottom
from tpsl.models.model_config import ModelConfig, PretrainConfig

CLASSES, FIELDS, VALUES, NUMBERS = 4, 6, 60, 2
UNUSED = FIELDS * VALUES  # a row of the embedding table that no record has


def hidden_classes(rows: int, seed: int = 0) -> tuple[Features, npt.NDArray[np.int64]]:
    """Records of four hidden classes: each value of a field mostly belongs to one of them, numbers hardly tell."""
    rng = np.random.default_rng(seed)
    hidden = rng.integers(0, CLASSES, rows)
    class_of_value = np.random.default_rng(1000).permuted(np.tile(np.arange(VALUES) % CLASSES, (FIELDS, 1)), axis=1)
    categorical = np.empty((rows, FIELDS), dtype=np.int32)
    for field in range(FIELDS):
        meant = np.where(rng.random(rows) < 0.7, hidden, rng.integers(0, CLASSES, rows))
        values = np.stack([np.flatnonzero(class_of_value[field] == j) for j in range(CLASSES)])
        categorical[:, field] = field * VALUES + values[meant, rng.integers(0, values.shape[1], rows)]
    numeric = (0.3 * hidden[:, None] + rng.normal(size=(rows, NUMBERS))).astype(np.float32)
    fields = tuple(f"c{i}" for i in range(FIELDS)), tuple(f"x{i}" for i in range(NUMBERS))
    return Features(categorical, numeric, UNUSED + 1, *fields), hidden


def bottom_for(features: Features, updates: str = "dense", widths: tuple[int, ...] = (32, 16)) -> Bottom:
    config = ModelConfig(embedding_dim=8, bottom=widths, embedding_updates=updates)  # type: ignore[arg-type]
    fields = features.categorical.shape[1], features.numeric.shape[1]
    return Bottom(features.embedding_rows, *fields, config, torch.Generator().manual_seed(3))


def config(epochs: int = 3, **constants: float) -> PretrainConfig:
    class Quick(PretrainConfig):
        pass

    for name, value in {"batch_size": 128, **constants}.items():
        setattr(Quick, name, value)
    return Quick(method="masked", epochs=epochs)


@torch.no_grad()
def cut_of(bottom: Bottom, features: Features) -> torch.Tensor:
    cut: torch.Tensor = bottom(torch.from_numpy(features.categorical), torch.from_numpy(features.numeric))
    return cut


def weights_of(bottom: Bottom) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in bottom.parameters()]


def equal(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def trained(seed: int = 5, updates: str = "dense") -> tuple[list[torch.Tensor], list[float]]:
    features, _ = hidden_classes(1000)
    bottom = bottom_for(features, updates)
    losses = pretrain(bottom, features, np.arange(900), config(), seed)
    return weights_of(bottom), losses


@pytest.mark.parametrize("updates", ["dense", "lazy"])
def test_the_result_is_a_function_of_the_seed_and_of_nothing_else(updates: str) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    features, _ = hidden_classes(1000)
    bottom = bottom_for(features, updates)
    torch.set_rng_state(before)
    first = pretrain(bottom, features, np.arange(900), config(), 5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    weights, second = trained(updates=updates)
    assert equal(weights, weights_of(bottom))
    assert first == second
    assert not equal(weights, trained(seed=6, updates=updates)[0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("updates", ["dense", "lazy"])
def test_cuda_gives_the_same_result_twice(updates: str) -> None:
    features, _ = hidden_classes(3000)
    results = []
    for _ in range(2):
        bottom = bottom_for(features, updates).to("cuda")
        losses = pretrain(bottom, features, np.arange(3000), config(), 5)
        assert min(losses) < losses[0]
        results.append(weights_of(bottom))
    assert equal(*results)


def test_the_loss_on_held_out_records_falls() -> None:
    features, _ = hidden_classes(2000)
    losses = pretrain(bottom_for(features), features, np.arange(2000), config(epochs=8), 0)
    assert len(losses) == 1 + 8
    assert min(losses) < 0.95 * losses[0]


def test_the_cut_tells_hidden_classes_that_fresh_weights_do_not() -> None:
    """A linear probe with 100 labelled records: too few to know each value, enough to name clusters of them."""
    features, hidden = hidden_classes(4000)
    probe, test = np.arange(3000, 3100), np.arange(3100, 4000)

    def accuracy(bottom: Bottom) -> float:
        cut = torch.cat([cut_of(bottom, features), torch.ones(4000, 1)], dim=1).double()
        wanted = torch.nn.functional.one_hot(torch.from_numpy(hidden), CLASSES).double()
        ridge = cut[probe].T @ cut[probe] + torch.eye(cut.shape[1])
        scores = cut[test] @ torch.linalg.solve(ridge, cut[probe].T @ wanted[probe])
        return float((scores.argmax(dim=1).numpy() == hidden[test]).mean())

    bottom = bottom_for(features)
    fresh = accuracy(bottom)
    pretrain(bottom, features, np.arange(3000), config(epochs=10, learning_rate=1e-2), 0)
    assert accuracy(bottom) > fresh + 0.15


def test_the_cut_keeps_its_size() -> None:
    features, _ = hidden_classes(2000)
    bottom = bottom_for(features)
    before = cut_of(bottom, features).square().mean().sqrt()
    pretrain(bottom, features, np.arange(2000), config(learning_rate=1e-2), 0)
    after = cut_of(bottom, features).square().mean().sqrt()
    assert float(after / before) == pytest.approx(1.0, abs=0.05)


def test_it_stops_when_nothing_improves_and_keeps_the_best_weights() -> None:
    """Chance teaches nothing that holds for other records."""
    values = np.random.default_rng(0).integers(0, 50, (300, 3)).astype(np.int32)
    features = Features(values, np.zeros((300, 0), np.float32), 50, (*"abc",), ())
    bottom = bottom_for(features)
    after_step = [weights_of(bottom)]
    losses = pretrain(
        bottom,
        features,
        np.arange(300),
        config(epochs=200, learning_rate=1e-2, patience=2, share=0.9),
        0,
        lambda *call: after_step.append(weights_of(bottom)),
    )
    kept_epoch = losses.index(min(losses))
    assert 2 < len(losses) - 1 == kept_epoch + 2 < 100
    best = after_step[2 * kept_epoch]  # two batches an epoch
    *kept, last_weight, last_bias = weights_of(bottom)
    assert equal(kept, best[:-2])
    factor = last_weight.norm() / best[-2].norm()
    torch.testing.assert_close([last_weight, last_bias], [factor * best[-2], factor * best[-1]])


def test_learning_that_diverges_leaves_the_fresh_weights() -> None:
    features, _ = hidden_classes(500)
    bottom = bottom_for(features)
    losses = pretrain(bottom, features, np.arange(500), config(epochs=30, learning_rate=100), 0)
    assert (losses.index(min(losses)), len(losses)) == (0, 1 + 3)
    assert equal(weights_of(bottom), weights_of(bottom_for(features)))


SHAPES = {
    "only categories": (5, 0, 40, 300),
    "only numbers": (0, 5, 0, 300),
    "one category": (1, 0, 7, 300),
    "one number": (0, 1, 0, 300),
    "one value": (2, 1, 1, 300),
    "more values than candidates": (2, 1, 2000, 3000),
    "fewer records than a batch": (3, 2, 20, 30),
    "two records": (2, 2, 5, 2),
}


@pytest.mark.parametrize("updates", ["dense", "lazy"])
@pytest.mark.parametrize("shape", SHAPES)
def test_tables_of_every_shape(shape: str, updates: str) -> None:
    categories, numbers, values, rows = SHAPES[shape]
    rng = np.random.default_rng(0)
    features = Features(
        rng.integers(0, max(values, 1), (rows, categories)).astype(np.int32),
        rng.normal(size=(rows, numbers)).astype(np.float32),
        max(values, 1),
        tuple(f"c{i}" for i in range(categories)),
        tuple(f"x{i}" for i in range(numbers)),
    )
    bottom = bottom_for(features, updates, widths=(8,))
    losses = pretrain(bottom, features, np.arange(rows), config(epochs=2, patience=2), 0)
    assert len(losses) == 1 + 2 and np.isfinite(losses).all()
    assert all(bool(w.isfinite().all()) for w in weights_of(bottom))
    assert all(p.grad is None for p in bottom.parameters())


@pytest.mark.parametrize("rows", [0, 1])
def test_one_record_is_not_enough(rows: int) -> None:
    features, _ = hidden_classes(10)
    with pytest.raises(ValueError, match=f"needs at least 2 records, there are {rows}"):
        pretrain(bottom_for(features), features, np.arange(rows), config(), 0)


@pytest.mark.parametrize("updates", ["dense", "lazy"])
def test_only_the_given_rows_matter(updates: str) -> None:
    features, _ = hidden_classes(400)
    rows = np.arange(0, 400, 2)
    others = hidden_classes(400, seed=1)[0]
    changed = dataclasses.replace(features, categorical=features.categorical.copy(), numeric=features.numeric.copy())
    changed.categorical[1::2], changed.numeric[1::2] = others.categorical[1::2], others.numeric[1::2]
    results = []
    for table in (features, changed):
        bottom = bottom_for(table, updates)
        pretrain(bottom, table, rows, config(), 0)
        results.append(weights_of(bottom))
    assert equal(*results)
    fresh = bottom_for(features, updates)
    assert fresh.embedding is not None
    assert torch.equal(results[0][0][UNUSED], fresh.embedding.weight[UNUSED])
    assert not torch.equal(results[0][0], fresh.embedding.weight)


def test_there_is_no_place_for_a_label() -> None:
    assert set(inspect.signature(pretrain).parameters) == {"bottom", "features", "rows", "config", "seed", "progress"}
    assert not any("label" in field.name for field in dataclasses.fields(Features))


def test_progress_counts_every_step_and_ends_at_the_last() -> None:
    features, _ = hidden_classes(400)
    calls: list[tuple[int, int, str]] = []
    pretrain(bottom_for(features), features, np.arange(400), config(), 0, lambda *call: calls.append(call))
    total = 3 * 3  # 336 records in batches of at most 128
    assert [done for done, _, _ in calls] == [*range(1, total + 1), total]
    assert {of for _, of, _ in calls} == {total}
    assert calls[0][2].startswith("pre-training, epoch 1, loss ")


def test_sampled_cross_entropy_is_a_softmax_without_repeated_truth() -> None:
    generator = torch.Generator().manual_seed(0)
    n, sizes, width = 5, (4, 7), 3
    queries, scores, keys = (
        torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in ((n, 2, width), (n, 2), (sum(sizes), width))
    )
    true = torch.randint(0, 6, (n, 2), generator=generator, dtype=torch.int32)
    candidates = [torch.randperm(9, generator=generator, dtype=torch.int32)[:size].sort().values for size in sizes]

    def plain(queries: torch.Tensor, scores: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        losses = []
        for field, own_keys in enumerate(keys.split(sizes)):
            for record in range(n):
                others = [
                    queries[record, field] @ key
                    for key, value in zip(own_keys, candidates[field], strict=True)
                    if value != true[record, field]
                ]
                alternatives = torch.stack([scores[record, field], *others])
                losses.append(-torch.log_softmax(alternatives, dim=0)[0])
        return torch.stack(losses).mean()

    fast = sampled_cross_entropy(queries, scores, keys, true, candidates)
    slow = plain(queries, scores, keys)
    torch.testing.assert_close(fast, slow)
    inputs = (queries, scores, keys)
    for mine, wanted in zip(torch.autograd.grad(3 * fast, inputs), torch.autograd.grad(3 * slow, inputs), strict=True):
        torch.testing.assert_close(mine, wanted)


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "supervised"},
        {"method": "contrastive"},
        {},
        {"method": "masked", "share": 1.0},
        {"method": "masked", "labels": True},
    ],
    ids=str,
)
def test_a_wrong_configuration_is_an_error(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        PretrainConfig.model_validate(fields)
