"""Who may ask what stands on a port of this machine."""

import pytest

from tpsl.serving.browsers import is_asked_from_here


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:9101", "localhost", "LocalHost:65535"])
def test_this_machine_asks_under_its_own_name(host: str) -> None:
    assert is_asked_from_here([host], None, None)
    assert is_asked_from_here([host], "same-origin", "cors")
    assert is_asked_from_here([host], "cross-site", "navigate")
    assert not is_asked_from_here([host], "cross-site", "no-cors")
    assert not is_asked_from_here([host], "same-site", "cors")


@pytest.mark.parametrize(
    "hosts",
    [
        [],
        ["evil.example"],
        ["127.0.0.1.evil.example"],
        ["localhost.evil.example:9101"],
        ["127.0.0.1:9101,evil.example"],
        ["127.0.0.1", "127.0.0.1"],
        ["localhost:123456"],
        ["localhost\n"],
        ["１27.0.0.1"],
    ],
)
def test_any_other_name_is_a_trick(hosts: list[str]) -> None:
    assert not is_asked_from_here(hosts, None, None)
