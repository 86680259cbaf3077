"""What a warm start is worth: `python -m tpsl_research.retraining [--rows N] [--seeds N] [--epsilon X] [--json]`.

A network learns from the flights of January to November. Test AUC on December's flights of that network as it is, of
one that starts from it and goes on with December's training records, and of one that learns from these alone.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tpsl.data.config import TableData
from tpsl.data.true_labels import reveal
from tpsl.metrics import auc
from tpsl.model.trained import TrainedModel
from tpsl.run.job import Job
from tpsl.run.job_sections import PrivacyConfig, TrainingConfig
from tpsl.run.one_process import load_records, train_together
from tpsl.run.run_folder import RunFolder
from tpsl.run.setup import RunSetup
from tpsl.run.vaults import VaultChoice
from tpsl.run.warm_start import StartingPoint
from tpsl_research.example_data import write_flights

DECEMBER = "2013-12-01"
DATES = ("month", "day", "day_of_year")
"""Categories that December has for itself."""


def job(folder: Path, config: TableData, since: str | None, epsilon: float, seed: int) -> Job:
    """Return a job of the tables in a folder, without the categories that tell the date."""
    airport, airline = config.features[0], config.label
    kept = tuple(name for name in airport.categorical if name not in DATES)
    tables = {
        "features": (airport.model_copy(update={"path": folder / airport.path.name, "categorical": kept}),),
        "label": airline.model_copy(update={"path": folder / airline.path.name}),
    }
    data = config.model_copy(update={**tables, "since": since, "split_seed": seed})
    training = TrainingConfig(epochs=2, patience=0, batch_size=512, seed=seed)
    return Job(data=data, privacy=PrivacyConfig(epsilon=epsilon), training=training)


def measure(folder: Path, config: TableData, epsilon: float, seed: int) -> dict[str, float]:
    """Return the three test AUCs."""
    place, earlier = folder / f"seed-{seed}", folder / f"seed-{seed}" / "earlier"
    vault = VaultChoice(scratch=True)
    train_together(RunSetup(job(folder / "before", config, None, epsilon, seed), RunFolder(earlier)), vault)
    december, start = job(folder, config, DECEMBER, epsilon, seed), StartingPoint(earlier)
    records = load_records(december, encoders=start.encoders())
    unchanged = auc(
        TrainedModel.open(earlier).predict_rows(records, records.test), reveal(records.labels)[records.test] == 1
    )
    warm = train_together(RunSetup(december, RunFolder(place / "warm"), start=start), vault)
    alone = train_together(RunSetup(december, RunFolder(place / "alone")), vault)
    return {"unchanged": unchanged.value, "warm": warm.test_auc, "alone": alone.test_auc}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=80_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = write_flights(folder, rows=options.rows).config
        (folder / "before").mkdir()
        for table in folder.glob("*.parquet"):
            flights = pq.read_table(table)
            earlier = pc.less(flights["scheduled_departure"].cast("string"), DECEMBER)
            pq.write_table(flights.filter(earlier), folder / "before" / table.name)
        found = [measure(folder, config, options.epsilon, seed) for seed in range(options.seeds)]
    columns = {key: [round(row[key], 4) for row in found] for key in found[0]}
    if options.json:
        print(json.dumps(columns))
        return
    for key, values in columns.items():
        print(f"{key:<10} {np.mean(values):.4f}  {values}")


if __name__ == "__main__":
    main()
