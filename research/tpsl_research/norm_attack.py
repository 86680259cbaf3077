"""How norm and spectral attacks fare as training goes on: `python -m tpsl_research.norm_attack [CRITEO_FILE]`.

Trains a non-private network (SGD, batch 512) for some epochs on Criteo's file, or on flights without one, and prints
the attack AUCs over stretches of the run, beside how far the predictions have spread.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from tpsl.attacks.black_box import norm_scores, spectral_scores
from tpsl.attacks.white_box import WhiteBox, sigmoid
from tpsl.data.dataset import load
from tpsl.data.true_labels import reveal
from tpsl.metrics import auc
from tpsl.run.job import make_job
from tpsl.run.one_process import ALL_STEPS, train
from tpsl.run.transcript import Trajectory, Transcript

SKIPPED = 20


def main() -> None:
    """Train and print the areas."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", help="Criteo's train.txt or a part of it, plain or compressed")
    parser.add_argument("--rows", type=int, help="use only so many records")
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()
    data = {"source": "criteo", "path": str(options.file)} if options.file else {"source": "flights"}
    sgd = {"name": "sgd", "learning_rate": 0.05}
    content = {
        "data": {**data, "rows": options.rows},
        "privacy": {"mechanism": "none", "estimator": "linear"},
        "training": {
            "batch_size": 512,
            "epochs": options.epochs,
            "patience": 0,
            "feature_optimizer": sgd,
            "label_optimizer": sgd,
        },
    }
    job = make_job(content, {}, "benchmark")
    loaded = load(job.data)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        train(job, run, record_steps=ALL_STEPS, data=loaded)
        white_box = WhiteBox(job, ["feature"], 2, Trajectory(run / "label"))
        for seen in Transcript(run / "feature" / "transcript"):
            positive = reveal(loaded.labels)[seen.rows] == 1
            if seen.step >= SKIPPED and len(seen.rows) == 512:
                areas = [auc(score(seen.gradients), positive).value for score in (norm_scores, spectral_scores)]
                rows.append((seen.step, *areas, float(sigmoid(white_box.read(seen).logits).std())))
    print("steps          norm AUC  spectral AUC  standard deviation of predictions")
    for part in np.array_split(np.array(rows), 8):
        means = part.mean(axis=0)
        print(f"{part[0, 0]:5.0f}–{part[-1, 0]:<5.0f}  {means[1]:10.4f}{means[2]:14.4f}{means[3]:12.4f}")


if __name__ == "__main__":
    main()
