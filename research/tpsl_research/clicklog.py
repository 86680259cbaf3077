"""The click logs of two challenges (Kaggle 2014), as descriptions of their files: features at one party, clicks at the other.

Criteo's `train.txt` has 45,840,617 lines of 40 values between tabs and no header: the label (clicked or not), thirteen
counts I1 to I13, which may be negative or missing, and 26 categories C1 to C26, eight hexadecimal digits or missing. It
has no record ids, so a record's id is its line number. Its lines are in order of time; without times in the file nobody
can check that they still are.

Avazu's `train.csv` has 40,428,967 records after a header. The label is `click`, the record id is `id`, the hour is
YYMMDDHH, and everything else is a category. Its lines are in order of time, and a chronological split checks that.

Both parties hold the same file, or one that it was converted into, so the order of the records is that of the file.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from tpsl.data.config import SOURCE, DataPath, PackageData
from tpsl.data.encoder import EncoderState, HashedCategories, IndexedCategories
from tpsl.data.party_file import Labels, PartyFile, side_by_side
from tpsl.data.preparation import Preparation
from tpsl.data.rawtable import RawTable, sorted_by_id
from tpsl.data.sides import FeatureSide, LabelSide, Relabelling
from tpsl.progress import Progress, no_progress
from tpsl.tables import DataError
from tpsl.tables.columns import Place, first_true, parsed_or_null
from tpsl.tables.reading import PLAIN, Block, Dialect, new_parquet
from tpsl.tables.spelling import shown

FEATURE_PARTY = "feature"
CLASS_NAMES = ("0", "1")
_ID = "id"
_FEATURE_FILE, _LABEL_FILE = "feature.parquet", "label.parquet"

_CRITEO = {f"I{number}": "count" for number in range(1, 14)} | {f"C{number}": "category" for number in range(1, 27)}
_AVAZU = {"hour": "hour"} | dict.fromkeys(
    (
        *("C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category"),
        *("device_id", "device_ip", "device_model", "device_type", "device_conn_type"),
        *(f"C{number}" for number in range(14, 22)),
    ),
    "category",
)


class _ClickFile(PartyFile):
    """A file of a click log: ids are whole numbers of up to 64 bits."""

    def ids(self, block: Block) -> Any:
        """Return the id of each record of a block."""
        ids = super().ids(block)
        wrong = pc.is_null(parsed_or_null(ids, pa.uint64()))
        if pc.any(wrong).as_py():
            at = first_true(wrong)
            fault = f"{shown(ids[at].as_py())} is not a record id, a whole number of up to 64 bits"
            raise Place.of(block, self.id or "").fault(at, fault)
        return ids


class _InFileOrder(Preparation):
    """Records in the order of the file, which all parties hold; for a chronological split its times must ascend."""

    def order(self, raw: RawTable) -> None:
        """Check ids and times."""
        sorted_by_id(raw.name, raw.ids)
        if raw.times is not None and (raw.times[1:] < raw.times[:-1]).any():
            record = int(np.argmax(raw.times[1:] < raw.times[:-1])) + 2
            raise DataError(
                f"{raw.name}: record {record} is earlier than the one before it, and a chronological split takes "
                "the records in their order: sort the file by time, or set data.split to random"
            )


class ClickData(PackageData):
    """A click log: all features at the feature party, clicks at the label party."""

    path: DataPath = Field(
        description="The publisher's training file, plain or compressed (.gz, .zst), or the folder that it "
        "was converted into.",
    )
    split: Literal["random", "chronological"] = Field(
        default="chronological",
        description="'chronological': the last records of the file are the test set; avazu: its hours must ascend.",
    )
    categories: Literal["index", "hash"] = Field(
        default="index",
        description="'index': a vocabulary of the training records; 'hash': a fixed number of buckets a field.",
    )
    min_count: int = Field(
        default=10, ge=1, description="'index': values with fewer training records share the row of unseen values."
    )
    hash_buckets: int = Field(default=2**16, ge=1, le=2**30, description="'hash': number of buckets of each field.")

    columns: ClassVar[dict[str, str]]
    label: ClassVar[str]
    id: ClassVar[str | None] = None
    time: ClassVar[str | None] = None
    dialect: ClassVar[Dialect]

    @property
    def feature_parties(self) -> tuple[str, ...]:
        """The one feature party."""
        return (FEATURE_PARTY,)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Not clicked, clicked."""
        return CLASS_NAMES

    def load_feature_side(
        self,
        party: str = FEATURE_PARTY,
        progress: Progress = no_progress,
        relabelling: Relabelling | None = None,
        encoder: EncoderState | None = None,
    ) -> FeatureSide:
        """Load the feature party's side; in a converted folder, from its own file alone."""
        return self._preparation(encoder).feature_side(party, self.feature_file(relabelling), progress)

    def load_label_side(self, progress: Progress = no_progress, relabelling: Relabelling | None = None) -> LabelSide:
        """Load the label party's side; in a converted folder, from its own file alone."""
        return self._preparation().label_side(self.label_file(relabelling), CLASS_NAMES, progress)

    def feature_file(self, relabelling: Relabelling | None = None) -> PartyFile:
        """Return what the feature party's file holds."""
        return self._file(_FEATURE_FILE, self.columns, relabelling)

    def label_file(self, relabelling: Relabelling | None = None) -> PartyFile:
        """Return what the label party's file holds."""
        return self._file(_LABEL_FILE, {}, relabelling)

    def _preparation(self, encoder: EncoderState | None = None) -> Preparation:
        hashed = self.categories == "hash"
        categories = HashedCategories(self.hash_buckets) if hashed else IndexedCategories(self.min_count)
        split = self.split, self.test_fraction, self.split_seed
        return _InFileOrder(*split, categories, encoder=encoder)

    def _file(self, name: str, columns: dict[str, str], relabelling: Relabelling | None) -> PartyFile:
        folder = self.path if isinstance(self.path, Path) and self.path.is_dir() else None
        return _ClickFile(
            folder / name if folder else self.path,
            columns,
            _ID if folder else self.id,
            self.time if self.split == "chronological" else None,
            "hour",
            labels=Labels(self.label, CLASS_NAMES, relabelling=relabelling),
            dialect=PLAIN if folder else self.dialect,
            rows=self.rows,
        )


