from tpsl.data.arrays import LARGE_BYTES
from tpsl.planning.counts import Counts
from tpsl.planning.memory import FEATURE_RECORD_BYTES, LABEL_RECORD_BYTES, NOISY_LABEL_BYTES, peak_bytes
from tpsl.planning.rehearsal import Rehearsal
from tpsl.tables.reading import BLOCK_ROWS
from tpsl.training.job import make_job

JOB = make_job({"data": {"source": "synthetic", "rows": 1000}}, {}, "a test")
REHEARSED = Rehearsal(JOB, Counts.of(JOB, 1000), 0.0, 1.0, {}, {"label": 5 * 10**8, "feature": 6 * 10**8}, None)


def test_records_add_to_what_a_rehearsal_took() -> None:
    assert peak_bytes(REHEARSED, "label", 1000, 0) == 5 * 10**8
    more = LABEL_RECORD_BYTES + NOISY_LABEL_BYTES
    assert peak_bytes(REHEARSED, "label", 2000, 0) == 5 * 10**8 + 1000 * more
    # Each number is held as 4 bytes; as long as its block is read, as 32.
    assert peak_bytes(REHEARSED, "feature", 2000, 39) == 6 * 10**8 + 1000 * (FEATURE_RECORD_BYTES + 36 * 39)


def test_what_is_large_lies_on_disk() -> None:
    few, many = (peak_bytes(REHEARSED, "feature", rows, 39) for rows in (10**8, 2 * 10**8))
    in_work = (3 * BLOCK_ROWS - 1000) * 39 * 32
    assert many == few == 6 * 10**8 + 2 * LARGE_BYTES + in_work - 1000 * (39 * 4 + FEATURE_RECORD_BYTES)
    few, many = (peak_bytes(REHEARSED, "label", rows, 0) for rows in (10**8, 2 * 10**8))
    assert many - few == 10**8 * NOISY_LABEL_BYTES
