"""A table of any size is the same data: kept on disk or in memory, whatever the blocks it is read in."""

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.peak_memory import peak_bytes

from tpsl import spill
from tpsl.data import out_of_core
from tpsl.data.config import LabelFile, TableData, TableFile
from tpsl.data.dataset import Dataset, load, load_feature_party
from tpsl.data.encoder import EncoderState
from tpsl.data.party_file import PartyFile, encode_file
from tpsl.data.sides import Relabelling
from tpsl.data.true_labels import reveal
from tpsl.tables import DataError, reading

CELLS = st.fixed_dictionaries(
    {
        "word": st.sampled_from(["", "a", "b", "é", 'say "no"', "two\nlines", "c,d"]),
        "number": st.sampled_from(["", "0", "1.5", "-2e3", " 7 "]),
        "when": st.sampled_from(["", "2024-02-29", "2024-02-29T23:59:59", "1969-01-01 00:00:01"]),
        "time": st.integers(0, 9).map(str),
        "label": st.sampled_from("01"),
    }
)


def write(folder: Path, records: list[dict[str, str]], ids: list[str], ending: str) -> TableData:
    columns = {"id": ids, **{name: [record[name] for record in records] for name in records[0]}}
    path = folder / f"table{ending}"
    if ending == ".parquet":
        pq.write_table(pa.table(columns), path, row_group_size=3)
    else:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerows([columns, *zip(*columns.values(), strict=True)])
    roles: dict[str, Any] = {"path": path, "time": "time"}
    return TableData(
        features=(TableFile(categorical=("word", "label"), numeric=("number",), dates=("when",), **roles),),
        label=LabelFile(numeric=("number",), **roles),
        min_count=1,
        test_fraction=0.25,
    )


def same(one: Dataset, other: Dataset) -> bool:
    def parts(data: Dataset) -> list[Any]:
        sides = [*data.feature_parties.values(), data.label_features]
        encoded = [array for side in sides if side is not None for array in (side.categorical, side.numeric)]
        return [*encoded, data.train, data.test, reveal(data.labels), np.array(data.ids.to_pylist())]

    return all(np.array_equal(mine, theirs) for mine, theirs in zip(parts(one), parts(other), strict=True))


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(records=st.lists(CELLS, min_size=6, max_size=25), data=st.data())
@pytest.mark.parametrize("ending", [".csv", ".parquet"])
@pytest.mark.parametrize("split", ["random", "chronological"])
def test_a_table_on_disk_is_the_table_in_memory(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    ending: str,
    split: str,
    records: list[dict[str, str]],
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("tables")
    ids = data.draw(st.permutations([f"{number:03d}" for number in range(len(records))]))
    config = write(folder, records, ids, ending).model_copy(update={"split": split})
    in_memory, relabelled = load(config), load(config, relabelling=Relabelling(3))
    with monkeypatch.context() as patch:
        patch.setenv("TPSL_CACHE", str(folder / "cache"))
        patch.setattr(out_of_core, "LARGE_BYTES", 0)
        patch.setattr(out_of_core, "_ROWS_AT_ONCE", 4)
        patch.setattr(spill, "ROWS_AT_ONCE", 4)
        patch.setattr(reading, "BLOCK_ROWS", 4)
        patch.setattr(reading, "BLOCK_BYTES", 200)
        assert same(load(config), in_memory)
        assert same(load(config, relabelling=Relabelling(3)), relabelled)
        assert not list((folder / "cache").iterdir())  # no file has a name


def test_new_records_are_encoded_as_those_that_were_learned_from(tmp_path: Path) -> None:
    values = [
        {"word": w, "number": n, "when": d, "time": "0", "label": "0"}
        for w, n, d in zip(
            ["a", "b", "a", "", "c", "b"] * 5,
            ["1", "2.5", "", "-7", "3", "9"] * 5,
            ["2024-01-01", "2024-06-30T12:00:00", "", "2023-12-31", "2024-02-29", "2025-01-01"] * 5,
            strict=True,
        )
    ]
    side = load_feature_party(write(tmp_path, values, [f"{number:03d}" for number in range(30)], ".csv"))
    assert side.encoder is not None
    side.encoder.save(tmp_path / "encoder")
    state = EncoderState.load(tmp_path / "encoder")
    new = tmp_path / "new.csv"
    new.write_text("when,label,number,id,word\n2024-06-30T12:00:00,0,2.5,001,b\n,0,,900,unseen\n2024-01-01,0,1,000,a\n")
    ((ids, features),) = encode_file(state, new)
    assert ids.to_pylist() == ["001", "900", "000"]
    for row, known in ((0, 1), (2, 0)):
        assert np.array_equal(features.categorical[row], side.features.categorical[known])
        assert np.array_equal(features.numeric[row], side.features.numeric[known])
    assert features.numeric[1].tolist() == [0, 1, 0, 1, 0, 1, 0, 1]  # the mean, and that it is missing
    new.write_text("id,word,label,number\n1,a,0,1\n")
    with pytest.raises(
        DataError, match=r"new\.csv: there is no column 'when'; the columns are 'id', 'word', 'label', 'number'"
    ):
        list(encode_file(state, new))


def test_a_date_becomes_clock_season_and_elapsed_time(tmp_path: Path) -> None:
    days = ["2024-01-01 05:00:00", "2024-07-01 23:30:00", "1969-12-31 12:00:00", "2024-01-07 05:59:59"]
    values = [{"word": "a", "number": "1", "when": day, "time": "0", "label": "0"} for day in days * 10]
    side = load_feature_party(write(tmp_path, values, [f"{number:03d}" for number in range(40)], ".csv"))
    features = side.features
    assert features.categorical_fields == ("word", "label", "when hour", "when weekday")
    assert features.numeric_fields == ("number", "when", "when sine of year", "when cosine of year")
    hours, weekdays = (features.categorical[:4, at].tolist() for at in (2, 3))
    assert hours[0] == hours[3] and len(set(hours)) == 3
    assert len(set(weekdays)) == 3 and weekdays[0] == weekdays[1]  # two Mondays, a Wednesday, a Sunday
    elapsed = np.array([19723 + 5 / 24, 19905 + 23.5 / 24, -0.5, 19729 + (6 * 3600 - 1) / 86400])
    angles = np.array([1, 183, 365, 7]) * 2 * np.pi / 365.25
    train = np.isin(np.arange(40), side.train)
    for column, expected in ((1, elapsed), (2, np.sin(angles)), (3, np.cos(angles))):
        known = np.tile(expected, 10)[train]
        assert np.allclose(features.numeric[:4, column], (expected - known.mean()) / known.std(), atol=1e-6)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["2024-01-01"] * 9 + ["yesterday"], "row 10: 'yesterday' cannot be read as a time"),
        (["1", "2"] * 5, "row 1: '1' cannot be read as a time .an ISO 8601 date or timestamp"),
    ],
)
def test_what_is_no_date_is_named(tmp_path: Path, values: list[str], message: str) -> None:
    records = [{"word": "a", "number": "1", "when": when, "time": "0", "label": "0"} for when in values]
    with pytest.raises(DataError, match=r"table\.csv: column 'when', " + message):
        load(write(tmp_path, records, [str(number) for number in range(10)], ".csv"))


