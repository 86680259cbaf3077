"""`tpsl label score`: the label party's scoring service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from tpsl.cli.console import JsonFlag, notice, print_json, say
from tpsl.cli.settings import LocalOption, Settings, settings_command
from tpsl.cli.termination import exit_status
from tpsl.cli.two_parties import InsecureLoopbackFlag

SERVICE_FLAGS = {"certs": "local.certificates", "http": "local.http", "deadline": "local.deadline"}
COMMAND = settings_command("local", listen="local.listen", **SERVICE_FLAGS, returns="local.returns")

RunArgument = Annotated[
    Path, typer.Argument(help="The run folder, or a link to it that is moved when there is a newer one.")
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
    import torch

    from tpsl.serving.label_service import LabelOptions, LabelService
    from tpsl.serving.running import run as serve
    from tpsl.training.local import LocalError, certificates_of
    from tpsl.transport.peers import LABEL_PARTY

    mine = Settings.of(context).load_local(local)
    torch.set_num_threads(mine.threads or 1)  # batches are small: threads would wait for each other
    if mine.listen is None:
        raise LocalError("the service needs an address to listen at: --listen HOST:PORT or `listen` in the local file")
    credentials = None if insecure_loopback else certificates_of(mine, LABEL_PARTY).server()
    options = LabelOptions(
        run, mine.listen, credentials, mine.http, mine.deadline, take_over, head == "local", mine.returns
    )
    service = LabelService(options, notice)

    def tell() -> None:
        listening = f"{mine.listen}".rpartition(":")[0] + f":{service.port}"
        door = f"http://127.0.0.1:{service.http_port}"
        if json:
            print_json({"listening": listening, "http": door, "model": service.versions.newest.name})
        else:
            say(f"scoring for feature parties at {listening}, for your own applications at {door}")

    raise typer.Exit(exit_status(serve(service, tell)))
