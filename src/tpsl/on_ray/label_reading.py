"""Files of labels, read by a Ray Data job for the one process that keeps the vault."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import ModuleType
from typing import Any

import pyarrow as pa

from tpsl.on_ray.cluster import RayWorkers
from tpsl.on_ray.table_stream import stream_tables
from tpsl.vault import Incoming, VaultError
from tpsl.vault.tables import Batch, LabelTable

_FAULT = "what is wrong with the file"


def read_labels(ray: ModuleType, share: RayWorkers, incoming: Incoming) -> None:
    """Read all files that are missing, side by side on a cluster; this process keeps them for the vault, one by one.

    Exactly once: a file counts as read when all of it is on the keeper's disk (`Incoming.put`). A process of the
    cluster that is lost reads its file again; if this process is killed, the same command reads what is missing.
    What is wrong with any of the files is one `VaultError`. True labels pass through the memory of the cluster, which
    is the label party's own.
    """
    missing = incoming.missing()
    if missing:
        streams = zip(missing, stream_tables(ray, share, _batches, missing), strict=True)
        incoming.read_by((table, partial(incoming.put, table, map(_batch, parts))) for table, parts in streams)


def _batches(table: LabelTable) -> Iterator[Any]:
    """Yield what a file holds. What is wrong with it is a row at the end: an error would end the reading of others."""
    try:
        for ids, labels, units in table:
            yield pa.table({"ids": ids, "labels": labels, **({} if units is None else {"units": units})})
    except VaultError as fault:
        yield pa.table({_FAULT: [str(fault)]})


def _batch(table: Any) -> Batch:
    """Return the columns of some rows; with a row that tells a fault of the file, that is a `VaultError`."""
    if _FAULT in table.column_names:
        faults = table.column(_FAULT).drop_null()
        if len(faults):
            raise VaultError(faults[0].as_py())
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    return columns["ids"], columns["labels"], columns.get("units")
