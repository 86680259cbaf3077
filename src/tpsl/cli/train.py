"""`tpsl train`: run a job in one process, of all parties or, with `--labels`, of the feature party alone; `tpsl tune`:
search among its variants; `tpsl demo`: the whole story on real data in a few minutes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tpsl.cli import flags
from tpsl.cli.console import answer, notice, progress_bar, stoppable, warn
from tpsl.cli.flags import Settings, argument, flag, option, the_only
from tpsl.cli.on_ray import trains_on_ray
from tpsl.cli.party_commands import GOES_ON, Side, bar_and_loggers
from tpsl.cli.run_result import show_learned, show_result, show_tuned
from tpsl.data.config import FlightsData
from tpsl.data.dataset import load
from tpsl.net.certificates import AUTHORITY_FILE
from tpsl.report.findings import keep_finding
from tpsl.report.page import write_page
from tpsl.report.run_table import summary, summary_table
from tpsl.run.job import make_job
from tpsl.run.observer import Watching
from tpsl.run.run_folder import RunFolder

OPTIONS_ALONE = {"method": "auto"}
"""The job that options change where there is no job file: a file says itself what crosses, and this one is ours."""
Learner = Literal["network", "tuned", "lightgbm"]


def train(
    job: Annotated[Path | None, argument("JOB", "Job file (YAML). Without one, the options make a job.")] = None,
    changes: flags.SetOption = None,
    local: flags.LocalsOption = None,
    data: Annotated[str | None, option("NAME", "Data set, as flights.")] = None,
    epsilon: flags.EpsilonOption = None,
    epochs: Annotated[int | None, option("NUMBER", "How often each record is used at most.")] = None,
    out: flags.OutOption = None,
    vault: flags.VaultOption = None,
    scratch: Annotated[bool, flag("--scratch", "Try things as the owner of both tables, in a vault apart.")] = False,
    labels: Annotated[Path | None, option("FILE", "Train on these noisy labels, as a feature party alone.")] = None,
    learner: Annotated[
        Learner, option("NAME", "With --labels, what learns: the job's network, several networks (tuned), or trees.")
    ] = "network",
    certs: flags.CertsOption = None,
    ray: flags.RayOption = None,
    json: flags.JsonFlag = False,
) -> None:
    """Train a split network in one process; options override the job file.

    Example: tpsl train job.yaml --out runs/first

    With --scratch any ε is permitted, also none; the run counts in no total, and nothing of it may leave.

    With --labels a feature party trains without the label party, on what `tpsl vault release --out` wrote. The run has
    both halves of the network, and equals split training with the same noisy labels. There are no true labels then:
    noisy ones of held-out records choose the best epoch (training.validation). With --certs the authority in that
    folder must have made the certificate of whoever signed the labels. Example:

    tpsl train job.yaml --labels for-airport --certs certs/airport
    """
    given = {
        "data.source": data,
        "privacy.epsilon": epsilon,
        "training.epochs": epochs,
        "local.out": out,
        "local.vault": vault,
        "local.certificates": certs,
    }
    settings = Settings.of(changes, given)
    if labels is not None:
        if job is None:
            raise typer.BadParameter("--labels needs the job file that the label party has too")
        _train_on_labels(Side.of(settings, job, the_only(local)), labels, learner, ray, json)
        return
    if learner != "network":
        raise typer.BadParameter("--learner is for --labels")
    if job is None and Path("job.yaml").exists():
        notice("no job file was named, so job.yaml in this folder is not used")
    with progress_bar("starting"):  # it takes seconds
        from tpsl.run.one_process import ALL_STEPS, train_together
        from tpsl.run.setup import RunSetup
        from tpsl.run.transcript import RECORDED_STEPS
        from tpsl.workers import Workers

    parties = settings.load_parties(job or OPTIONS_ALONE, local)
    agreed, at_label = parties.job, parties.label
    workers = Workers.of_this_process(at_label.device)
    name = f"{agreed.data.source}-{agreed.privacy.mechanism}-{time.strftime('%Y%m%d-%H%M%S')}"
    run = at_label.out or Path("runs") / workers.broadcast(name)
    if trains_on_ray(ray, run, at_label.device):
        return
    shown = bar_and_loggers("training", agreed, run, at_label, shown=workers.is_first)
    with stoppable(f"the same command with --out {run} goes on where it stopped"), shown as watching:
        device = workers.device(at_label.device)
        # Several workers cannot record, and a GPU takes recorded steps one by one.
        by_default = 0 if workers.are_several or device.type == "cuda" else RECORDED_STEPS
        steps, start = ALL_STEPS if at_label.record_transcript else by_default, at_label.starting_point()
        setup = RunSetup(agreed, RunFolder(run), parties.own, device, steps, watching, start=start, workers=workers)
        result = train_together(setup, at_label.vault_choice(scratch=scratch))
    if workers.is_first:
        show_result(run, result, json)


def _train_on_labels(side: Side, labels: Path, learner: Learner, ray: int | None, json: bool) -> None:
    """Train at the feature party alone, on noisy labels that were handed over."""
    from tpsl.handover.learning import learn as learn_network
    from tpsl.handover.learning import learn_trees, require_no_learner, tune_alone
    from tpsl.run.alone import parts_of_both
    from tpsl.run.setup import RunSetup

    workers, local, run = side.workers, side.local, RunFolder(side.out)
    if trains_on_ray(ray, side.out, local.device):
        return
    if workers.are_several and learner != "network":
        raise ValueError(f"several workers train the network together; {learner} is for one")
    if local.certificates is None:
        warn("who has made these labels is not checked: name your certificate folder with --certs")
    ca = None if local.certificates is None else local.certificates / AUTHORITY_FILE
    shown = bar_and_loggers("training", side.job, side.out, local, shown=workers.is_first)
    with stoppable(GOES_ON), shown as watching:
        if learner != "lightgbm":
            require_no_learner(run, "choose another --out")
        parts, start, device = parts_of_both(side.party, local.own_parts()), local.starting_point(), workers.device
        setup = RunSetup(side.job, run, parts, device(local.device), watching=watching, start=start, workers=workers)
        given = setup, side.party, local, labels, ca
        show: Callable[[bool], None]
        if learner == "network":
            show = partial(show_result, side.out, learn_network(*given))
        elif learner == "tuned":
            show = partial(show_tuned, tune_alone(*given), side.out)
        else:
            show = partial(show_learned, learn_trees(*given), side.party)
    if workers.is_first:
        show(json)


def tune(
    job: Annotated[Path, argument("JOB", "Job file (YAML) to start from.")],
    changes: flags.SetOption = None,
    local: flags.LocalsOption = None,
    out: Annotated[Path | None, option("FOLDER", "For runs and results; continued. Default: runs/JOB-tuned.")] = None,
    space: Annotated[Path | None, option("FILE", "YAML list of changes to the job. Default: what suits it.")] = None,
    processes: Annotated[int, option("NUMBER", "Runs at the same time here, in one thread each.", min=1)] = 1,
    json: flags.JsonFlag = False,
) -> None:
    """Train a small space of configurations on one release, and let noisy labels choose; the same command resumes.

    Every epoch of every configuration is a candidate, and noisy labels of held-out records, which are released already,
    choose. Writes OUT/best.yaml, the best job, and OUT/tune.json. With it OUT is a model as a run is: the ensemble of
    all candidates predicts, is served and exported.
    """
    import torch

    from tpsl.run.setup import RunSetup
    from tpsl.select.search import tune as run_tune
    from tpsl.select.space import load_space, refuse_start

    out = out or Path("runs") / f"{job.stem}-tuned"
    parties = Settings.of(changes).load_parties(job, local)
    refuse_start(parties.label)
    if trusted := parties.job.data.unverified_assumption:
        notice(trusted)
    device = None if parties.label.device == "cpu" else torch.device(parties.label.device)
    configurations = load_space(space) if space else None
    with progress_bar("tuning") as progress:
        watching = Watching(progress=progress, notice=notice, reason=notice)
        setup = RunSetup(parties.job, RunFolder(out), parties.own, device, watching=watching)
        result = run_tune(setup, configurations, vault=parties.label.vault_choice(), workers=processes)
    show_tuned(result, out, json)


DEMO: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("plain split learning", {**OPTIONS_ALONE, "privacy": {"mechanism": "none"}}),
    "paper": (
        "the paper (Laplace)",
        {
            "privacy": {"mechanism": "laplace", "epsilon": 1.0, "estimator": "linear"},
            "training": {"epochs": 2, "patience": 0},
        },
    ),
    "tpsl": ("tpsl", {**OPTIONS_ALONE, "privacy": {"epsilon": 1.0}}),
}
"""By the names of their folders: what the runs are called, and their jobs but for the data."""
_ATTACKED_STEPS = 96
_ATTACKS = ("norm", "spectral", "shortest_distance", "likelihood", "noisy_label_with_features", "no_transcript")


def demo(
    out: Annotated[Path, option("FOLDER", "Folder for the runs and the page.")] = Path("runs/demo"),
    rows: Annotated[int | None, option("NUMBER", "Use only so many flights, for a quicker, rougher demo.")] = None,
    json: flags.JsonFlag = False,
) -> None:
    """Train on NYC flights without privacy, as in the paper, and as tpsl does; attack all three; compare.

    The feature party is the airports and the weather service, the label party the airlines, which know who was late.
    """
    from tpsl.attacks import run_attacks
    from tpsl.report.run_reading import read_run
    from tpsl.run.one_process import train as train_once

    notice("loading NYC flights 2013")
    config, views, page = FlightsData(rows=rows), [], out / "report.html"
    data = load(config)
    for folder, (name, content) in DEMO.items():
        run = out / folder
        if RunFolder(run).job_path.exists():  # of an earlier demo; whatever else is there stays, and is refused
            shutil.rmtree(run)
        job = make_job({**content, "data": config.model_dump()}, {}, "demo")
        with progress_bar(name) as progress:
            watching = Watching(progress=progress, notice=notice)
            train_once(job, run, record_steps=_ATTACKED_STEPS, data=data, watching=watching)
        found = run_attacks(run, data.labels, which=_ATTACKS, features=data.feature_parties)
        keep_finding(run, "attacks", found.as_dict())
        views.append(read_run(run, name))
    about = (
        "NYC flights 2013: does a flight arrive more than 15 minutes late? Airports and weather service hold the "
        f"features, airlines the labels. Attacked were the gradients of the first {_ATTACKED_STEPS} steps; the "
        "strongest attackers know the label party’s weights too. These labels are public: to compare, the demo "
        "releases them three times, once without noise. Real labels are released once."
    )
    write_page(page, views, title="tpsl demo: flight delays", about=about)
    content = {"page": str(page), "runs": [summary(view) for view in views]}
    steps = ("The last run: tpsl train --data flights --epsilon 1", "Your files:   tpsl init features.csv labels.csv")
    answer(json, content, [summary_table(views), f"The page: {page.resolve()}", *steps])
