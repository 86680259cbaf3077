"""`tpsl tune`: choose learning rate, epochs and initial weights by noisy labels, at no cost in budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpsl.cli.console import JsonFlag, notice, print_json, progress_bar, say, stdout, warn
from tpsl.cli.data_options import tell_what_is_trusted
from tpsl.cli.device_option import DeviceName, DeviceOption, torch_device
from tpsl.cli.release_options import (
    AllowLookalikesFlag,
    ComposeFlag,
    MaxDeltaOption,
    MaxEpsilonOption,
    NotPrivateFlag,
    VaultOption,
    release_policy,
)

WorkersOption = Annotated[int, typer.Option(min=1, help="Runs at the same time, one core each.")]


def tune(
    job: Annotated[Path, typer.Argument(help="Job file (YAML) to start from.")],
    out: Annotated[Path, typer.Option(help="Folder for runs and results; what is in it is continued.")],
    space: Annotated[
        Path | None,
        typer.Option(help="YAML list of changes to the job to try. Default: what suits the number of classes."),
    ] = None,
    vault: VaultOption = None,
    max_epsilon: MaxEpsilonOption = None,
    max_delta: MaxDeltaOption = None,
    not_private: NotPrivateFlag = False,
    compose: ComposeFlag = False,
    allow_lookalikes: AllowLookalikesFlag = False,
    workers: WorkersOption = 1,
    device: DeviceOption = DeviceName.cpu,
    json: JsonFlag = False,
) -> None:
    """Train a small space of configurations on one release, and let noisy labels choose; the same command resumes.

    Every epoch of every configuration is a candidate. Held-out records judge by their noisy labels, which are released
    already: the budget is spent once. Writes OUT/tune.json and OUT/best.yaml.
    """
    from tpsl.report.words import guarantee_text
    from tpsl.training import load_job
    from tpsl.tuning.space import load_space
    from tpsl.tuning.tune import tune as run_tune
    from tpsl.vault import default_place

    base = load_job(job)
    if base.privacy.noise_seed is not None:
        warn("the noise is seeded: these runs are NOT PRIVATE")
    tell_what_is_trusted(base)
    configurations = load_space(space) if space else None
    with progress_bar("tuning") as progress:
        result = run_tune(
            base,
            configurations,
            out,
            vault=vault,
            place=default_place(),
            policy=release_policy(max_epsilon, not_private, compose, max_delta, allow_lookalikes),
            workers=workers,
            device=torch_device(device),
            progress=progress,
            notice=notice,
        )
    for name in result.diverged:
        warn(f"{name}: diverged, its later epochs are no candidates")
    if json:
        print_json(result.as_dict())
        return
    from rich.table import Table

    table = Table("configuration", "epoch", "noisy validation loss", "weight", "test AUC")
    for candidate in result.candidates:
        judged = candidate.validation
        table.add_row(
            candidate.configuration,
            str(candidate.epoch),
            f"{judged.validation_loss:.4f} ± {judged.validation_loss_se:.4f}",
            f"{candidate.weight:.3f}",
            f"{candidate.test.test_auc:.4f}",
            style="bold" if candidate == result.best else None,
        )
    stdout.print(table)
    best = result.best
    say(f"best by noisy labels  {best.configuration}, epoch {best.epoch}: test AUC {best.test.test_auc:.4f}")
    say(f"committee             of all by weight: test AUC {result.committee.test_auc:.4f}")
    say(f"guarantee             {guarantee_text(result)}: one release for all of them")
    say(f"the best job          {out / 'best.yaml'}")
