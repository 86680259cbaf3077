"""Customer lists from NYC flights: a passenger for each flight, known to each company in its own spelling, or not.

Reads the folder `flights` of `tpsl research data flights --set data.layout=all`. Writes the lists of an airport, a
travel agency and an airline; `claims.csv`, the airline's customers who were late; and `new-*.csv`, new customers, those
of the last flights, with columns in another order and one more.
"""

import csv
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

AGENCY = ("carrier", "flight", "destination", "distance")
AIRLINE = ("model", "plane_built", "plane_seats")
NOBODY = ("id", "scheduled_departure", "plane")
KNOWN, OLD = 0.85, 0.8

Row = dict[str, object]

flights = pq.read_table("flights/airport.parquet").to_pylist()
late = pq.read_table("flights/airline.parquet")["label"].to_pylist()
draws = np.random.default_rng(7)


def airport(number: int) -> Row:
    """Return what the airport has of a passenger: schedule and weather."""
    flight = {name: value for name, value in flights[number].items() if name not in AGENCY + AIRLINE + NOBODY}
    return {"mail": f"passenger{number}@example.org", "phone": f"(212) 555-{number:04}", **flight}


def agency(number: int) -> Row:
    """Return what the travel agency has of a passenger: the journey."""
    keys = {"contact": f"PASSENGER{number}@example.org", "telephone": f"001 212.555.{number:04}"}
    return {**keys, **{name: flights[number][name] for name in AGENCY}}


def airline(number: int) -> Row:
    """Return what the airline has of a passenger: the plane, and whether it was late. Some gave no e-mail address."""
    mail = f" Passenger{number}@Example.ORG" if number % 3 else ""
    keys = {"customer": f"c{number}", "email": mail, "mobile": f"+1 212 555 {number:04}"}
    return {**keys, **{name: flights[number][name] for name in AIRLINE}, "late": late[number]}


def write(path: str, rows: list[Row], columns: list[str]) -> None:
    """Write these columns of a list as CSV."""
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


first_new = round(OLD * len(flights))
for company in (airport, agency, airline):
    name, known = company.__name__, draws.permutation(len(flights))[: round(KNOWN * len(flights))].tolist()
    old = [company(number) for number in known if number < first_new]
    new = [{"terminal": 4, **company(number)} for number in known if number >= first_new]
    write(f"{name}.csv", old, list(old[0]))
    write(f"new-{name}.csv", new, list(reversed(new[0])))
    if company is airline:
        write("claims.csv", [row for row in old if row["late"]], ["customer", "email", "mobile"])
