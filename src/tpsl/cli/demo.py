"""`tpsl demo`: the whole story on real data in a few minutes."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpsl.cli.console import JsonFlag, notice, print_json, progress_bar, say, stdout

if TYPE_CHECKING:
    from tpsl.data.dataset import Dataset
    from tpsl.report import RunSummary
    from tpsl.training import Job

SETTINGS: dict[str, dict[str, Any]] = {
    "non-private (Algorithm 1)": {"mechanism": "none", "estimator": "linear"},
    "Laplace, linear (the paper)": {"mechanism": "laplace", "epsilon": 1.0, "estimator": "linear"},
    "Discrete, posterior (ours)": {"mechanism": "discrete", "epsilon": 1.0, "estimator": "posterior"},
}
_ATTACKED_STEPS = 96


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the page.")] = Path("runs/demo"),
    rows: Annotated[int | None, typer.Option(help="Only so many flights (a quicker, rougher demo).")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="How often each flight is used.")] = 2,
    json: JsonFlag = False,
) -> None:
    """Train on NYC flights without privacy, as in the paper, and as we recommend; attack all three; compare.

    The feature party is the airports and the weather service, the label party the airlines, which know who was late.
    """
    from tpsl.data.config import FlightsData
    from tpsl.data.dataset import load
    from tpsl.report import summary_table, write_page
    from tpsl.training import make_job

    config = FlightsData(rows=rows)
    notice("loading NYC flights 2013")
    data = load(config)
    summaries = []
    for name, privacy in SETTINGS.items():
        content = {"data": config.model_dump(), "privacy": privacy, "training": {"epochs": epochs}}
        job = make_job(content, {}, "demo")
        summaries.append(_train_and_attack(name, job, data, out / f"{privacy['mechanism']}"))
    page = out / "report.html"
    facts = {
        "Data": "NYC flights 2013, does a flight arrive more than 15 minutes late?",
        "Training flights": f"{len(data.train):,}",
        "Test flights": f"{len(data.test):,}",
        "Late": f"{data.labels.mean():.1%}",
        "Batch size": f"{job.training.batch_size:,}",
        "Attacked": f"the gradients of the first {_ATTACKED_STEPS} steps, with the label party's weights known",
    }
    write_page(page, summaries, title="tpsl demo: flight delays", facts=facts)
    if json:
        print_json({"page": str(page), "runs": [asdict(row) for row in summaries]})
    else:
        stdout.print(summary_table(summaries))
        say(f"The page: {page.resolve()}")


def _train_and_attack(name: str, job: Job, data: Dataset, run: Path) -> RunSummary:
    from tpsl.attacks import run_attacks
    from tpsl.report import RunSummary
    from tpsl.training import train
    from tpsl.training.run_folder import RunFolder

    if RunFolder(run).job_path.exists():  # of an earlier demo; whatever else is there stays, and is refused
        shutil.rmtree(run)
    with progress_bar(name) as progress:
        result = train(job, run, record_steps=_ATTACKED_STEPS, progress=progress, notice=notice, data=data)
    report = run_attacks(run, data.labels, which=["shortest_distance"])
    reached = report["shortest_distance"]
    return RunSummary(
        name=name,
        mechanism=result.mechanism,
        estimator=result.estimator,
        epsilon=result.epsilon,
        delta=result.delta,
        private=result.private,
        test_auc=result.test_auc,
        test_auc_low=result.test_auc_low,
        test_auc_high=result.test_auc_high,
        attack_auc=reached.auc,
        attack_auc_low=reached.auc_low,
        attack_auc_high=reached.auc_high,
        attack_closed_form=report.closed_form,
        ceiling=report.ceiling,
        epochs=result.epochs,
        samples_per_second=result.samples_per_second,
        auc_by_epoch=tuple(entry["test_auc"] for entry in RunFolder(run).metrics()),
    )
