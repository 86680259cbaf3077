from dataclasses import replace

import pytest

from tpsl_research.internet_scale import Means, Undertaking, Vaults, handed_over, split_training


def test_split_training_takes_as_long_as_its_slowest_part() -> None:
    found = split_training(Undertaking(), Means())
    # int8: a byte a number and four for the scale of a row; frames and TLS add 0.14 %.
    assert found.to_label == pytest.approx(132 * 10**11, rel=0.002)
    assert found.seconds == found.line_seconds == pytest.approx(found.to_label / 12.5e9)
    assert found.traffic_cost == pytest.approx(0.08 * (found.to_label + found.from_label) / 1e9)
    workers = found.feature_workers + found.label_workers
    assert found.machine_cost == pytest.approx(workers * 3.0 * found.seconds / 3600)
    wide = split_training(Undertaking(), replace(Means(), line=1e15))
    assert wide.seconds == wide.computing_seconds > wide.look_up_seconds
    slow = split_training(Undertaking(), replace(Means(), line=1e15, worker_line=1e9))
    assert slow.seconds == slow.look_up_seconds > slow.computing_seconds


def test_as_many_workers_as_hold_the_table() -> None:
    means = Means()
    for table in (1e12, 10e12, 50e12):
        workers = handed_over(Undertaking(table_bytes=table), means).feature_workers
        assert workers * 0.9 * means.worker_bytes >= table > (workers - 1) * 0.9 * means.worker_bytes


def test_label_workers_keep_up_and_no_more() -> None:
    found = split_training(Undertaking(), Means())
    needed = 10**11 / found.seconds
    assert (found.label_workers - 1) * Means().pair_records < needed <= found.label_workers * Means().pair_records


def test_noisy_labels_cross_once_however_long_training_takes() -> None:
    once, often = (handed_over(Undertaking(epochs=epochs), Means()) for epochs in (1, 10))
    assert once.from_label == often.from_label == pytest.approx(10**11 / 8, rel=0.05)
    assert (once.to_label, once.label_workers) == (0, 0)
    assert often.seconds - often.line_seconds == pytest.approx(10 * (once.seconds - once.line_seconds))
    split = [split_training(Undertaking(epochs=epochs), Means()) for epochs in (1, 10)]
    assert split[1].to_label == pytest.approx(10 * split[0].to_label)


def test_vaults_hold_ranges_of_ids() -> None:
    vaults = Vaults(records=10**9 + 1, records_of_a_vault=10**8, at_once=4)
    assert vaults.count == 11
    assert vaults.seconds(1e6) == 3 * 100
    assert vaults.bytes == pytest.approx(27e9)
