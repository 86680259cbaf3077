"""`tpsl predict`: score new records with a finished run; `tpsl score`: the same as a service; `tpsl export`: a party's
half of it for use without tpsl."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from tpsl.cli import flags
from tpsl.cli.console import STATUS, Facts, Report, answer, notice, progress_bar, stoppable, warn
from tpsl.cli.flags import LOCAL, Settings, argument, flag, option, the_only
from tpsl.net.messages import LABEL_PARTY
from tpsl.report.words import records_text
from tpsl.run.local import Local, locals_by_party, party_of
from tpsl.run.observer import Watching
from tpsl.run.run_folder import RunFolder


def predict(
    run: flags.ModelArgument,
    records: Annotated[list[str] | None, option("[PARTY=]FILE", "New records: this side's, or each party's.")] = None,
    out: Annotated[Path | None, option("FILE", "File for the scores, .parquet or .csv.")] = None,
    changes: flags.SetOption = None,
    local: flags.LocalsOption = None,
    listen: flags.ListenOption = None,
    connect: flags.ConnectOption = None,
    certs: flags.CertsOption = None,
    head: flags.HeadOption = "private",
    numbered: Annotated[bool, flag("--numbered", "Feature party: the label party numbers the records.")] = False,
    json: flags.JsonFlag = False,
) -> None:
    """Score new records where one process has the halves and the records of all parties, or together with them.

    Scores are in the order of the first file. With --listen (label party) or --connect (feature party) each party does
    it in its own process: scores stay with the label party, unless the job says what of them is returned. Examples:

    tpsl predict runs/job --records shop=new_customers.csv --out scores.parquet

    tpsl predict runs/job-label --listen 0.0.0.0:7443 --certs certs/label --out scores.parquet

    tpsl predict runs/job-airport --records new.csv --connect label.example:7443 --certs certs/airport
    """
    given = {"local.listen": listen, "local.connect": connect, "local.certificates": certs}
    settings = Settings.of(changes, given, parts=(LOCAL,))
    several = local is not None and len(local) > 1
    mine = settings.load_local(None if several else the_only(local))
    if several or (mine.listen is None and mine.connect is None):
        _in_one_process(run, records or (), _required(out), local or (), head, json)
        return
    if records and len(records) > 1:
        raise typer.BadParameter("--records is given more than once; that is for all parties in one process")
    _with_others(run, mine, records[0] if records else None, out, head, numbered, json)


def _required(out: Path | None) -> Path:
    if out is None:
        raise typer.BadParameter("--out FILE says where the scores go")
    return out


def _in_one_process(run: Path, records: Iterable[str], out: Path, local: Iterable[Path], head: str, json: bool) -> None:
    from tpsl.handover.learning import score_records
    from tpsl.model.trained import TrainedModel

    files = dict[str, str]()
    for pair in records:
        party, equals, value = pair.partition("=")
        if not equals or party in files:
            raise typer.BadParameter(f"--records takes PARTY=FILE, once for each party; got {pair!r}")
        files[party] = value
    if not files:
        raise typer.BadParameter("--records PARTY=FILE names the new records of each party")
    own = locals_by_party(TrainedModel.open(run).run.job(), local)
    aligned = {party: mine.alignment for party, mine in own.items() if mine.alignment is not None}
    with progress_bar("predicting") as progress:
        local_head = head == "local"
        place, first = score_records(run, files, out, local_head=local_head, aligned=aligned, progress=progress)
    _show(json, place, len(first), head)


def _with_others(
    run: Path, mine: Local, records: str | None, out: Path | None, head: str, numbered: bool, json: bool
) -> None:
    """Be one party of the run, and score new records with the others; a feature party does not know by which head."""
    from tpsl.model.joint_prediction import PredictionSetup, predict_as_feature, predict_as_label
    from tpsl.model.records import read_records
    from tpsl.model.trained import TrainedModel

    if mine.connect is not None and records is None:
        raise typer.BadParameter("a feature party needs --records FILE")
    scores = None if mine.connect is not None else _required(out)
    with stoppable("the same command begins again"), progress_bar("predicting") as progress:
        watching = Watching(
            progress=progress, notice=notice, connections=lambda peer, sentence: notice(f"{peer}: {sentence}")
        )
        setup = PredictionSetup(TrainedModel.open(run), mine, watching, mine.insecure_loopback)
        party = LABEL_PARTY if scores else party_of(setup.job, mine, mine.party)
        found = None if records is None else read_records(setup.run, party, records, mine.alignment, progress)
        if scores is not None:
            place, scored = predict_as_label(setup, found, scores, local_head=head == "local")
            _show(json, place, len(scored), head)
        elif found is not None:
            _show(json, predict_as_feature(setup, party, found, out, numbered=numbered), len(found))


def _show(json: bool, place: Path | None, count: int, head: str | None = None) -> None:
    content = {"scores": place and str(place), "records": count, **({} if head is None else {"head": head})}
    private = "NOT PRIVATE: keep them where they are" if head == "local" else None
    facts: Facts = {"scores": place or "they stay with the label party", "guarantee": private}
    answer(json, content, Report(f"Scored {records_text(count)}", facts))


def export(
    run: flags.ModelArgument,
    party: Annotated[str, option("NAME", "Whose half: a feature party's name, or label.")],
    out: Annotated[Path, option("FOLDER", "A new folder for it.")],
    head: flags.HeadOption = "private",
    json: flags.JsonFlag = False,
) -> None:
    """Write a party's trained half for its owner: for PyTorch, as ONNX, as safetensors, with encoder and model card.

    The script in the folder, predict.py, goes from raw records to embeddings or probabilities without tpsl. Needs `pip
    install 'tpsl[export]'`. Example: tpsl export runs/flights --party label --out exported/label
    """
    from tpsl.handover.learning import require_no_learner
    from tpsl.model.trained import TrainedModel

    require_no_learner(RunFolder(run), "there is no half to export, and `tpsl predict` scores with it")
    notice(f"exporting the half of {party}")
    exported = TrainedModel.open(run).export(out, party, head=head)
    folder, states = exported.folder, exported.card["files"]
    if head == "local":
        warn("a local head is trained on true labels and is NOT PRIVATE: keep it, and its scores, at the label party")
    for file, state in states.items():
        if state != "written":
            warn(f"{folder / file}: {state}")
    written = [file for file, state in states.items() if state == "written"]
    steps = {"try it": f"python {folder / 'predict.py'} --help"} if "predict.py" in written else {}
    report = Report(f"Exported the half of {party}", {"folder": folder, "files": ", ".join(written)}, steps)
    answer(json, {"folder": str(folder), "card": exported.card}, report)


def score(
    run: Annotated[Path, argument("RUN", "Run or search folder, or a link that is moved to a newer one.")],
    changes: flags.SetOption = None,
    local: flags.LocalOption = None,
    listen: flags.ListenOption = None,
    connect: flags.ConnectOption = None,
    certs: flags.CertsOption = None,
    http: Annotated[
        str | None,
        option("ADDRESS", "HOST:PORT, or a port of 127.0.0.1, for this side's applications. Default: a free one."),
    ] = None,
    head: flags.HeadOption = "private",
    take_over: Annotated[bool, flag("--take-over", "Wait until the process that has the ports ends.")] = False,
    json: flags.JsonFlag = False,
) -> None:
    """Score records as they come: a service of the label party (--listen) or of a feature party (--connect).

    Applications ask at http://127.0.0.1:PORT/v1/score, as /openapi.json says. A feature party's service asks the label
    party over mutual TLS for scores. An address that other machines can reach needs `http_token` or `http_certificate`
    in the local file. SIGHUP reads the run folder again, and no request is lost. Examples:

    tpsl score runs/current --listen 0.0.0.0:7443 --certs certs/label --http 8080

    tpsl score runs/current --connect label.example:7443 --certs certs/airport --http 8081
    """
    from tpsl.serving.starting import prepared, service_of

    given = {"local.listen": listen, "local.connect": connect, "local.certificates": certs, "local.http": http}
    settings = Settings.of(changes, given, parts=(LOCAL,))
    options = {"take_over": take_over, "local_head": head == "local"}
    service = prepared(lambda: service_of(run, settings.load_local(local), notice, **options), take_over)

    from tpsl.serving.services import run as serve

    def tell() -> None:
        party, listening = getattr(service, "party", None), getattr(service, "address", None)
        content: dict[str, Any] = {"http": service.url, "model": service.versions.newest.name}
        content |= {"party": party} if party else {"listening": listening}
        what = f"embedding for clients of {party}" if party else f"scoring for feature parties at {listening}"
        answer(json, content, [f"{what}; for applications at {service.url}"])

    raise typer.Exit(STATUS if serve(service, tell) == signal.SIGTERM else 0)
