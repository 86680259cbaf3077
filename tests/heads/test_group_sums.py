"""The loops of backfitting give what NumPy gives; sums of groups to the last bit."""

import numpy as np

from tpsl.heads.backfitting import add_cells, add_products, add_values, take_off, weighted_product

RECORDS, GROUPS, WIDTH = 1000, 7, 5
RNG = np.random.default_rng(0)
CODES, OTHER = (RNG.integers(0, size, RECORDS).astype(np.int32) for size in (GROUPS, WIDTH))
LEFT, WEIGHTS = RNG.normal(size=RECORDS), RNG.random(RECORDS)
NUMBERS = RNG.normal(size=RECORDS).astype(np.float32)


def test_sums_of_groups() -> None:
    values, products = np.zeros(GROUPS), np.zeros(GROUPS)
    add_values(CODES, WEIGHTS, values)
    add_products(CODES, LEFT, WEIGHTS, products)
    np.testing.assert_array_equal(values, np.bincount(CODES, weights=WEIGHTS))
    np.testing.assert_array_equal(products, np.bincount(CODES, weights=WEIGHTS * LEFT))


def test_sums_of_cells() -> None:
    sums, cells = np.zeros((GROUPS * WIDTH, 2)), CODES * WIDTH + OTHER
    add_cells(CODES, OTHER, WIDTH, LEFT, WEIGHTS, sums)
    for column, values in enumerate((WEIGHTS, WEIGHTS * LEFT)):
        np.testing.assert_array_equal(sums[:, column], np.bincount(cells, values, minlength=GROUPS * WIDTH))


def test_what_is_taken_off() -> None:
    change, left = RNG.normal(size=GROUPS), LEFT.copy()
    take_off(CODES, change, left)
    np.testing.assert_array_equal(left, LEFT - change[CODES])


def test_a_weighted_product() -> None:
    found = weighted_product(WEIGHTS, NUMBERS, LEFT)
    np.testing.assert_allclose(found, (WEIGHTS * NUMBERS * LEFT).sum(), rtol=1e-12)
