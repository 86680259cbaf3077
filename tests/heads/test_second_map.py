"""The map of a second statistic: its random features look at the fields that the first head uses."""

import numpy as np
import pytest
import torch

from tpsl.heads.feature_map import FeatureMap, Purpose

RECORDS, FIELDS, VALUES = 3000, 6, 8
PURPOSE = Purpose(noise=10.0, random_features=64)


@pytest.fixture(scope="module")
def codes() -> np.ndarray:
    return np.random.default_rng(0).integers(0, VALUES, (RECORDS, FIELDS)).astype(np.float32)


@pytest.fixture(scope="module")
def first(codes: np.ndarray) -> FeatureMap:
    return FeatureMap.learn(codes, np.arange(FIELDS), PURPOSE)


@pytest.mark.parametrize("classes", [1, 3])
def test_fields_that_matter_weigh_more_and_values_that_act_alike_are_near(
    codes: np.ndarray, first: FeatureMap, classes: int
) -> None:
    acts = np.where(codes[:, [2]] < VALUES / 2, 1.0, -1.0) * np.arange(1, classes + 1)
    expansion = first.second(acts.astype(np.float32), codes, PURPOSE).expansion
    fields = expansion.cell_columns
    sizes = torch.stack([expansion.random[fields == field].square().mean() for field in range(FIELDS)])
    assert sizes[2] > 20 * torch.cat([sizes[:2], sizes[3:]]).max()
    weights = expansion.random[fields == 2]
    within = (weights[0] - weights[1]).square().mean()
    assert (weights[0] - weights[-1]).square().mean() > 2 * within
    assert torch.equal(first.second(acts.astype(np.float32), codes, PURPOSE).expansion.random, expansion.random)


def test_the_first_map_is_left_as_it_is(codes: np.ndarray, first: FeatureMap) -> None:
    before = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    found = first.second(codes[:, :1], codes, PURPOSE)
    assert all(torch.equal(tensor, before[name]) for name, tensor in first.state_dict().items())
    assert not torch.equal(found.expansion.random, first.expansion.random)
    rebuilt = FeatureMap(found.state_dict())
    assert torch.equal(rebuilt(torch.from_numpy(codes)), found(torch.from_numpy(codes)))
