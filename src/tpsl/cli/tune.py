"""`tpsl tune`: choose learning rate, epochs and initial weights by noisy labels, at no cost in budget."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

from tpsl.cli.console import Report, answer, notice, progress_bar, slim_table, warn
from tpsl.cli.flags import JsonFlag, LocalsOption, SetOption, SpaceOption, argument, option
from tpsl.cli.settings import Settings

if TYPE_CHECKING:
    from rich.table import Table

    from tpsl.training.evaluation import TestMetrics
    from tpsl.tuning.candidates import Candidate, TuneResult


def tune(
    job: Annotated[Path, argument("JOB", "Job file (YAML) to start from.")],
    changes: SetOption = None,
    local: LocalsOption = None,
    out: Annotated[
        Path | None,
        option("FOLDER", "Folder for runs and results; what is in it is continued. Default: runs/JOB-tuned."),
    ] = None,
    space: SpaceOption = None,
    processes: Annotated[int, option("NUMBER", "Runs at the same time here, in one thread each.", min=1)] = 1,
    json: JsonFlag = False,
) -> None:
    """Train a small space of configurations on one release, and let noisy labels choose; the same command resumes.

    Every epoch of every configuration is a candidate. Held-out records judge by their noisy labels, which are released
    already: the budget is spent once. Writes OUT/best.yaml, the best job, and OUT/tune.json. With it OUT is a model as
    a run is: the ensemble of all candidates predicts, is served and exported.
    """
    import torch

    from tpsl.data.dataset import taken_on_trust
    from tpsl.training.observer import Watching
    from tpsl.training.run_folder import RunFolder
    from tpsl.training.setup import RunSetup
    from tpsl.tuning.search import tune as run_tune
    from tpsl.tuning.space import load_space, refuse_start

    out = out or Path("runs") / f"{job.stem}-tuned"
    parties = Settings.of(changes).load_parties(job, local)
    refuse_start(parties.label)
    if trusted := taken_on_trust(parties.job.data):
        notice(trusted)
    device = None if parties.label.device == "cpu" else torch.device(parties.label.device)
    configurations = load_space(space) if space else None
    with progress_bar("tuning") as progress:
        watching = Watching(progress=progress, notice=notice, reason=notice)
        setup = RunSetup(parties.job, RunFolder(out), parties.own, device, watching=watching)
        result = run_tune(setup, configurations, vault=parties.label.vault_choice(), workers=processes)
    show_tuned(result, out, json)


def show_tuned(result: TuneResult, out: Path, json: bool, steps: Mapping[str, str] = MappingProxyType({})) -> None:
    """Print what a search has found, and how its committee is used; `steps` are what to do before that."""
    for name in result.diverged:
        warn(f"{name}: diverged, so that it is no candidate")
    answer(json, result.as_dict(), _found(result, out, steps))


def _found(result: TuneResult, out: Path, steps: Mapping[str, str]) -> Report:
    from tpsl.report.words import guarantee_text

    best = result.best
    return Report(
        f"Searched {len({candidate.configuration for candidate in result.candidates})} configurations on one release",
        {
            "best by noisy labels": f"{best.configuration}, epoch {best.epoch}",
            "its test AUC": _auc(best.test),
            "committee": f"of all by weight: test AUC {_auc(result.committee)}",
            "guarantee": f"{guarantee_text(result)}: one release for all of them",
            "the best job": out / "best.yaml",
        },
        {**steps, "train the best job": f"tpsl train {out / 'best.yaml'}", "see it as a page": f"tpsl report {out}"},
        [_table(result)],
    )


def _table(result: TuneResult) -> Table:
    """Return all candidates; the best is bold."""
    from rich.text import Text

    def row(candidate: Candidate) -> list[Text]:
        judged = candidate.validation
        cells = (
            candidate.configuration,
            str(candidate.epoch),
            f"{judged.validation_loss:.4f} ± {judged.validation_loss_se:.4f}",
            f"{candidate.weight:.3f}",
            _auc(candidate.test),
        )
        return [Text(cell, "bold" if candidate == result.best else "") for cell in cells]

    numbers = ("epoch", "noisy validation loss", "weight", "test AUC")
    return slim_table(("configuration", *numbers), map(row, result.candidates), numbers=numbers)


def _auc(metrics: TestMetrics) -> str:
    """The test AUC, if there are true labels of test records here."""
    from tpsl.files import for_json
    from tpsl.report.words import auc_text

    return auc_text(for_json(metrics.test_auc))
