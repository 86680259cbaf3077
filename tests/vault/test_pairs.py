"""Pairs come back in parts whose keys follow each other, whether they fit into memory or not."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tpsl.vault import pairs
from tpsl.vault.pairs import Pairs


@pytest.mark.parametrize("in_memory", [50, 1 << 21])
@pytest.mark.parametrize("bits", [5, 36, 64])
def test_every_pair_comes_back_once_in_parts_that_follow_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: int, bits: int
) -> None:
    monkeypatch.setattr(pairs, "_IN_MEMORY", in_memory)
    keys = np.random.default_rng(0).integers(0, 1 << bits, 1000, np.uint64)
    with Pairs(tmp_path, bits) as taken:
        for start in range(0, 1000, 40):
            taken.take(keys[start : start + 40], np.arange(start, start + 40))
        found = list(taken.parts())
        assert taken.count == 1000
    assert list(tmp_path.iterdir()) == []
    assert len(found) == (256 if in_memory == 50 else 1)
    ranges = [(part[:, 0].min(), part[:, 0].max()) for part in found if len(part)]
    assert all(before[1] < after[0] for before, after in pairwise(ranges))
    together = np.concatenate(found).astype(np.int64)
    assert (keys[together[:, 1]] == np.concatenate(found)[:, 0]).all()
    assert sorted(together[:, 1].tolist()) == list(range(1000))
