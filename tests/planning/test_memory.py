from dataclasses import replace

import pytest

from tpsl.data.out_of_core import LARGE_BYTES
from tpsl.party.wide import MOST_RECORDS
from tpsl.planning.counts import Counts
from tpsl.planning.memory import (
    ESTIMATED_RECORD_BYTES,
    FEATURE_LASTING_BYTES,
    FEATURE_RECORD_BYTES,
    FITTED_RECORD_BYTES,
    HANDED_OVER_COPIES,
    LABEL_LASTING_BYTES,
    LABEL_RECORD_BYTES,
    SCORED_RECORD_BYTES,
    SYNTHETIC_RECORD_BYTES,
    peak_bytes,
)
from tpsl.planning.rehearsal import Rehearsal
from tpsl.tables.reading import BLOCK_ROWS
from tpsl.training.job import make_job

TABLES = {
    "source": "table",
    "features": [{"party": "feature", "path": "features.csv", "id": "id", "numeric": ["x"]}],
    "label": {"path": "labels.csv", "id": "id", "label": "y"},
}
LABEL_BYTES = LABEL_RECORD_BYTES + LABEL_LASTING_BYTES
FEATURE_BYTES = FEATURE_RECORD_BYTES + FEATURE_LASTING_BYTES


def rehearsed(**parts: object) -> Rehearsal:
    job = make_job({"data": TABLES, **parts}, {}, "a test")
    taken = {"label": 5 * 10**8, "feature": 6 * 10**8}
    return Rehearsal(job, Counts.of(job, 1000), 0.0, 1.0, {}, taken, taken, None)


PLAIN = rehearsed()


def predicted(rehearsal: Rehearsal, party: str, rows: int, fields: int) -> int:
    return peak_bytes([rehearsal], party, Counts.of(rehearsal.job, rows), fields)


def test_records_add_to_what_a_rehearsal_took() -> None:
    assert predicted(PLAIN, "label", 1000, 0) == 5 * 10**8
    assert predicted(PLAIN, "label", 2000, 0) == 5 * 10**8 + 1000 * LABEL_BYTES
    # Each number is held as 4 bytes, as it was read and as it is encoded; as long as its block is read, as 32.
    assert predicted(PLAIN, "feature", 2000, 39) == 6 * 10**8 + 1000 * (FEATURE_BYTES + 40 * 39)
    assert predicted(PLAIN, "label", 2000, 39) == 5 * 10**8 + 1000 * (LABEL_BYTES + 40 * 39)


def test_what_is_large_lies_on_disk() -> None:
    few, many = (predicted(PLAIN, "feature", rows, 39) for rows in (10**8, 2 * 10**8))
    assert many - few == 10**8 * FEATURE_LASTING_BYTES
    in_work = (3 * BLOCK_ROWS - 1000) * 39 * 32
    on_disk = 3 * LARGE_BYTES - 1000 * (39 * 8 + FEATURE_RECORD_BYTES)
    assert few == 6 * 10**8 + on_disk + in_work + (10**8 - 1000) * FEATURE_LASTING_BYTES


def test_synthetic_records_do_not() -> None:
    drawn = rehearsed(data={"source": "synthetic"})
    few, many = (predicted(drawn, "feature", rows, 39) for rows in (10**8, 2 * 10**8))
    assert many - few == 10**8 * (FEATURE_LASTING_BYTES + SYNTHETIC_RECORD_BYTES + 4 * 39)


def test_a_rehearsal_that_took_little_by_chance_does_not_count() -> None:
    little = replace(PLAIN, counts=Counts.of(PLAIN.job, 2000), peak_bytes={"label": 4 * 10**8})
    counts = Counts.of(PLAIN.job, 3000)
    assert peak_bytes([PLAIN, little], "label", counts, 0) == predicted(PLAIN, "label", 3000, 0)


def test_a_wide_part_takes_memory_for_each_record_that_it_is_fitted_on_and_each_that_it_scores() -> None:
    wide = rehearsed(model={"wide": True})

    def more(party: str, rows: int, fields: int) -> int:
        return predicted(wide, party, rows, fields) - predicted(PLAIN, party, rows, fields)

    fitted = Counts.of(wide.job, 2000).trained - wide.counts.trained
    numbers = 4 * 40  # with the score
    assert more("feature", 2000, 39) == fitted * FITTED_RECORD_BYTES + 1000 * (SCORED_RECORD_BYTES + numbers)
    most = (MOST_RECORDS - wide.counts.trained) * FITTED_RECORD_BYTES + LARGE_BYTES - 1000 * numbers
    assert more("feature", 10**8, 39) == most + (10**8 - 1000) * SCORED_RECORD_BYTES
    # The label party sends estimates; with features of its own it fits a wide part of its own.
    assert more("label", 2000, 0) == 800 * ESTIMATED_RECORD_BYTES
    assert more("label", 2000, 3) == more("label", 2000, 0) + more("feature", 2000, 3)


@pytest.mark.parametrize("draws", [1, 2])
def test_noisy_labels_that_were_handed_over_are_in_memory(draws: int) -> None:
    given = rehearsed(training={"exchange": "labels"}, privacy={"draws": draws})
    assert predicted(given, "label", 2000, 0) == predicted(PLAIN, "label", 2000, 0)
    more = predicted(given, "feature", 2000, 39) - predicted(PLAIN, "feature", 2000, 39)
    assert more == 800 * draws * HANDED_OVER_COPIES
