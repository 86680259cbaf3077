"""A digest of texts tells them apart, however they are cut into blocks."""

import pyarrow as pa

from tpsl.tables.columns import TextsDigest


def digest(*parts: list[str | None], purpose: bytes = b"test") -> bytes:
    made = TextsDigest(purpose)
    for part in parts:
        made.update(pa.array(part, pa.string()))
    return made.digest()


def test_blocks_do_not_matter_and_everything_else_does() -> None:
    whole = digest(["ab", "", "c", "dé"])
    assert digest(["ab"], ["", "c"], [], ["dé"]) == digest(["ab", None, "c", "dé"]) == whole
    others = (["a", "b", "", "c", "dé"], ["", "ab", "c", "dé"], ["ab", "c", "", "dé"], ["abc", "", "", "dé"], [])
    assert len({whole, *(digest(other) for other in others), digest(["ab", "", "c", "dé"], purpose=b"x")}) == 7


def test_a_slice_is_read_from_its_own_beginning() -> None:
    made = TextsDigest(b"test")
    made.update(pa.array(["x", "ab", "", "c", "dé", "y"]).slice(1, 4))
    assert made.digest() == digest(["ab", "", "c", "dé"])
