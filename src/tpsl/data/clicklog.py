"""The click logs of two challenges (Kaggle 2014), as descriptions of their files: features at one party, clicks at the other.

Criteo's `train.txt` has 45,840,617 lines of 40 values between tabs and no header: the label (clicked or not), thirteen
counts I1 to I13, which may be negative or missing, and 26 categories C1 to C26, eight hexadecimal digits or missing. It
has no record ids, so a record's id is its line number. Its lines are in order of time; without times in the file nobody
can check that they still are.

Avazu's `train.csv` has 40,428,967 records after a header. The label is `click`, the record id is `id`, the hour is
YYMMDDHH, and everything else is a category. Its lines are in order of time, and a chronological split checks that.

Both parties hold the same file, or one that it was converted into, so the order of the records is that of the file.
"""  # noqa: E501

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from tpsl.data.config import AvazuData, ClickData, CriteoData
from tpsl.data.encoder import EncoderState
from tpsl.data.new_files import new_parquet
from tpsl.data.party_file import Labels, PartyFile, side_by_side
from tpsl.data.preparation import Preparation
from tpsl.data.rawtable import sorted_by_id
from tpsl.data.relabelling import Relabelling
from tpsl.data.sides import FeatureSide, LabelSide
from tpsl.progress import Progress, no_progress
from tpsl.tables.reading import PLAIN, Dialect

AnyClickData = TypeVar("AnyClickData", CriteoData, AvazuData)

FEATURE_PARTY = "feature"
CLASS_NAMES = ("0", "1")
_ID = "id"
_FEATURE_FILE, _LABEL_FILE = "feature.parquet", "label.parquet"

_CRITEO = {f"I{number}": "count" for number in range(1, 14)} | {f"C{number}": "hexadecimal" for number in range(1, 27)}
_AVAZU = {
    "hour": "hour",
    **dict.fromkeys(("C1", "banner_pos"), "integer"),
    **dict.fromkeys(("site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category"), "hexadecimal"),
    **dict.fromkeys(("device_id", "device_ip", "device_model"), "hexadecimal"),
    **dict.fromkeys(("device_type", "device_conn_type", *(f"C{number}" for number in range(14, 22))), "integer"),
}


def feature_side(
    config: ClickData,
    progress: Progress = no_progress,
    relabelling: Relabelling | None = None,
    encoder: EncoderState | None = None,
) -> FeatureSide:
    """Load the feature party's side; in a converted folder, from its own file alone. `encoder`: of an earlier run."""
    preparation = Preparation.of(config, in_file_order=True, encoder=encoder)
    return preparation.load_feature_side(FEATURE_PARTY, feature_file(config, relabelling), progress)


def label_side(
    config: ClickData, progress: Progress = no_progress, relabelling: Relabelling | None = None
) -> LabelSide:
    """Load the label party's side; in a converted folder, from its own file alone."""
    return Preparation.of(config, in_file_order=True).load_label_side(
        label_file(config, relabelling), CLASS_NAMES, progress
    )


def feature_file(config: ClickData, relabelling: Relabelling | None = None) -> PartyFile:
    """Return what the feature party's file holds."""
    columns = _CRITEO if isinstance(config, CriteoData) else _AVAZU
    return _file(config, _FEATURE_FILE, columns, relabelling)


def label_file(config: ClickData, relabelling: Relabelling | None = None) -> PartyFile:
    """Return what the label party's file holds."""
    return _file(config, _LABEL_FILE, {}, relabelling)


def convert(config: AnyClickData, folder: Path, progress: Progress = no_progress) -> AnyClickData:
    """Write `feature.parquet` and `label.parquet` into `folder`; return the configuration that reads them.

    Each party needs only its own file. Values are typed and not encoded, so a folder serves every configuration.
    Loading the returned configuration gives what loading `config` gives. Memory does not grow with the file, but for
    eight bytes a record where it has ids. After an error or an interruption nothing is left behind.
    """
    file, seen = feature_file(config), []
    with ExitStack() as stack:
        writers: dict[str, Any] = {}
        for tables, ids in _converted(file, progress):
            for name, table in tables.items():
                if name not in writers:
                    writers[name] = stack.enter_context(new_parquet(folder / name, table.schema))
                writers[name].write_table(table)
            seen.append(ids)
        sorted_by_id(str(file.path), pa.chunked_array(seen).combine_chunks(), file.dialect)
    return config.model_copy(update={"path": folder})


def _converted(file: PartyFile, progress: Progress) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield the tables of both parties, block by block, and the ids as numbers."""
    labels = file.labels.column if file.labels is not None else ""
    needed = [name for name in (file.id, labels, *file.columns) if name is not None]
    for block in file.blocks(needed, progress):
        ids = file.ids(block)
        typed = side_by_side(partial(file.typed, block), file.columns)
        clicks = {_ID: ids, labels: pa.array(file.class_numbers(block), pa.int8())}
        if "hour" in typed:
            clicks["hour"] = typed["hour"]
        tables = {_FEATURE_FILE: pa.table({_ID: ids, **typed}), _LABEL_FILE: pa.table(clicks)}
        yield tables, ids.cast(pa.uint64())


def _file(config: ClickData, name: str, columns: dict[str, str], relabelling: Relabelling | None) -> PartyFile:
    folder = config.path if isinstance(config.path, Path) and config.path.is_dir() else None
    if isinstance(config, CriteoData):
        lines, id, time, label = Dialect("\t", ("label", *_CRITEO), quoted=False), None, None, "label"
    else:
        lines, id, time, label = Dialect(",", quoted=False), _ID, "hour", "click"
    return PartyFile(
        folder / name if folder else config.path,
        columns,
        _ID if folder else id,
        time if config.split == "chronological" else None,
        "hour",
        labels=Labels(label, CLASS_NAMES, relabelling=relabelling),
        dialect=PLAIN if folder else lines,
        rows=config.rows,
        numbered=True,
    )
