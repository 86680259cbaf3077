"""One line for each address and minute."""

import time

import pytest

from tpsl.transport import refusal_log
from tpsl.transport.refusal_log import RefusalLog


def test_the_first_is_told_at_once_and_the_others_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    seen: list[tuple[str, str]] = []
    log = RefusalLog(lambda *line: seen.append(line))
    log.note("a", "no TLS")
    log.note("b", "no TLS")
    assert seen == [("a", "refused: no TLS"), ("b", "refused: no TLS")]
    for _ in range(500):
        log.note("a", "no TLS")
    log.note("a", "no certificate")
    now += 59
    log.tell()
    assert len(seen) == 2
    now += 1
    log.tell()
    assert seen[2:] == [("a", "refused: 501 more within 60 s, the last: no certificate")]
    log.note("b", "after a quiet minute")
    log.note("a", "counted again")
    assert seen[3:] == [("b", "refused: after a quiet minute")]
    log.tell(all_of_them=True)
    assert seen[4:] == [("a", "refused: 1 more within 0 s, the last: counted again")]


def test_many_addresses_neither_fill_the_log_nor_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    seen: list[tuple[str, str]] = []
    log = RefusalLog(lambda *line: seen.append(line))
    for number in range(100_000):
        log.note(str(number), "no TLS")
    assert len(seen) == len(log._counted) == refusal_log._MOST_NAMES + 1
    log.tell(all_of_them=True)
    rest = 100_000 - refusal_log._MOST_NAMES - 1
    assert seen[-1] == ("other addresses", f"refused: {rest} more within 0 s, the last: no TLS")
