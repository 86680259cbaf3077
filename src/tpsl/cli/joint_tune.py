"""`tpsl label tune` and `tpsl feature tune`: one party of a search each, as a program of its own."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tpsl.cli.console import Facts, JsonFlag, Report, answer, notice
from tpsl.cli.settings import RELEASE_FLAGS, JobArgument, LocalOption, LogOption, settings_command
from tpsl.cli.tune import SpaceOption, show_tuned
from tpsl.cli.two_parties import InsecureLoopbackFlag, LogJsonFlag, Side
from tpsl.cli.verbosity import with_verbose

if TYPE_CHECKING:
    from tpsl.training.observer import Watching
    from tpsl.tuning.candidates import Trial
    from tpsl.tuning.two_parties import JointSearch

_SHARED = {"certs": "local.certificates", "out": "local.out"}
LABEL_COMMAND = with_verbose(settings_command(listen="local.listen", **_SHARED, **RELEASE_FLAGS))
FEATURE_COMMAND = with_verbose(settings_command(connect="local.connect", party="local.party", **_SHARED))


def label_tune(
    context: typer.Context,
    job: JobArgument,
    space: SpaceOption = None,
    local: LocalOption = None,
    log: LogOption = None,
    log_json: LogJsonFlag = False,
    insecure_loopback: InsecureLoopbackFlag = False,
    json: JsonFlag = False,
) -> None:
    """Be the label party of a search: train every configuration with the feature parties, and let noisy labels choose.

    All sides give the same job and the same space. The same command goes on where it stopped. It ends when training
    ends: `tpsl label evaluate` computes test metrics, whose time would tell of labels. Example:

    tpsl label tune job.yaml --listen 0.0.0.0:7443 --certs certs/label --out tuned
    """
    side = Side.of(context, job, local, "label")

    from tpsl.tuning.two_parties import tune_as_label

    search = _search(side, space, insecure_loopback)
    found = tune_as_label(search, _Watched(side, search, log, log_json))
    show_tuned(found, side.out, json, {"test metrics": f"tpsl label evaluate {side.out}"})


def feature_tune(
    context: typer.Context,
    job: JobArgument,
    space: SpaceOption = None,
    local: LocalOption = None,
    log: LogOption = None,
    log_json: LogJsonFlag = False,
    insecure_loopback: InsecureLoopbackFlag = False,
    json: JsonFlag = False,
) -> None:
    """Be a feature party of a search: train every configuration with the label party, and keep all epochs.

    All sides give the same job and the same space. The same command goes on where it stopped. Example:

    tpsl feature tune job.yaml --connect label.example:7443 --certs certs/airport --out tuned
    """
    side = Side.of(context, job, local)

    from tpsl.tuning.two_parties import tune_as_feature

    search = _search(side, space, insecure_loopback)
    members = tune_as_feature(search, _Watched(side, search, log, log_json))
    content: dict[str, Any] = {"out": str(side.out), "party": side.party, "candidates": members}
    facts: Facts = {"committee": f"{len(members)} networks, which the label party weights", "folder": side.out}
    steps = {"score new records": f"tpsl feature predict {side.out} --records new.csv"}
    answer(json, content, Report("Searched with the label party", facts, steps))


def _search(side: Side, space: Path | None, insecure_loopback: bool) -> JointSearch:
    from tpsl.tuning.space import load_space
    from tpsl.tuning.two_parties import JointSearch

    configurations, who = load_space(space) if space else None, (side.job, side.party, side.local, side.out)
    return JointSearch.of(*who, configurations, insecure_loopback=insecure_loopback)


class _Watched:
    """Shows each configuration of a search as a run of its own."""

    def __init__(self, side: Side, search: JointSearch, log: list[str] | None, log_json: bool) -> None:
        self._side, self._log, self._log_json = side, log, log_json
        self._names = [trial.name for trial in search.trials]

    def __call__(self, trial: Trial) -> AbstractContextManager[Watching]:
        if not self._log_json:
            notice(f"configuration {self._names.index(trial.name) + 1} of {len(self._names)}: {trial.name}")
        return replace(self._side, job=trial.job, out=trial.run.path).watched(self._log, self._log_json)