class CriteoData(ClickData):
    """Criteo's display advertising challenge: features at the feature party, clicks at the label party."""

    source: Literal["criteo"] = Field("criteo", description=SOURCE)
    columns = _CRITEO
    label = "label"
    dialect = Dialect("\t", ("label", *_CRITEO))

    @property
    def unverified_assumption(self) -> str | None:
        """That the records are in order of time."""
        if self.split != "chronological":
            return None
        return (
            f"{self.path}: has no times, so its order is taken for that of time; "
            "if the records were shuffled, the chronological split is a random one"
        )


class AvazuData(ClickData):
    """Avazu's click-through rate challenge: features at the feature party, clicks at the label party."""

    source: Literal["avazu"] = Field("avazu", description=SOURCE)
    columns = _AVAZU
    label, id, time = "click", _ID, "hour"
    dialect = Dialect(",")


AnyClickData = TypeVar("AnyClickData", bound=ClickData)


def convert(config: AnyClickData, folder: Path, progress: Progress = no_progress) -> AnyClickData:
    """Write `feature.parquet` and `label.parquet` into `folder`; return the configuration that reads them.

    Each party needs only its own file. Values are typed and not encoded, so a folder serves every configuration.
    Loading the returned configuration gives what loading `config` gives. Memory does not grow with the file, but for
    eight bytes a record where it has ids. After an error or an interruption nothing is left behind.
    """
    file, seen = config.feature_file(), []
    with ExitStack() as stack:
        writers: dict[str, Any] = {}
        for tables, ids in _converted(file, progress):
            for name, table in tables.items():
                if name not in writers:
                    writers[name] = stack.enter_context(new_parquet(folder / name, table.schema))
                writers[name].write_table(table)
            seen.append(ids)
        sorted_by_id(str(file.path), pa.chunked_array(seen).combine_chunks())
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
