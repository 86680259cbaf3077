"""`tpsl score`: a party's scoring service, for the other party and for applications of this side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpsl.cli.console import notice, print_json, say
from tpsl.cli.flags import (
    CertsOption,
    ConnectOption,
    HeadOption,
    JsonFlag,
    ListenOption,
    LocalOption,
    SetOption,
    argument,
    flag,
    option,
)
from tpsl.cli.settings import LOCAL, Settings
from tpsl.cli.termination import exit_status

if TYPE_CHECKING:
    from tpsl.serving.feature_service import FeatureService
    from tpsl.serving.label_service import LabelService
    from tpsl.training.local import Local


def score(
    run: Annotated[
        Path, argument("RUN", "Run folder, or that of a search, or a link that is moved when there is a newer one.")
    ],
    changes: SetOption = None,
    local: LocalOption = None,
    listen: ListenOption = None,
    connect: ConnectOption = None,
    certs: CertsOption = None,
    http: Annotated[
        int | None, option("PORT", "Port of 127.0.0.1 for this side's applications. Default: a free one.")
    ] = None,
    head: HeadOption = "private",
    take_over: Annotated[
        bool, flag("--take-over", "Wait for the ports until the process that has them ends, then continue.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Score records as they come: a service of the label party (--listen) or of a feature party (--connect).

    The label party's scores records whose shares feature parties send over mutual TLS. A feature party's turns records
    into embeddings for its clients, and asks the label party for their scores. Applications ask at
    http://127.0.0.1:PORT/v1/score (a feature party's also at /v1/embed); others on this machine can reach that port
    too. SIGHUP reads the run folder again, and no request is lost. Examples:

    tpsl score runs/current --listen 0.0.0.0:7443 --certs certs/label --http 8080

    tpsl score runs/current --connect label.example:7443 --certs certs/airport --http 8081
    """
    from tpsl.serving.running import prepared
    from tpsl.serving.running import run as serve

    flags = {"local.listen": listen, "local.connect": connect, "local.certificates": certs, "local.http": http}
    settings = Settings.of(changes, flags, parts=(LOCAL,))

    def prepare() -> LabelService | FeatureService:
        import torch

        from tpsl.training.local import LocalError

        mine = settings.load_local(local)
        torch.set_num_threads(mine.threads or 1)  # batches are small: threads would wait for each other
        if mine.listen is None and mine.connect is None:
            raise LocalError("a label party needs --listen HOST:PORT, a feature party --connect HOST:PORT")
        if mine.connect is not None:
            return _of_feature_party(run, mine, take_over=take_over)
        return _of_label_party(run, mine, head, take_over=take_over)

    service = prepared(prepare, take_over)

    def tell() -> None:
        address, model = f"http://127.0.0.1:{service.http_port}", service.versions.newest.name
        content: dict[str, Any] = {"http": address, "model": model}
        party: str | None = getattr(service, "party", None)
        content |= {"listening": getattr(service, "address", None)} if party is None else {"party": party}
        if json:
            print_json(content)
        elif party is None:
            say(f"scoring for feature parties at {content['listening']}, for your own applications at {address}")
        else:
            say(f"embedding for clients of {party} at {address}")

    raise typer.Exit(exit_status(serve(service, tell)))


def _of_label_party(run: Path, mine: Local, head: str, *, take_over: bool) -> LabelService:
    from tpsl.net.peers import LABEL_PARTY
    from tpsl.serving.label_service import LabelOptions, LabelService
    from tpsl.training.local import certificates_of, listen_address

    options = LabelOptions(
        run,
        listen_address(mine),
        None if mine.insecure_loopback else certificates_of(mine, LABEL_PARTY).server(),
        http_port=mine.http,
        deadline=mine.deadline,
        take_over=take_over,
        local_head=head == "local",
        returns=mine.returns,
    )
    return LabelService(options, notice)


def _of_feature_party(run: Path, mine: Local, *, take_over: bool) -> FeatureService:
    from tpsl.prediction.model import TrainedModel
    from tpsl.serving.feature_service import FeatureOptions, FeatureService
    from tpsl.training.local import certificates_of, connect_address, party_of

    party = party_of(TrainedModel.open(run).run.job(), mine, mine.party)
    options = FeatureOptions(
        run,
        party,
        connect_address(mine),
        None if mine.insecure_loopback else certificates_of(mine, party).channel(),
        http_port=mine.http,
        deadline=mine.deadline,
        take_over=take_over,
    )
    return FeatureService(options, notice)
