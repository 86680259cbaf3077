"""`tpsl feature embed`: a feature party's service for its own clients."""

from __future__ import annotations

import typer

from tpsl.cli.console import JsonFlag, notice, print_json, say
from tpsl.cli.score import SERVICE_FLAGS, RunArgument, TakeOverFlag
from tpsl.cli.settings import LocalOption, Settings, settings_command
from tpsl.cli.termination import exit_status
from tpsl.cli.two_parties import InsecureLoopbackFlag

COMMAND = settings_command("local", connect="local.connect", party="local.party", **SERVICE_FLAGS)


def embed(
    context: typer.Context,
    run: RunArgument,
    local: LocalOption = None,
    take_over: TakeOverFlag = False,
    insecure_loopback: InsecureLoopbackFlag = False,
    json: JsonFlag = False,
) -> None:
    """Turn records into embeddings for your own clients, and ask the label party for their scores.

    Clients ask at http://127.0.0.1:PORT/v1/score and /v1/embed; others on this machine can reach that port too. SIGHUP
    reads the run folder again, and no request is lost. Example:

    tpsl feature embed runs/current --connect label.example:7443 --certs certs/airport --http 8081
    """
    import torch

    from tpsl.serving.feature_service import FeatureOptions, FeatureService
    from tpsl.serving.running import run as serve
    from tpsl.training.local import LocalError, certificates_of, party_of
    from tpsl.training.run_folder import RunFolder

    mine = Settings.of(context).load_local(local)
    torch.set_num_threads(mine.threads or 1)  # batches are small: threads would wait for each other
    if mine.connect is None:
        raise LocalError("where does the label party listen? --connect HOST:PORT or `connect` in the local file")
    party = party_of(RunFolder(run).job(), mine, mine.party)
    credentials = None if insecure_loopback else certificates_of(mine, party).channel()
    options = FeatureOptions(run, party, mine.connect, credentials, mine.http, mine.deadline, take_over)
    service = FeatureService(options, notice)

    def tell() -> None:
        door = f"http://127.0.0.1:{service.http_port}"
        if json:
            print_json({"party": party, "http": door, "model": service.versions.newest.name})
        else:
            say(f"embedding for clients of {party} at {door}")

    raise typer.Exit(exit_status(serve(service, tell)))
