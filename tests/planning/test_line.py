import math

import pytest

from tpsl.planning.line import Network, bandwidth_of, seconds_of


def test_a_step_waits_for_the_line() -> None:
    line = Network(bandwidth=1e6, round_trip=0.1)
    assert line.step_seconds(0.05, 2e5, 1e5, staleness=0, parts=1) == pytest.approx(0.05 + 0.1 + 0.2 + 0.1)
    # Parts overlap: while gradients of one come back, embeddings of the next go out.
    assert line.step_seconds(0.05, 2e5, 1e5, staleness=0, parts=4) == pytest.approx(0.05 + 0.1 + 0.2 + 0.025)


def test_staleness_hides_the_round_trip_until_something_is_busy_all_the_time() -> None:
    line = Network(bandwidth=1e6, round_trip=0.1)
    assert line.step_seconds(0.05, 2e4, 2e4, staleness=1, parts=1) == pytest.approx(0.19 / 2)
    assert line.step_seconds(0.05, 2e4, 2e4, staleness=9, parts=1) == pytest.approx(0.05)
    assert line.step_seconds(0.05, 2e5, 2e4, staleness=9, parts=1) == pytest.approx(0.2)


def test_without_a_network_a_step_is_as_on_this_machine() -> None:
    assert Network().step_seconds(0.05, 1e9, 1e9, staleness=0, parts=1) == 0.05
    assert Network().bandwidth == math.inf


@pytest.mark.parametrize(
    ("text", "bytes_a_second"),
    [("1Gb/s", 125e6), ("100 Mb/s", 12.5e6), ("1.5Gbit/s", 187.5e6), ("20MB/s", 20e6), ("8b/s", 1.0)],
)
def test_bandwidths(text: str, bytes_a_second: float) -> None:
    assert bandwidth_of(text) == pytest.approx(bytes_a_second)


@pytest.mark.parametrize(("text", "seconds"), [("20ms", 0.02), ("0.5 s", 0.5), ("150us", 150e-6)])
def test_times(text: str, seconds: float) -> None:
    assert seconds_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "1", "1Gb", "0Gb/s", "-1Gb/s", "1..2Gb/s", "fast", "20ms"])
def test_what_is_no_bandwidth_is_said(text: str) -> None:
    with pytest.raises(ValueError, match="is not a bandwidth, as 1Gb/s"):
        bandwidth_of(text)


@pytest.mark.parametrize("text", ["", "20", "0ms", "1Gb/s", "2 minutes"])
def test_what_is_no_time_is_said(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time, as 20ms"):
        seconds_of(text)
