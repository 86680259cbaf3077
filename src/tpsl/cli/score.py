"""`tpsl label score`: the label party's scoring service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tpsl.cli.console import JsonFlag, notice, print_json, say
from tpsl.cli.settings import LocalOption, Settings, settings_command
from tpsl.cli.termination import exit_status
from tpsl.cli.two_parties import InsecureLoopbackFlag

if TYPE_CHECKING:
    from tpsl.serving.label_service import LabelService

SERVICE_FLAGS = {"certs": "local.certificates", "http": "local.http", "deadline": "local.deadline"}
COMMAND = settings_command("local", listen="local.listen", **SERVICE_FLAGS, returns="local.returns")

RunArgument = Annotated[
    Path,
    typer.Argument(help="Run folder, or that of a search, or a link that is moved when there is a newer one."),
]
TakeOverFlag = Annotated[
    bool,
    typer.Option("--take-over", help="Wait for the ports until the process that has them ends, then go on for it."),
]


def score(
    context: typer.Context,
    run: RunArgument,
    local: LocalOption = None,
    head: Annotated[
        Literal["private", "local"],
        typer.Option(help="'local': the head that was trained on true labels, for your own applications only."),
    ] = "private",
    take_over: TakeOverFlag = False,
    insecure_loopback: InsecureLoopbackFlag = False,
    json: JsonFlag = False,
) -> None:
    """Score records as they come: a service for feature parties and for your own applications.

    Feature parties send their shares over mutual TLS. Your applications ask at http://127.0.0.1:PORT/v1/score; others
    on this machine can reach that port too. SIGHUP reads the run folder again, and no request is lost. Example:

    tpsl label score runs/current --listen 0.0.0.0:7443 --certs certs/label --http 8080
    """
    from tpsl.serving.running import prepared
    from tpsl.serving.running import run as serve

    def prepare() -> LabelService:
        import torch

        from tpsl.serving.label_service import LabelOptions, LabelService
        from tpsl.training.local import certificates_of, listen_address
        from tpsl.transport.peers import LABEL_PARTY

        mine = Settings.of(context).load_local(local)
        torch.set_num_threads(mine.threads or 1)  # batches are small: threads would wait for each other
        options = LabelOptions(
            run,
            listen_address(mine),
            None if insecure_loopback else certificates_of(mine, LABEL_PARTY).server(),
            http_port=mine.http,
            deadline=mine.deadline,
            take_over=take_over,
            local_head=head == "local",
            returns=mine.returns,
        )
        return LabelService(options, notice)

    service = prepared(prepare, take_over)

    def tell() -> None:
        door, model = f"http://127.0.0.1:{service.http_port}", service.versions.newest.name
        if json:
            print_json({"listening": service.address, "http": door, "model": model})
        else:
            say(f"scoring for feature parties at {service.address}, for your own applications at {door}")

    raise typer.Exit(exit_status(serve(service, tell)))
