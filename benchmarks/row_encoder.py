"""How fast a few records are encoded: `python benchmarks/row_encoder.py [--records 32] [--columns 20] [--json]`.

A service encodes a request of a few records as they come, as plain Python values. Printed is the median time of a
request by `EncoderState.encode_records`, by the encoder of whole tables (PyArrow), and their ratio. Half of the columns
are categories, half are numbers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from tpsl.data.encoder import EncoderState, HashedCategories, IndexedCategories, learn
from tpsl.data.features import Features
from tpsl.data.rawtable import KINDS, RawTable, fields_of
from tpsl.tables.columns import Place
from tpsl.tables.spelling import Spelling

LEARNED_FROM, VALUES = 1000, 50


def table(rows: list[dict[str, Any]], columns: dict[str, str]) -> RawTable:
    typed = {
        name: KINDS[kind].read(pa.array([row[name] for row in rows]), Place("rows", name), Spelling())
        for name, kind in columns.items()
    }
    fields = fields_of(columns, typed)
    return RawTable("rows", pa.array(range(len(rows))).cast(pa.string()), *fields, columns=columns, missing=("",))


def as_table(state: EncoderState, rows: list[dict[str, Any]], columns: dict[str, str]) -> Features:
    return state.encode(table(rows, columns))


def median_seconds(requests: int, work: Callable[[], object]) -> float:
    times = []
    for _ in range(requests):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def measure(records: int, columns: int, requests: int) -> dict[str, dict[str, float]]:
    draw = np.random.default_rng(0)
    kinds = {f"c{at}": ("category", "number")[at % 2] for at in range(columns)}
    values = {
        name: [f"v{code}" for code in draw.integers(VALUES, size=LEARNED_FROM)]
        if kind == "category"
        else draw.normal(size=LEARNED_FROM).tolist()
        for name, kind in kinds.items()
    }
    typed = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    found = {}
    for how, categories in (("vocabulary", IndexedCategories(1)), ("hashed", HashedCategories(1000))):
        state, _ = learn(table(typed, kinds), categories, np.arange(LEARNED_FROM))
        for form in ("numbers as numbers", "numbers as text"):
            request = [
                {name: str(value) if form.endswith("text") else value for name, value in row.items()}
                for row in typed[:records]
            ]
            rows = median_seconds(requests, partial(state.encode_records, request))
            whole = median_seconds(requests, partial(as_table, state, request, kinds))
            found[f"{how}, {form}"] = {"rows_ms": 1e3 * rows, "table_ms": 1e3 * whole, "ratio": whole / rows}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=32, help="in a request")
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    found = measure(arguments.records, arguments.columns, arguments.requests)
    if arguments.json:
        print(json.dumps(found))
        return
    print(f"{arguments.records} records of {arguments.columns} columns, median of {arguments.requests} requests")
    for name, times in found.items():
        print(f"{name:<32} {times['rows_ms']:7.3f} ms, table {times['table_ms']:7.3f} ms, ratio {times['ratio']:.1f}")


if __name__ == "__main__":
    main()