def test_dates_of_parquet_types_are_dates(tmp_path: Path) -> None:
    moment = pa.array([1_700_000_000] * 4, pa.timestamp("s"))
    forms = [
        moment,
        moment.cast(pa.timestamp("ns")),
        moment.cast(pa.timestamp("s", tz="UTC")),
        moment.cast(pa.string()),
    ]
    found = []
    for number, values in enumerate(forms):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"id": ["a", "b", "c", "d"], "when": values, "label": [0, 1, 0, 1]}), path)
        config = TableData(features=(TableFile(path=path, dates=("when",)),), label=LabelFile(path=path), min_count=1)
        side = load_feature_party(config.model_copy(update={"test_fraction": 0.25}))
        assert side.encoder is not None
        found.append((side.encoder.numbers, side.encoder.categories["when hour"].values.to_pylist()))
    assert all(form == found[0] for form in found)
    assert found[0][1] == ["22"]


def test_a_quantity_for_a_label_is_refused_as_one(tmp_path: Path) -> None:
    prices = [{"word": "a", "number": "1", "when": "", "time": "0", "label": f"{n}.5"} for n in range(30)]
    config = write(tmp_path, prices, [str(number) for number in range(30)], ".csv")
    with pytest.raises(
        DataError,
        match=r"column 'label', row 1: '0\.5' is one of 30 different fractions .* regression is not supported",
    ):
        load(config)


def test_memory_does_not_grow_with_the_table(tmp_path: Path) -> None:
    rows, columns = 150_000, 60
    numbers = np.random.default_rng(0).normal(size=rows).round(4)
    content = {"id": pa.array(np.arange(rows)).cast(pa.string())}
    content |= {f"n{at}": pa.array(np.roll(numbers, at)) for at in range(columns)}
    path = tmp_path / "feature.csv"
    pyarrow.csv.write_csv(pa.table(content), path)
    code = """
import resource, sys
from pathlib import Path
from tpsl.data import out_of_core
from tpsl.data.config import LabelFile, TableData, TableFile
from tpsl.data.dataset import load_feature_party
from tpsl.tables import reading
out_of_core.LARGE_BYTES = 1 << 20
reading.BLOCK_BYTES = 1 << 20
path = Path(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
numeric = tuple(f"n{at}" for at in range(60))
side = load_feature_party(TableData(features=(TableFile(path=path, numeric=numeric),), label=LabelFile(path=path)))
print(side.features.numeric.nbytes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    command = [sys.executable, "-c", code, str(path)]
    size, growth = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert int(size) == rows * columns * 4
    assert int(growth) * 1024 < 100e6  # as typed columns in memory the table takes 72 MB, encoded 36, and both 180


def test_memory_does_not_grow_with_the_times_of_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chronological order: times as text, in no order, which most tables of events have."""
    monkeypatch.setattr(out_of_core, "LARGE_BYTES", 1)
    monkeypatch.setattr(out_of_core, "_ROWS_AT_ONCE", 1 << 13)
    monkeypatch.setattr(spill, "ROWS_AT_ONCE", 1 << 13)
    monkeypatch.setattr(reading, "BLOCK_BYTES", 1 << 14)
    peaks = []
    for count in (1_000, 60_000, 120_000):  # the first imports what is needed
        seconds = np.arange(count) * 7_919 % count
        times = (np.datetime64("2026-01-01T00:00:00") + seconds).astype(str)
        path = tmp_path / f"{count}.csv"
        path.write_text("id,when,x\n" + "".join(f"{number},{time},1\n" for number, time in enumerate(times)))
        file = PartyFile(path, {}, time="when")
        peaks.append(peak_bytes(lambda file=file: file.read(label=False).canonical_order()))
    assert peaks[2] - peaks[1] < 20 * 60_000, peaks  # as text they take more than 200 bytes for each record
