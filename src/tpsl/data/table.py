"""Any CSV or Parquet tables, one for each party, as a few lines of schema describe them."""

from tpsl.data.config import LabelFile, TableData, TableFile, in_time
from tpsl.data.encoder import EncoderState
from tpsl.data.party_file import Labels, PartyFile
from tpsl.data.preparation import Preparation
from tpsl.data.relabelling import Relabelling
from tpsl.data.sides import FeatureSide, LabelSide
from tpsl.progress import Progress, no_progress
from tpsl.tables.reading import dialect_of


def feature_side(
    config: TableData,
    party: str,
    progress: Progress = no_progress,
    relabelling: Relabelling | None = None,
    encoder: EncoderState | None = None,
) -> FeatureSide:
    """Load a feature party's side from its file; an `encoder` of an earlier run encodes it, if there is one."""
    file = next(file for file in config.features if file.party == party)
    described = party_file(file, config, Labels(config.label.label, config.class_names, relabelling=relabelling))
    return Preparation.of(config, encoder=encoder).load_feature_side(party, described, progress)


def label_side(
    config: TableData,
    progress: Progress = no_progress,
    *,
    late_labels: bool = False,
    relabelling: Relabelling | None = None,
    encoder: EncoderState | None = None,
) -> LabelSide:
    """Load the label party's side from its file; `late_labels` may be missing, `encoder` is that of an earlier run."""
    labels = Labels(config.label.label, config.class_names, late_labels, relabelling)
    file = party_file(config.label, config, labels)
    return Preparation.of(config, encoder=encoder).load_label_side(file, labels.classes, progress)


def party_file(file: TableFile, config: TableData, labels: Labels) -> PartyFile:
    """Return what a party's file holds; a relabelling changes the label column, whoever reads it."""
    columns = dict.fromkeys(file.categorical, "category") | dict.fromkeys(file.numeric, "number")
    return PartyFile(
        file.path,
        columns | dict.fromkeys(file.dates, "date"),
        file.id,
        file.time if in_time(config) else None,
        since=config.since,
        unit=file.unit if isinstance(file, LabelFile) else None,
        labels=labels if file.path == config.label.path else None,
        missing=file.missing,
        dialect=dialect_of(file.path),
    )
