"""Files of labels, read by a Ray Data job for the one process that keeps the vault."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pyarrow as pa

from tpsl.on_ray.cluster import RayWorkers
from tpsl.on_ray.table_stream import stream_tables
from tpsl.vault import Incoming
from tpsl.vault.tables import Batch, LabelTable


def read_labels(ray: ModuleType, share: RayWorkers, incoming: Incoming) -> None:
    """Read all files that are missing, side by side on a cluster; this process keeps them for the vault, one by one.

    Exactly once: a file counts as read when all of it is on the keeper's disk (`Incoming.put`). A process of the
    cluster that is lost reads its file again; if this process is killed, the same command reads what is missing.
    True labels pass through the memory of the cluster, which is the label party's own.
    """
    missing = incoming.missing()
    if missing:
        for table, parts in zip(missing, stream_tables(ray, share, _batches, missing), strict=True):
            incoming.put(table, (_batch(part) for part in parts))


def _batches(table: LabelTable) -> Iterator[Any]:
    for ids, labels, units in table:
        yield pa.table({"ids": ids, "labels": labels, **({} if units is None else {"units": units})})


def _batch(table: Any) -> Batch:
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    return columns["ids"], columns["labels"], columns.get("units")
