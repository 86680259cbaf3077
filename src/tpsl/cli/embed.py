"""`tpsl feature embed`: a feature party's service for its own clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from tpsl.cli.console import JsonFlag, notice, print_json, say
from tpsl.cli.score import SERVICE_FLAGS, RunArgument, TakeOverFlag
from tpsl.cli.settings import LocalOption, Settings, settings_command
from tpsl.cli.termination import exit_status
from tpsl.cli.two_parties import InsecureLoopbackFlag

if TYPE_CHECKING:
    from tpsl.serving.feature_service import FeatureService

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
    from tpsl.serving.running import prepared
    from tpsl.serving.running import run as serve

    def prepare() -> FeatureService:
        import torch

        from tpsl.prediction.model import TrainedModel
        from tpsl.serving.feature_service import FeatureOptions, FeatureService
        from tpsl.training.local import certificates_of, connect_address, party_of

        mine = Settings.of(context).load_local(local)
        torch.set_num_threads(mine.threads or 1)  # batches are small: threads would wait for each other
        party = party_of(TrainedModel.open(run).run.job(), mine, mine.party)
        options = FeatureOptions(
            run,
            party,
            connect_address(mine),
            None if insecure_loopback else certificates_of(mine, party).channel(),
            http_port=mine.http,
            deadline=mine.deadline,
            take_over=take_over,
        )
        return FeatureService(options, notice)

    service = prepared(prepare, take_over)

    def tell() -> None:
        door, model = f"http://127.0.0.1:{service.http_port}", service.versions.newest.name
        if json:
            print_json({"party": service.party, "http": door, "model": model})
        else:
            say(f"embedding for clients of {service.party} at {door}")

    raise typer.Exit(exit_status(serve(service, tell)))
