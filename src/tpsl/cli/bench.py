"""`tpsl bench`: how fast this machine trains, against plain PyTorch and other libraries, side by side in one run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tpsl.cli.console import JsonFlag, Report, answer, notice, progress_bar, slim_table

if TYPE_CHECKING:
    from rich.table import Table

    from tpsl.bench.contender import Contender
    from tpsl.bench.measurements import Size
    from tpsl.bench.race import Standing


class Part(StrEnum):
    """What can be measured."""

    SPEED = "speed"
    SMALL = "small"
    GROWTH = "growth"
    LARGE = "large"
    VAULT = "vault"


_WITH_PEERS = (Part.SPEED, Part.SMALL)


def bench(
    only: Annotated[list[Part] | None, typer.Option(help="Measure only this; may be repeated.")] = None,
    peers: Annotated[
        Path | None,
        typer.Option(help="Race other libraries too, each in a virtual environment that is set up in this folder."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Install other libraries without asking.")] = False,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where networks are trained.")] = "cpu",
    quick: Annotated[bool, typer.Option("--quick", help="Tiny networks: shows that everything runs.")] = False,
    json: JsonFlag = False,
) -> None:
    """Measure this machine: samples per second against plain PyTorch, in turns on the same processors.

    All contenders train the same network on the same records. A ratio is the median over rounds.

    Example: tpsl bench --only speed --peers ~/peers
    """
    from tpsl.bench.machine import machine, machine_text
    from tpsl.bench.measurements import FULL, QUICK

    parts, size = only or list(Part), (QUICK if quick else FULL).on(device)
    environments = _Peers(peers if set(parts) & set(_WITH_PEERS) else None, yes)
    found: dict[str, Any] = {"machine": machine()}
    found |= {part.value: _measured(part, size, environments) for part in Part if part in parts}
    steps = {"what a job will take here": "tpsl plan job.yaml"}
    report = Report("Measured this machine", {"machine": machine_text()}, steps, list(_tables(found, size)))
    answer(json, _as_dict(found), report)


class _Peers:
    """The other libraries of a race, in a folder that the user names."""

    def __init__(self, folder: Path | None, yes: bool) -> None:
        from tpsl.bench.peers import PEERS, is_set_up

        self._folder = folder
        missing = [peer for peer in PEERS if folder and not is_set_up(peer, folder)]
        for peer in missing:
            wanted = " ".join(name for names in peer.installs() for name in names if not name.startswith("-"))
            notice(f"{peer.name}: a virtual environment in {folder} with {wanted}")
        if missing and not yes:
            typer.confirm("Download and install these? It can take some gigabytes.", abort=True, err=True)

    def contenders(self) -> tuple[list[Contender], list[Standing]]:
        """Set up the environments; return the libraries that can be run, and why others cannot."""
        from tpsl.bench.peers import PEERS, contenders

        if self._folder is None:
            return [], []
        with progress_bar("peers") as progress:
            return contenders(PEERS, self._folder, progress)


def _measured(part: Part, size: Size, peers: _Peers) -> Any:
    from tpsl.bench import measurements

    ready, missing = peers.contenders() if part in _WITH_PEERS else ([], [])
    with progress_bar(part.value) as progress:
        if part in _WITH_PEERS:
            return [
                *measurements.speed(
                    size.shape if part is Part.SPEED else size.small_batches, size.pace, ready, progress
                ),
                *missing,
            ]
        if part is Part.GROWTH:
            return measurements.growth(size, progress)
        if part is Part.LARGE:
            return measurements.one_process(size.large, size.pace, progress)
        return measurements.vault(size, progress)


def _as_dict(found: dict[str, Any]) -> dict[str, Any]:
    from dataclasses import asdict, is_dataclass

    def plain(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [plain(each) for each in value]
        return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value

    return {name: plain(value) for name, value in found.items()}


def _tables(found: dict[str, Any], size: Size) -> Iterator[str | Table]:
    for part, shape in (("speed", size.shape), ("small", size.small_batches), ("large", size.large)):
        if part in found:
            yield f"{shape}; ratio to {found[part][0].name}"
            yield _race_table(found[part])
            yield from (f"{standing.name}: {standing.how}" for standing in found[part])
            yield from (f"{standing.name}: not run, {standing.reason}" for standing in found[part] if standing.reason)
    if "growth" in found:
        yield "growth, samples/s"
        yield _growth_table(found["growth"])
    if "vault" in found:
        yield "the vault"
        yield _vault_table(found["vault"], found.get("speed"))


def _race_table(standings: Sequence[Standing]) -> Table:
    numbers = ("samples/s", "ratio", "quartiles", "by CPU time")
    rows = ((standing.name, *_figures(standing)) for standing in standings)
    return slim_table(("", *numbers), rows, numbers=numbers)


def _figures(standing: Standing) -> tuple[str, str, str, str]:
    if standing.samples_per_second is None or standing.ratio is None or standing.quartiles is None:
        return "not run", "–", "–", "–"
    low, high = standing.quartiles
    by_cpu_time = "–" if standing.cpu_ratio is None else f"{standing.cpu_ratio:.3f}"
    return f"{standing.samples_per_second:,.0f}", f"{standing.ratio:.3f}", f"{low:.3f} – {high:.3f}", by_cpu_time


def _growth_table(found: Sequence[tuple[str, Sequence[Standing]]]) -> Table:
    baseline, own = (standing.name for standing in found[0][1])
    numbers = (baseline, own, "ratio", "by CPU time")
    rows = (
        (words, _figures(plain)[0], *(_figures(ours)[column] for column in (0, 1, 3))) for words, (plain, ours) in found
    )
    return slim_table(("", *numbers), rows, numbers=numbers)


def _vault_table(figures: Sequence[Any], speed: Sequence[Standing] | None) -> Table:
    from tpsl.bench.measurements import share_of_an_epoch

    numbers = ("seconds", "records/s", "share of an epoch")
    rows = []
    for figure in figures:
        share = share_of_an_epoch(figure, speed or ())
        shown = "–" if share is None else f"{share:.3f}"
        rows.append((figure.name, f"{figure.seconds:.2f}", f"{figure.records_per_second:,.0f}", shown))
    return slim_table(("", *numbers), rows, numbers=numbers)
