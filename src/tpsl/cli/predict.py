"""`tpsl predict`, `tpsl label predict` and `tpsl feature predict`: score new records with a finished run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tpsl.cli.console import Facts, JsonFlag, ModelArgument, Report, answer, notice, progress_bar
from tpsl.cli.settings import LOCAL, LocalOption, Settings, settings_command
from tpsl.cli.termination import stoppable
from tpsl.cli.two_parties import InsecureLoopbackFlag

if TYPE_CHECKING:
    from tpsl.prediction.records import NewRecords
    from tpsl.prediction.two_parties import PredictionSetup
    from tpsl.progress import Progress

_SHARED = {"certs": "local.certificates", "returns": "local.returns", "alignment": "local.alignment"}
LABEL_COMMAND = settings_command(LOCAL, listen="local.listen", **_SHARED)
FEATURE_COMMAND = settings_command(LOCAL, connect="local.connect", party="local.party", **_SHARED)

HeadOption = Annotated[
    Literal["private", "local"],
    typer.Option(help="'local': the label party's own head. Its scores are NOT PRIVATE and never leave it."),
]


def predict(
    run: ModelArgument,
    records: Annotated[
        list[str], typer.Option(metavar="PARTY=FILE", help="A party's new records, CSV or Parquet; one for each party.")
    ],
    out: Annotated[Path, typer.Option(help="File for the scores, .parquet or .csv.")],
    alignment: Annotated[
        list[str] | None, typer.Option(metavar="PARTY=FOLDER", help="The alignment of a party's new records.")
    ] = None,
    head: HeadOption = "private",
    json: JsonFlag = False,
) -> None:
    """Score new records where one process has the halves and the records of all parties.

    Scores are in the order of the first file. Example:

    tpsl predict runs/job --records shop=new_customers.csv --out scores.parquet
    """
    from tpsl.learners.record_scoring import RecordScorer

    files = _by_party(records, "--records")
    aligned = {party: Path(found) for party, found in _by_party(alignment or (), "--alignment").items()}
    with progress_bar("predicting") as progress:
        place, first = RecordScorer(run, local_head=head == "local").score(files, out, aligned, progress)
    _show(json, place, first, head)


def label_predict(
    context: typer.Context,
    run: ModelArgument,
    out: Annotated[Path, typer.Option(help="File for the scores, .parquet or .csv.")],
    records: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The new records: their ids, and your own features. Default: as they come."),
    ] = None,
    local: LocalOption = None,
    head: HeadOption = "private",
    insecure_loopback: InsecureLoopbackFlag = False,
    json: JsonFlag = False,
) -> None:
    """Be the label party: wait for the feature parties of the run and score new records with them.

    The scores stay here, unless the job says what of them is returned. If a party is restarted, all begin again with
    the first record. Example:

    tpsl label predict runs/job-label --records new.csv --listen 0.0.0.0:7443 --certs certs/label --out scores.parquet
    """
    from tpsl.prediction.two_parties import predict_as_label
    from tpsl.transport.peers import LABEL_PARTY

    with _joint(context, run, local, insecure_loopback) as (setup, progress):
        found = None if records is None else _read(setup, LABEL_PARTY, records, progress)
        place, scored = predict_as_label(setup, found, out, local_head=head == "local")
    _show(json, place, scored, head)


def feature_predict(
    context: typer.Context,
    run: ModelArgument,
    records: Annotated[str, typer.Option(metavar="FILE", help="The new records, CSV or Parquet.")],
    out: Annotated[Path | None, typer.Option(help="File for the scores that come back, .parquet or .csv.")] = None,
    numbered: Annotated[
        bool, typer.Option("--numbered", help="The label party has no list of the records: it numbers them.")
    ] = False,
    local: LocalOption = None,
    insecure_loopback: InsecureLoopbackFlag = False,
    json: JsonFlag = False,
) -> None:
    """Be a feature party: connect to the label party of the run and have new records scored.

    What leaves are embeddings of the records. If a party is restarted, all begin again with the first record. Example:

    tpsl feature predict runs/job-airport --records new.csv --connect label.example:7443 --certs certs/airport
    """
    from tpsl.prediction.two_parties import predict_as_feature
    from tpsl.training.local import party_of

    with _joint(context, run, local, insecure_loopback) as (setup, progress):
        party = party_of(setup.job, setup.local, setup.local.party)
        found = _read(setup, party, records, progress)
        place = predict_as_feature(setup, party, found, out, numbered=numbered)
    _show(json, place, found)


@contextmanager
def _joint(
    context: typer.Context, run: Path, local: Path | None, insecure_loopback: bool
) -> Iterator[tuple[PredictionSetup, Progress]]:
    """Show how a joint prediction runs until the block ends."""
    from tpsl.prediction.model import TrainedModel
    from tpsl.prediction.two_parties import PredictionSetup
    from tpsl.training.observer import Watching

    mine = Settings.of(context).load_local(local)
    with stoppable("the same command begins again"), progress_bar("predicting") as progress:
        watching = Watching(
            progress=progress, notice=notice, connections=lambda peer, sentence: notice(f"{peer}: {sentence}")
        )
        yield PredictionSetup(TrainedModel.open(run), mine, watching, insecure_loopback), progress


def _read(setup: PredictionSetup, party: str, source: str, progress: Progress) -> NewRecords:
    from tpsl.prediction.records import read_records

    return read_records(setup.run, party, source, setup.local.alignment, progress)


def _by_party(pairs: Iterable[str], option: str) -> dict[str, str]:
    found = {}
    for pair in pairs:
        party, equals, value = pair.partition("=")
        if not equals or party in found:
            raise typer.BadParameter(f"{option} takes PARTY=PATH, once for each party; got {pair!r}")
        found[party] = value
    return found


def _show(json: bool, place: Path | None, records: NewRecords, head: str | None = None) -> None:
    """Print where scores are; a feature party does not know of which head."""
    from tpsl.report.words import records_text

    content = {"scores": None if place is None else str(place), "records": len(records)}
    content |= {} if head is None else {"head": head}
    facts: Facts = {"scores": "they stay with the label party" if place is None else place}
    if head == "local":
        facts["guarantee"] = "NOT PRIVATE: keep them where they are"
    answer(json, content, Report(f"Scored {records_text(len(records))}", facts))
