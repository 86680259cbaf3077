"""Records of a period, and records that an earlier run's encoder encodes."""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pydantic import ValidationError

from tpsl.data import out_of_core
from tpsl.data.config import AlignmentConfig, LabelFile, OwnData, TableData, TableFile
from tpsl.data.dataset import Dataset, load, load_feature_party
from tpsl.data.encoder import EncoderState
from tpsl.data.features import Features
from tpsl.data.rawtable import recent_rows
from tpsl.data.true_labels import reveal
from tpsl.tables import DataError
from tpsl.tables.columns import Place, times
from tpsl.tables.spelling import Spelling

ROWS, SINCE = 60, 40
PLACE = Place("a.csv", "when")


def not_before(given: pa.Array, since: str) -> Any:
    return recent_rows(times(given, PLACE, Spelling()), since, PLACE)


def write(folder: Path, rows: range = range(ROWS), colours: int = 3) -> None:
    """Two files of the same records, in different orders; a record's id says when it was."""
    ids = [f"{(7 * i) % ROWS:03d}" for i in rows]
    size = [float(key) if int(key) % 5 else None for key in ids]
    colour = [f"colour {int(key) % colours}" for key in ids]
    times = [int(key) for key in ids]
    pq.write_table(pa.table({"id": ids, "colour": colour, "size": size, "when": times}), folder / "feature.parquet")
    label = {"id": ids[::-1], "when": times[::-1], "label": [time % 2 for time in times[::-1]]}
    pq.write_table(pa.table(label), folder / "label.parquet")


def config(folder: Path, time: str | None = "when", **options: Any) -> TableData:
    roles = TableFile(path=folder / "feature.parquet", categorical=("colour",), numeric=("size",), time=time)
    label = LabelFile(path=folder / "label.parquet", time=time)
    return TableData(features=(roles,), label=label, **options)


def features(data: Dataset) -> Features:
    found = data.feature_parties["feature"]
    assert isinstance(found, Features)
    return found


@pytest.mark.parametrize("split", ["random", "chronological"])
@pytest.mark.parametrize("large", [False, True])
def test_only_records_since_then_are_there_split_and_learned_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: Any, large: bool
) -> None:
    monkeypatch.setenv("TPSL_CACHE", str(tmp_path / "cache"))
    if large:
        monkeypatch.setattr(out_of_core, "LARGE_BYTES", 0)
    write(tmp_path)
    data = load(config(tmp_path, since=str(SINCE), split=split))
    assert data.ids.to_pylist() == [f"{time:03d}" for time in range(SINCE, ROWS)]
    assert reveal(data.labels).tolist() == [time % 2 for time in range(SINCE, ROWS)]
    assert sorted([*data.train, *data.test]) == list(range(ROWS - SINCE))
    (tmp_path / "alone").mkdir()
    write(tmp_path / "alone", range(ROWS))
    recent = pq.read_table(tmp_path / "alone" / "feature.parquet", filters=[("when", ">=", SINCE)])
    pq.write_table(recent, tmp_path / "alone" / "feature.parquet")
    alone = load_feature_party(config(tmp_path / "alone", split=split))
    assert isinstance(alone.features, Features)
    assert np.array_equal(features(data).numeric, alone.features.numeric)
    assert np.array_equal(features(data).categorical, alone.features.categorical)


@pytest.mark.parametrize("large", [False, True])
def test_an_earlier_encoder_encodes_new_records_and_learns_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    monkeypatch.setenv("TPSL_CACHE", str(tmp_path / "cache"))
    write(tmp_path)
    earlier = load(config(tmp_path)).feature_sides["feature"].encoder
    assert earlier is not None
    if large:
        monkeypatch.setattr(out_of_core, "LARGE_BYTES", 0)
    write(tmp_path, colours=5)
    learned = load(config(tmp_path, since=str(SINCE)))
    data = load(config(tmp_path, since=str(SINCE)), encoders={"feature": earlier})
    encoder = data.feature_sides["feature"].encoder
    assert encoder is not None and encoder.digest() == earlier.digest()
    unseen = [time % 5 >= 3 for time in range(SINCE, ROWS)]
    assert (features(data).categorical[:, 0] == 0).tolist() == unseen
    mean, deviation = earlier.numbers["size"].mean, earlier.numbers["size"].deviation
    sizes = [(time - mean) / deviation if time % 5 else 0.0 for time in range(SINCE, ROWS)]
    assert np.allclose(features(data).numeric[:, 0], sizes)
    assert not np.array_equal(features(learned).numeric, features(data).numeric)


