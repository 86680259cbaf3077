"""A search at a feature party alone, on noisy labels that it was handed over."""

from __future__ import annotations

from pathlib import Path

from tpsl.data.dataset import Dataset, class_names
from tpsl.handover.learning import labels_for, load_side
from tpsl.training.alone import require_alone
from tpsl.training.local import Local
from tpsl.training.setup import RunSetup
from tpsl.tuning.candidates import TuneResult
from tpsl.tuning.search import tune


def tune_alone(setup: RunSetup, party: str, local: Local, labels: Path, authority: Path | None = None) -> TuneResult:
    """Train our space of configurations on handed-over `labels`, a file or its folder; noisy labels choose.

    Guarantee: candidates, weights and predictions are those of `tune` with the vault that the labels come from, to the
    last bit. There are no true labels here, and so no test metrics.
    """
    require_alone(setup.job, setup.start)
    side = load_side(setup, party, local)
    data = Dataset.of_one(side, class_names(setup.job.data))
    return tune(setup, vault=labels_for(setup.job, side, labels, authority), data=data)
