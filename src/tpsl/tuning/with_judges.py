"""The committee of a search, trained once more with the records that have judged it.

A search keeps a tenth of the records to judge. Once their noisy labels have weighted the candidates, they can be
learned from like all others: it is the same release. Nothing is left to judge the result; its weights are those of the
search.

OUT/with-judges/    the runs, and `tune.json` with the members: a model as the folder of the search is
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tpsl.data.dataset import Dataset
from tpsl.files import make_private_folder, write_atomically
from tpsl.model.trained import TUNE, WITH_JUDGES, TrainedModel
from tpsl.progress import no_notice
from tpsl.training.releases import noisy_labels_for
from tpsl.training.setup import RunSetup
from tpsl.training.vaults import ReleasedLabels
from tpsl.tuning.candidates import trials_of
from tpsl.tuning.pool import run_tasks
from tpsl.tuning.search import SearchTasks
from tpsl.tuning.shared_records import SharedRecords
from tpsl.tuning.space import changed, jobs_of
from tpsl.vault import NO_LIMITS


def train_with_judges(
    setup: RunSetup,
    space: Sequence[Mapping[str, Any]],
    candidates: Sequence[Mapping[str, Any]],
    data: Dataset,
    vault: Path | ReleasedLabels,
) -> TrainedModel:
    """Train a space again with all records; return the committee of its epochs.

    `candidates` are those of the search of this space in the set-up's folder, with their number, epoch and weight.
    Guarantee: post-processing of the release in `vault`. Runs that are done are not repeated; one that diverges has no
    weight.
    """
    out, all_train = setup.run.path / WITH_JUDGES, {"training": {"validation": 0.0}}
    make_private_folder(out)
    trials = trials_of([changed(job, all_train, "a job without judges") for job in jobs_of(setup.job, space)], out)
    handed = vault if isinstance(vault, ReleasedLabels) else None
    if isinstance(vault, ReleasedLabels):
        released = vault
    else:
        released = ReleasedLabels(*noisy_labels_for(setup.job, data.label_side, vault, no_notice, NO_LIMITS), vault)
    records = SharedRecords(setup.job, setup.own, data)
    tasks = SearchTasks(out, records, released, setup.own, setup.device, handed).of(trials)
    for done, name in enumerate(run_tasks(tasks, 1), 1):
        setup.watching.progress(done, len(tasks), f"{name}, with judges")
    kept = [one for one in candidates if not trials[one["number"]].has_diverged]
    total = sum(one["weight"] for one in kept)
    if not total:
        raise ValueError("with the records that judge, every configuration of the space diverged")
    members = [
        {"run": trials[one["number"]].run.path.name, "epoch": one["epoch"], "weight": one["weight"] / total}
        for one in kept
    ]
    write_atomically(out / TUNE, json.dumps({"candidates": members}, indent=1).encode())
    return TrainedModel.open(out)
