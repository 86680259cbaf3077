"""Many run folders for little: the files of one real run, with other names, jobs and numbers."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from tpsl.run.job import make_job

SOURCES: tuple[dict[str, Any], ...] = (
    {"source": "flights"},
    {"source": "synthetic", "rows": 1000},
    {"source": "synthetic", "rows": 2000, "seed": 3},
)
COPIED = ("metrics.jsonl", "attacks.json", "versions.json", "records.json")


def make_runs(original: Path, place: Path, count: int = 300) -> None:
    """Make runs of three data sets in turn, each data set with a vault that its runs share."""
    vaults = [place.parent / f"{place.name}-vaults" / f"data-{number}" for number in range(len(SOURCES))]
    for vault in vaults:
        shutil.copytree(original / "label" / "vault", vault)
    result = json.loads((original / "result.json").read_text())
    ledger = json.loads((original / "label" / "ledger.json").read_text())
    for number in range(count):
        source, epsilon = number % len(SOURCES), (0.5, 1.0, 2.0, 4.0)[number // 3 % 4]
        run = place / f"{SOURCES[source]['source']}-{source}-{number:03}"
        (run / "label").mkdir(parents=True)
        job = {"data": SOURCES[source], "privacy": {"mechanism": "laplace", "epsilon": epsilon}}
        training = {"batch_size": (256, 512)[number % 2], "seed": number}
        (run / "job.yaml").write_text(make_job({**job, "training": training}, {}, "test").to_yaml())
        auc = 0.6 + number / 10_000
        numbers = {"test_auc": auc, "test_auc_low": auc - 0.01, "test_auc_high": auc + 0.01, "seconds": 10.0 + number}
        (run / "result.json").write_text(json.dumps({**result, **numbers, "epsilon": epsilon}))
        (run / "label" / "ledger.json").write_text(json.dumps({**ledger, "vault": str(vaults[source] / "synthetic")}))
        for name in COPIED:
            os.link(original / "label" / name, run / "label" / name)
