"""`tpsl align`: find the records that the parties of a job have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import RenderableType

from tpsl.cli.console import Facts, Report, answer, from_here, notice, progress_bar, warn
from tpsl.cli.flags import (
    CertsOption,
    ConnectOption,
    JobArgument,
    JsonFlag,
    ListenOption,
    LocalsOption,
    PartyOption,
    SetOption,
    flag,
    option,
)
from tpsl.cli.party_commands import Side
from tpsl.cli.settings import Settings, the_only
from tpsl.cli.termination import stoppable

if TYPE_CHECKING:
    from tpsl.alignment.parties import Aligned
    from tpsl.training.job import Job
    from tpsl.training.observer import Watching

_ADVICE = "the same command goes on where it stopped; the others wait for it"


def align(
    job: JobArgument,
    changes: SetOption = None,
    local: LocalsOption = None,
    listen: ListenOption = None,
    connect: ConnectOption = None,
    certs: CertsOption = None,
    party: PartyOption = None,
    out: Annotated[Path | None, option("FOLDER", "This party's alignment. Default: alignments/JOB-PARTY.")] = None,
    together: Annotated[bool, flag("--together", "Be all parties in this process, for tries on one machine.")] = False,
    json: JsonFlag = False,
) -> None:
    """Find the records that all parties have in common, without showing the others.

    The job says how, in `data.alignment`. The label party listens and the feature parties connect; the local file, the
    certificate or --party says which party this is. An interrupted alignment continues when the same command is given
    again. Example:

    tpsl align job.yaml --party label --listen 0.0.0.0:7443 --certs certs/label
    """
    from tpsl.alignment.parties import align as align_party
    from tpsl.alignment.parties import align_all
    from tpsl.training.local import own_data
    from tpsl.training.observer import Watching

    flags = {"local.listen": listen, "local.connect": connect, "local.certificates": certs, "local.party": party}
    flags |= {"local.alignment": out}
    settings = Settings.of(changes, flags)
    if together:
        agreed = _warned(settings.load_parties(job, local).job)
        with stoppable("the same command goes on where it stopped"), progress_bar("aligning") as progress:
            found = align_all(agreed, Watching(progress=progress, notice=notice))
        answer(json, {"parties": {name: each.as_dict() for name, each in found.items()}}, _for_people(*found.values()))
        return
    side = Side.of(settings, job, the_only(local))
    agreed = own_data(_warned(side.job), side.party, side.local.data, side.local.alignment)
    with _watched(side) as watching:
        insecure = side.local.insecure_loopback
        mine = align_party(agreed, side.party, side.local, watching=watching, insecure_loopback=insecure)
    answer(json, mine.as_dict(), _for_people(mine))


def _warned(job: Job) -> Job:
    """Return the job; warn of what its alignment reveals."""
    from tpsl.alignment.parties import warnings
    from tpsl.data.config import TableData

    if isinstance(job.data, TableData) and job.data.alignment is not None:  # else refused where it is used
        for sentence in warnings(job.data.alignment):
            warn(sentence)
    return job


@contextmanager
def _watched(side: Side) -> Iterator[Watching]:
    """Show how this side aligns until the block ends."""
    from tpsl.cli.live import Live
    from tpsl.training.observer import Watching

    log_json = side.local.logs_json
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
