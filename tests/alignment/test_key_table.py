from typing import Any

import numpy as np

from tpsl.alignment.key_table import KeyTable, random_order

RECORDS = [{"email": "a"}, {}, {"phone": "1"}, {"email": "b", "phone": "2"}]


def test_a_record_has_a_row_if_it_has_any_key(make_keys: Any) -> None:
    keys = make_keys(RECORDS, ["email", "phone"])
    table = KeyTable.of(keys)
    assert table.rows.tolist() == [0, 2, 3]
    email, phone = keys.lists
    np.testing.assert_array_equal(table.digests[[0, 2], 0], email.digests)
    np.testing.assert_array_equal(table.digests[[1, 2], 1], phone.digests)


def test_a_missing_key_is_another_random_number_each_time(make_keys: Any) -> None:
    keys = make_keys(RECORDS, ["email", "phone"])
    drawn = [KeyTable.of(keys).digests[place].tobytes() for place in ((0, 1), (1, 0)) for _ in range(2)]
    assert len({*drawn}) == 4


def test_records_are_in_the_order_that_is_given(make_keys: Any) -> None:
    keys = make_keys(RECORDS, ["email", "phone"])
    table = KeyTable.of(keys, np.array([3, 1, 0, 2]))
    assert table.rows.tolist() == [3, 0, 2]
    np.testing.assert_array_equal(table.digests[0, 1], keys.lists[1].digests[1])


def test_an_order_is_a_permutation_that_differs_each_time() -> None:
    one, two = random_order(1000), random_order(1000)
    assert sorted(one) == sorted(two) == list(range(1000))
    assert one.tolist() != two.tolist()
