"""Codes of fields: categories as they are, numbers by their quantile, and nothing else of either."""

import numpy as np
import pytest
import torch

from tpsl.data.features import Features
from tpsl.heads.feature_map import LARGEST_CODE, CodeBook


def features(rows: int = 1000, embedding_rows: int = 50) -> Features:
    rng = np.random.default_rng(0)
    numeric = np.stack([rng.normal(size=rows), np.full(rows, 3.0), rng.integers(0, 2, rows)], axis=1)
    categorical = rng.integers(0, 50, (rows, 2)).astype(np.int32)
    return Features(categorical, numeric.astype(np.float32), embedding_rows, ("a", "b"), ("x", "constant", "x missing"))


def test_bins_hold_equal_shares_of_the_training_records_and_keep_their_order() -> None:
    table = features()
    train = np.arange(800)
    codes = CodeBook.learn(table, train).embed(table, np.arange(1000)).numpy()
    assert codes.shape == (1000, 5) and codes.dtype == np.float32
    assert (codes[:, :2] == table.categorical).all()
    ranks = codes[:, 2]
    middles, counts = np.unique(ranks[train], return_counts=True)
    assert (middles == (np.arange(16) + 0.5) / 16).all()
    assert (counts == 50).all()
    assert (np.diff(ranks[np.argsort(table.numeric[:, 0])]) >= 0).all()
    assert len(np.unique(codes[:, 3])) == 1
    assert len(np.unique(codes[:, 4])) == 2


def test_numbers_outside_of_the_training_range_fall_into_the_outer_bins() -> None:
    table = features()
    book = CodeBook.learn(table, np.arange(1000))
    extreme = torch.tensor([[-1e30, 0.0, 0.0], [1e30, 0.0, 0.0], [torch.inf, 0.0, 0.0]])
    codes = book(torch.zeros(3, 2, dtype=torch.int32), extreme)
    assert codes[:, 2].tolist() == [1 / 32, 31 / 32, 31 / 32]


def test_a_book_is_its_state() -> None:
    table = features()
    book = CodeBook.learn(table, np.arange(1000))
    again = CodeBook(book.state_dict())
    assert again.width == book.width == 5
    assert torch.equal(again.embed(table, np.arange(10)), book.embed(table, np.arange(10)))


def test_categories_that_float32_cannot_tell_apart_are_refused() -> None:
    with pytest.raises(ValueError, match="codes are for at most 16,777,215 categories"):
        CodeBook.learn(features(embedding_rows=LARGEST_CODE + 1), np.arange(10))
