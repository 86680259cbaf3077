"""`tpsl demo`: the whole story on real data in a few minutes.

The last run is what `tpsl train --data flights --epsilon 1` does, and the first the same without noise.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

from tpsl.cli.console import answer, notice, progress_bar
from tpsl.cli.flags import JsonFlag, option
from tpsl.cli.train import OPTIONS_ALONE
from tpsl.data.config import FlightsData
from tpsl.data.dataset import load
from tpsl.data.true_labels import reveal
from tpsl.report.findings import keep_finding
from tpsl.report.page import write_page
from tpsl.report.run_table import summary, summary_table
from tpsl.training.job import make_job
from tpsl.training.observer import Watching
from tpsl.training.run_folder import RunFolder

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
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
_NEXT = (
    "The last run alone:      tpsl train --data flights --epsilon 1",
    "With your own files:     tpsl init features.csv labels.csv",
)
_ATTACKED_STEPS = 96
_ATTACKS = ("norm", "spectral", "shortest_distance", "likelihood", "noisy_label_with_features", "no_transcript")


def demo(
    out: Annotated[Path, option("FOLDER", "Folder for the runs and the page.")] = Path("runs/demo"),
    rows: Annotated[int | None, option("NUMBER", "Use only so many flights, for a quicker, rougher demo.")] = None,
    json: JsonFlag = False,
) -> None:
    """Train on NYC flights without privacy, as in the paper, and as tpsl does; attack all three; compare.

    The feature party is the airports and the weather service, the label party the airlines, which know who was late.
    """
    from tpsl.attacks import run_attacks
    from tpsl.report.run_reading import read_run
    from tpsl.training.one_process import train

    config = FlightsData(rows=rows)
    notice("loading NYC flights 2013")
    data = load(config)
    views = []
    for folder, (name, content) in RUNS.items():
        run = out / folder
        if RunFolder(run).job_path.exists():  # of an earlier demo; whatever else is there stays, and is refused
            shutil.rmtree(run)
        job = make_job({**content, "data": config.model_dump()}, {}, "demo")
        with progress_bar(name) as progress:
            watching = Watching(progress=progress, notice=notice)
            train(job, run, record_steps=_ATTACKED_STEPS, data=data, watching=watching)
        found = run_attacks(run, data.labels, which=_ATTACKS, features=data.feature_parties)
        keep_finding(run, "attacks", found.as_dict())
        views.append(read_run(run, name))
    late = reveal(data.labels).mean()
    page = out / "report.html"
    about = (
        "NYC flights 2013: does a flight arrive more than 15 minutes late? Airports and weather service hold the "
        f"features, airlines the labels ({late:.1%} are late). Attacked were the gradients of the first "
        f"{_ATTACKED_STEPS} steps; the strongest attackers know the label party’s weights too. These labels are "
        "public: to compare, the demo releases them three times, once without noise. Real labels are released once."
    )
    write_page(page, views, title="tpsl demo: flight delays", about=about)
    answer(
        json,
        {"page": str(page), "runs": [summary(view) for view in views]},
        [summary_table(views), f"The page: {page.resolve()}", *_NEXT],
    )
