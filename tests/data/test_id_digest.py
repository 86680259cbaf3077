"""The digest of record ids says which they are and in which order."""

import pyarrow as pa

from tpsl.data.id_digest import ids_digest


def test_ids_in_another_order_or_form_have_another_digest() -> None:
    ids = ["ab", "c", "", "ü", "abc"]
    same = [
        pa.array(ids),
        pa.array(ids, pa.large_string()),
        pa.array(["x", *ids])[1:],
        pa.chunked_array([ids[:2], ids[2:]]),
    ]
    assert len({ids_digest(each) for each in same}) == 1
    others = [ids[::-1], ["a", "bc", "", "ü", "abc"], ids[:4], [*ids, ""], ["ab", "c", "ü", "", "abc"]]
    assert len({ids_digest(pa.array(each)) for each in [ids, *others]}) == 1 + len(others)
