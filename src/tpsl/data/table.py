"""Any CSV or Parquet tables, one for each party, as a few lines of schema describe them."""

from dataclasses import replace

from tpsl.data.aligned import alignment_of
from tpsl.data.config import LabelFile, TableData, TableFile, in_time
from tpsl.data.encoder import EncoderState
from tpsl.data.party_file import Labels, PartyFile
from tpsl.data.preparation import Preparation
from tpsl.data.relabelling import Relabelling
from tpsl.data.sides import FeatureSide, LabelSide
from tpsl.data.true_labels import TrueLabels, reveal
from tpsl.progress import Progress, no_progress
from tpsl.tables.locations import Location
from tpsl.tables.reading import column_names, dialect_of


def feature_side(
    config: TableData,
    party: str,
    progress: Progress = no_progress,
    relabelling: Relabelling | None = None,
    encoder: EncoderState | None = None,
) -> FeatureSide:
    """Load a feature party's side from its file; an `encoder` of an earlier run encodes it, if there is one."""
    file = next(file for file in config.features if file.party == party)
    preparation = Preparation.of(config, alignment=alignment_of(config, file, progress), encoder=encoder)
    labels = label_column(config, relabelling=relabelling)
    return preparation.load_feature_side(party, party_file(file, config, labels), progress)


def label_side(
    config: TableData,
    progress: Progress = no_progress,
    *,
    late_labels: bool = False,
    relabelling: Relabelling | None = None,
    encoder: EncoderState | None = None,
) -> LabelSide:
    """Load the label party's side from its file; `late_labels` may be missing, `encoder` is that of an earlier run."""
    preparation = Preparation.of(config, alignment=alignment_of(config, config.label, progress), encoder=encoder)
    # Records that are not in the label party's file have a label too: there not all of them could be changed.
    in_file, afterwards = (None, relabelling) if config.makes_new_records else (relabelling, None)
    file = party_file(config.label, config, label_column(config, late_labels, in_file))
    file = replace(file, id=id_column(config, config.label, file.path))
    side = preparation.load_label_side(file, config.class_names, progress)
    if afterwards is None:
        return side
    return replace(side, labels=TrueLabels(afterwards(reveal(side.labels), config.classes), config.class_names))


def party_file(file: TableFile, config: TableData, labels: Labels | None) -> PartyFile:
    """Return what a party's file holds; a relabelling changes the label column, whoever reads it.

    Aligned records take their ids and their order from the alignment.
    """
    columns = dict.fromkeys(file.categorical, "category") | dict.fromkeys(file.numeric, "number")
    aligned = config.alignment is not None
    return PartyFile(
        file.path,
        columns | dict.fromkeys(file.dates, file.date_kind),
        None if aligned else file.id,
        file.time if in_time(config) and not aligned else None,
        file.time_kind,
        since=config.since,
        unit=file.unit if isinstance(file, LabelFile) else None,
        labels=labels if file.path == config.label.path else None,
        missing=file.missing,
        dialect=dialect_of(file.path),
    )


def id_column(config: TableData, file: TableFile, path: Location) -> str | None:
    """Return the column of a party's own ids; aligned records need none, and are called by their row then."""
    is_needed = config.alignment is None or file.id in column_names(path, dialect_of(path))
    return file.id if is_needed else None


def label_column(config: TableData, late: bool = False, relabelling: Relabelling | None = None) -> Labels | None:
    """Return the label column; None where membership is the label."""
    column = config.label.label
    return None if column is None else Labels(column, config.class_names, late, relabelling)
