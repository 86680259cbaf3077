import pytest

from tpsl.vault.sealing import Seal, SealBroken


def test_a_piece_opens_at_its_place_with_its_key_and_nowhere_else() -> None:
    seal = Seal(bytes(32))
    stored = seal.close(b"label 1", "row 7")
    assert b"label" not in stored
    assert seal.close(b"label 1", "row 7") != stored, "the same piece twice shows"
    assert seal.open(stored, "row 7") == b"label 1"
    flipped = stored[:-1] + bytes([stored[-1] ^ 1])
    for content, place, other in [
        (stored, "row 8", seal),
        (flipped, "row 7", seal),
        (stored[:5], "row 7", seal),
        (stored, "row 7", Seal(bytes([1] * 32))),
    ]:
        with pytest.raises(SealBroken):
            other.open(content, place)


def test_without_a_key_a_piece_stays_as_it_is() -> None:
    assert Seal(None).close(b"label 1", "row 7") == Seal(None).open(b"label 1", "row 8") == b"label 1"
    assert len({Seal(None).name, Seal(bytes(32)).name, Seal(bytes([1] * 32)).name}) == 3
    assert bytes(32).hex() not in f"{Seal(bytes(32)).name} {Seal(bytes(32))!r}"
