"""`tpsl predict`: score new records with a finished run; `tpsl score`: the same as a service; `tpsl export`: a party's
half of it for use without tpsl."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tpsl.cli import flags
from tpsl.cli.console import STATUS, Facts, Report, answer, notice, progress_bar, stoppable, warn
from tpsl.cli.flags import argument, flag, option
from tpsl.cli.settings import LOCAL, Settings, locals_by_party, the_only
from tpsl.net.peers import LABEL_PARTY
from tpsl.report.words import records_text
from tpsl.training.local import Local, LocalError, certificates_of, connect_address, listen_address, party_of
from tpsl.training.observer import Watching
from tpsl.training.run_folder import RunFolder

if TYPE_CHECKING:
    from tpsl.serving.services import FeatureService, LabelService


_LOWEST_PRIORITY = 19
Result = TypeVar("Result")


def predict(
    run: flags.ModelArgument,
    records: Annotated[
        list[str] | None,
        option(
            "[PARTY=]FILE",
            "New records, CSV or Parquet: this side's, or in one process PARTY=FILE once for each party.",
        ),
    ] = None,
    out: Annotated[Path | None, option("FILE", "File for the scores, .parquet or .csv.")] = None,
    changes: flags.SetOption = None,
    local: flags.LocalsOption = None,
    listen: flags.ListenOption = None,
    connect: flags.ConnectOption = None,
    certs: flags.CertsOption = None,
    head: flags.HeadOption = "private",
    numbered: Annotated[
        bool, flag("--numbered", "Feature party: the label party has no list of the records, and numbers them.")
    ] = False,
    json: flags.JsonFlag = False,
) -> None:
    """Score new records where one process has the halves and the records of all parties, or together with them.

    Scores are in the order of the first file. Example:

    tpsl predict runs/job --records shop=new_customers.csv --out scores.parquet

    With --listen (label party) or --connect (feature party) each party does it in its own process. Scores stay with the
    label party, unless the job says what of them is returned; what leaves a feature party are embeddings. The label
    party names no records if it takes them as they come. If a party is restarted, all begin again with the first
    record. Examples:

    tpsl predict runs/job-label --records new.csv --listen 0.0.0.0:7443 --certs certs/label --out scores.parquet

    tpsl predict runs/job-airport --records new.csv --connect label.example:7443 --certs certs/airport
    """
    given = {"local.listen": listen, "local.connect": connect, "local.certificates": certs}
    settings = Settings.of(changes, given, parts=(LOCAL,))
    mine = None if local and len(local) > 1 else settings.load_local(the_only(local))
    if mine is None or (mine.listen is None and mine.connect is None):
        _in_one_process(run, records or (), out, local or (), head, json)
        return
    if records and len(records) > 1:
        raise typer.BadParameter("--records is given more than once; that is for all parties in one process")
    _with_others(run, mine, records[0] if records else None, out, head, numbered, json)


def _required(out: Path | None) -> Path:
    if out is None:
        raise typer.BadParameter("--out FILE says where the scores go")
    return out


def _in_one_process(
    run: Path, records: Iterable[str], out: Path | None, local: Iterable[Path], head: str, json: bool
) -> None:
    from tpsl.handover.learning import score_records
    from tpsl.prediction.model import TrainedModel

    scores, files = _required(out), dict[str, str]()
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
        place, first = score_records(run, files, scores, local_head=local_head, aligned=aligned, progress=progress)
    _show(json, place, len(first), head)


def _with_others(
    run: Path, mine: Local, records: str | None, out: Path | None, head: str, numbered: bool, json: bool
) -> None:
    """Be one party of the run, and score new records with the others; a feature party does not know by which head."""
    from tpsl.prediction.model import TrainedModel
    from tpsl.prediction.records import read_records
    from tpsl.prediction.two_parties import PredictionSetup, predict_as_feature, predict_as_label

    if mine.connect is None:
        _required(out)
    elif records is None:
        raise typer.BadParameter("a feature party needs --records FILE")
    with stoppable("the same command begins again"), progress_bar("predicting") as progress:
        watching = Watching(
            progress=progress, notice=notice, connections=lambda peer, sentence: notice(f"{peer}: {sentence}")
        )
        setup = PredictionSetup(TrainedModel.open(run), mine, watching, mine.insecure_loopback)
        party = LABEL_PARTY if mine.connect is None else party_of(setup.job, mine, mine.party)
        found = None if records is None else read_records(setup.run, party, records, mine.alignment, progress)
        if mine.connect is None:
            place, scored = predict_as_label(setup, found, _required(out), local_head=head == "local")
            _show(json, place, len(scored), head)
        elif found is not None:
            _show(json, predict_as_feature(setup, party, found, out, numbered=numbered), len(found))


def _show(json: bool, place: Path | None, count: int, head: str | None = None) -> None:
    content = {"scores": None if place is None else str(place), "records": count}
    content |= {} if head is None else {"head": head}
    facts: Facts = {"scores": "they stay with the label party" if place is None else place}
    if head == "local":
        facts["guarantee"] = "NOT PRIVATE: keep them where they are"
    answer(json, content, Report(f"Scored {records_text(count)}", facts))


def export(
    run: flags.ModelArgument,
    party: Annotated[str, option("NAME", "Whose half: a feature party's name, or label.")],
    out: Annotated[Path, option("FOLDER", "A new folder for it.")],
    head: flags.HeadOption = "private",
    json: flags.JsonFlag = False,
) -> None:
    """Write a party's trained half for its owner: for PyTorch, as ONNX, as safetensors, with encoder and model card.

    The run folder need hold no other party's half. The folder has a script, predict.py, that goes from raw records to
    embeddings or probabilities without tpsl. Needs `pip install 'tpsl[export]'`.

    Example: tpsl export runs/flights --party label --out exported/label
    """
    from tpsl.export.half import export_half
    from tpsl.handover.learning import require_no_learner

    require_no_learner(RunFolder(run), "there is no half to export, and `tpsl predict` scores with it")
    notice(f"exporting the half of {party}")
    exported = export_half(run, party, out, head=head)
    folder, card = exported.folder, exported.card
    if head == "local":
        warn("a local head is trained on true labels and is NOT PRIVATE: keep it, and its scores, at the label party")
    for file, state in card["files"].items():
        if state != "written":
            warn(f"{folder / file}: {state}")
    written = ", ".join(file for file, state in card["files"].items() if state == "written")
    steps = {"try it": f"python {folder / 'predict.py'} --help"} if "predict.py" in written else {}
    report = Report(f"Exported the half of {party}", {"folder": folder, "files": written}, steps)
    answer(json, {"folder": str(folder), "card": card}, report)


def score(
    run: Annotated[
        Path, argument("RUN", "Run folder, or that of a search, or a link that is moved when there is a newer one.")
    ],
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
    take_over: Annotated[
        bool, flag("--take-over", "Wait for the ports until the process that has them ends, then continue.")
    ] = False,
    json: flags.JsonFlag = False,
) -> None:
    """Score records as they come: a service of the label party (--listen) or of a feature party (--connect).

    The label party's scores records whose shares feature parties send over mutual TLS. A feature party's turns records
    into embeddings for its clients, and asks the label party for their scores. Applications ask at
    http://127.0.0.1:PORT/v1/score (a feature party's also at /v1/embed), as /openapi.json describes; an address that
    other machines can reach needs `http_token` or `http_certificate` in the local file. SIGHUP reads the run folder
    again, and no request is lost. Examples:

    tpsl score runs/current --listen 0.0.0.0:7443 --certs certs/label --http 8080

    tpsl score runs/current --connect label.example:7443 --certs certs/airport --http 8081
    """
    given = {"local.listen": listen, "local.connect": connect, "local.certificates": certs, "local.http": http}
    settings = Settings.of(changes, given, parts=(LOCAL,))
    service = prepared(lambda: _service(run, settings.load_local(local), head == "local", take_over), take_over)

    from tpsl.serving.services import run as serve

    def tell() -> None:
        address, model = service.url, service.versions.newest.name
        content: dict[str, Any] = {"http": address, "model": model}
        party: str | None = getattr(service, "party", None)
        content |= {"listening": getattr(service, "address", None)} if party is None else {"party": party}
        text = f"embedding for clients of {party} at {address}"
        if party is None:
            text = f"scoring for feature parties at {content['listening']}, for your own applications at {address}"
        answer(json, content, [text])

    raise typer.Exit(STATUS if serve(service, tell) == signal.SIGTERM else 0)


def prepared(prepare: Callable[[], Result], take_over: bool) -> Result:
    """Return what `prepare` returns; with `take_over`, from a thread that gives way to everything else on the machine.

    To import PyTorch and to read a model takes seconds of a processor that another process needs to serve. What is
    there afterwards stays: the garbage collector, which stops everything else, need not look at it between requests.
    """
    priority = _LOWEST_PRIORITY if take_over else os.getpriority(os.PRIO_PROCESS, 0)
    with ThreadPoolExecutor(1, initializer=os.setpriority, initargs=(os.PRIO_PROCESS, 0, priority)) as thread:
        result = thread.submit(prepare).result()
        thread.submit(gc.collect).result()
    gc.freeze()
    return result


def _service(run: Path, mine: Local, local_head: bool, take_over: bool) -> LabelService | FeatureService:
    """Return the service of the party that this side is, which its address says."""
    import torch

    from tpsl.prediction.model import TrainedModel

    try:
        from tpsl.serving.http_server import HttpAccess
        from tpsl.serving.services import FeatureService, LabelService, ServiceOptions
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise LocalError("scoring needs Starlette and uvicorn: `pip install 'tpsl[serve]'` gets them") from None
    torch.set_num_threads(mine.threads or 1)  # batches are small: threads would wait for each other
    secure = not mine.insecure_loopback
    http = HttpAccess.of(mine.http, mine.http_token, mine.http_certificate)
    options = ServiceOptions(run, http, mine.deadline, take_over)
    if mine.connect is not None:
        party = party_of(TrainedModel.open(run).run.job(), mine, mine.party)
        channel = certificates_of(mine, party).channel() if secure else None
        return FeatureService(options, party, connect_address(mine), channel, notice)
    if mine.listen is None:
        raise LocalError("a label party needs --listen HOST:PORT, a feature party --connect HOST:PORT")
    server = certificates_of(mine, LABEL_PARTY).server() if secure else None
    returns, listen = mine.returns, listen_address(mine)
    return LabelService(options, listen, server, notice, local_head=local_head, returns=returns)
