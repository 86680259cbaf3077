"""`tpsl align`: find the records that the parties of a job have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from tpsl.cli.console import Facts, JsonFlag, Report, answer, from_here, notice, progress_bar, warn
from tpsl.cli.settings import JobArgument, LocalsOption, Settings, settings_command
from tpsl.cli.termination import stoppable
from tpsl.cli.two_parties import InsecureLoopbackFlag, LogJsonFlag, Side

if TYPE_CHECKING:
    from tpsl.alignment.parties import Aligned
    from tpsl.training.job import Job
    from tpsl.training.observer import Watching

COMMAND = settings_command(
    mode="data.alignment.mode",
    listen="local.listen",
    connect="local.connect",
    party="local.party",
    certs="local.certificates",
    out="local.alignment",
)

_ADVICE = "the same command goes on where it stopped; the others wait for it"


def align(
    context: typer.Context,
    job: JobArgument,
    local: LocalsOption = None,
    plain: Annotated[
        bool,
        typer.Option("--plain", help="All parties: compare salted hashes; the label party can test any id it guesses."),
    ] = False,
    together: Annotated[
        bool, typer.Option("--together", help="Be all parties in this process, for tries on one machine.")
    ] = False,
    log_json: LogJsonFlag = False,
    insecure_loopback: InsecureLoopbackFlag = False,
    json: JsonFlag = False,
) -> None:
    """Find the records that all parties have in common, without showing the others.

    The job says how, in `data.alignment`. The label party listens and the feature parties connect; which party this is
    says the local file, the certificate or --party. An alignment that was interrupted goes on where it stopped when the
    same command is given again. Example:

    tpsl align job.yaml --party label --listen 0.0.0.0:7443 --certs certs/label
    """
    from tpsl.alignment.parties import align as align_party
    from tpsl.alignment.parties import align_all
    from tpsl.training.local import own_data
    from tpsl.training.observer import Watching

    if together:
        agreed = _agreed(Settings.of(context).load_parties(job, local).job, plain)
        with stoppable("the same command goes on where it stopped"), progress_bar("aligning") as progress:
            found = align_all(agreed, Watching(progress=progress, notice=notice))
        answer(json, {"parties": {name: each.as_dict() for name, each in found.items()}}, _for_people(*found.values()))
        return
    if local is not None and len(local) > 1:
        raise typer.BadParameter("--local is given more than once; that is for --together")
    side = Side.of(context, job, local[0] if local else None)
    agreed = own_data(_agreed(side.job, plain), side.party, side.local.data, side.local.alignment)
    with _watched(side, log_json) as watching:
        mine = align_party(agreed, side.party, side.local, watching=watching, insecure_loopback=insecure_loopback)
    answer(json, mine.as_dict(), _for_people(mine))


def _agreed(job: Job, plain: bool) -> Job:
    """Return the job, plain if so; warn of what its alignment reveals."""
    from tpsl.alignment.parties import warnings
    from tpsl.data.config import TableData

    data = job.data
    if not isinstance(data, TableData) or data.alignment is None:
        return job  # refused where it is used
    engine = "plain" if plain else data.alignment.engine
    alignment = data.alignment.model_copy(update={"engine": engine})
    for sentence in warnings(alignment):
        warn(sentence)
    return job.model_copy(update={"data": data.model_copy(update={"alignment": alignment})})


@contextmanager
def _watched(side: Side, log_json: bool) -> Iterator[Watching]:
    """Show how this side aligns until the block ends."""
    from tpsl.cli.live import Live
    from tpsl.training.observer import Watching

    with stoppable(_ADVICE, log_json=log_json), Live(side.party, peers=side.peers, epochs=1, log_json=log_json) as live:
        yield Watching(live, live.progress, live.notice, live.watch)


def _for_people(*found: Aligned) -> Iterator[RenderableType]:
    for each in found:
        alignment = each.result.alignment
        some_are_known = alignment.mode == "label-only" and alignment.matched is not None
        matched = f", {alignment.matched:,} of them known to the label party" if some_are_known else ""
        records = f"{len(alignment):,}{matched}" if alignment.mode != "size" else f"{alignment.matched:,} in common"
        left_out = [
            f"{counts[name]:,} {what} {name}"
            for what, counts in (("without", each.keys.missing), ("with a repeated", each.keys.repeated))
            for name in counts
            if counts[name]
        ]
        facts: Facts = {
            "alignment": from_here(each.folder),
            "records": records,
            "own rows": f"{alignment.source.rows:,}" + (f", {', '.join(left_out)}" if left_out else ""),
            "digest": alignment.digest[:16],
            "traffic": f"{each.result.bytes_sent:,} bytes sent, {each.result.bytes_received:,} received",
        }
        for sentence in each.learned:
            who, _, what = sentence.partition(": ")
            facts[f"learned by {who}"] = what
        yield from Report("Found the common records", facts)
