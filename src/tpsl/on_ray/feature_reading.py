"""A feature party's Parquet files, read by a Ray Data job before its workers are started."""

from __future__ import annotations

from functools import partial
from types import ModuleType

from tpsl.data.config import TableData
from tpsl.data.dataset import load_feature_party
from tpsl.on_ray.cluster import RayWorkers
from tpsl.on_ray.table_stream import stream_tables
from tpsl.tables.reading import Readers, parquet_read_by, read_parquet
from tpsl.training.job import Job
from tpsl.training.local import Local, own_data


def prepare_features(ray: ModuleType, share: RayWorkers, job: Job, party: str, local: Local) -> None:
    """Read and check a feature party's table once, for all workers: its files side by side on the cluster.

    Encoded features that do not fit into memory are left in the cache (TPSL_CACHE, on a file system that all machines
    see), which the workers map. They are those of one process to the last bit: the files come in their order to the
    same encoder. What is wrong with the table is said before any worker is started.
    """
    data = own_data(job, party, local.data, local.alignment).data
    if isinstance(data, TableData) and local.inputs is None and local.start_from is None:
        with parquet_read_by(readers_on(ray, share)):
            load_feature_party(data, party)


def readers_on(ray: ModuleType, share: RayWorkers) -> Readers:
    """Return what reads Parquet files on a cluster."""
    return lambda files, columns: stream_tables(ray, share, partial(read_parquet, columns=columns), files)