def test_encoders_that_encode_alike_have_one_digest(tmp_path: Path) -> None:
    write(tmp_path)
    encoder = load(config(tmp_path)).feature_sides["feature"].encoder
    assert encoder is not None
    encoder.save(tmp_path / "encoder")
    assert EncoderState.load(tmp_path / "encoder").digest() == encoder.digest()
    write(tmp_path, colours=4)
    other = load(config(tmp_path)).feature_sides["feature"].encoder
    assert other is not None and other.digest() != encoder.digest()


def test_a_users_own_records_have_times_too() -> None:
    class Source:
        ids = tuple(range(10))
        times = tuple(date(2026, 11, 10 + number) for number in range(10))
        labels = tuple(number % 2 for number in range(10))

        def batch(self, rows: Any) -> Any:
            return np.asarray(rows, dtype=np.float32)[:, None]

    config = OwnData(parties=("left",), since="2026-11-14", test_fraction=0.5)
    data = load(config, sources={"left": Source, "label": Source})
    assert data.ids.to_pylist() == ["4", "5", "6", "7", "8", "9"]
    assert data.feature_parties["left"].batch(np.arange(2))[0][:, 0].tolist() == [4, 5]


@pytest.mark.parametrize(
    ("given", "since"),
    [
        (["2026-11-13", "2026-11-14"], "2026-11-14"),
        (["2026-11-13T23:59:59Z", "2026-11-14T00:00:00Z"], "2026-11-14"),
        (["2026-11-13T23:59:59", "2026-11-14T00:00:00"], "2026-11-14T01:00:00+01:00"),
        ([date(2026, 11, 13), date(2026, 11, 14)], "2026-11-14"),
        ([datetime(2026, 11, 13, 23, tzinfo=UTC), datetime(2026, 11, 14, tzinfo=UTC)], "2026-11-14"),
        ([20261113, 20261114], "20261114"),
        (["16.5", "17"], "17"),
    ],
)
def test_times_of_any_type_are_compared_with_the_first_one(given: list[Any], since: str) -> None:
    assert not_before(pa.array(given), since).tolist() == [False, True]


@pytest.mark.parametrize(
    ("given", "since", "sentence"),
    [
        ([17, 18], "2026-11-14", "a.csv: column 'when' has numbers, and '2026-11-14' is none"),
        (["2026-11-13"], "17.5", "a.csv: column 'when' has dates, and '17.5' is none"),
        ([17, 18], "19", "a.csv: column 'when' has no time at or after 19"),
    ],
)
def test_a_first_time_of_another_kind_or_after_all_is_refused(given: list[Any], since: str, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        not_before(pa.array(given), since)


def test_the_first_time_is_written_as_yaml_reads_it() -> None:
    for text in ("2026-11-14", "2026-11-14 06:00:00", "17", "17.5"):
        content = {"source": "own", "parties": ["left"], "since": yaml.safe_load(text)}
        since = OwnData.model_validate(content).since
        assert isinstance(since, str) and since.replace("T", " ") == text
    with pytest.raises(ValidationError, match="a time is a number, or a date or timestamp"):
        OwnData(parties=("left",), since="yesterday")


def test_an_alignment_takes_no_period(tmp_path: Path) -> None:
    aligned = AlignmentConfig.model_validate({"mode": "both", "keys": [{"name": "email", "rule": "email"}]})
    with pytest.raises(ValidationError, match="since: is for records that share an id; of an alignment, align those"):
        config(tmp_path, since="17", alignment=aligned)
    with pytest.raises(ValidationError, match="`keys` names no column for the key 'email'"):
        config(tmp_path, alignment=aligned)


def test_a_period_needs_times(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"feature\.parquet: `since` needs `time`"):
        config(tmp_path, time=None, since="17")
