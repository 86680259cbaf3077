"""Pre-trained weights that several runs share: they depend on features, model, seed and method, and on no label."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from safetensors.torch import save

from tpsl.data.dataset import Dataset, feature_party_names
from tpsl.files import make_private_folder, write_atomically
from tpsl.progress import Progress, no_progress
from tpsl.training.build import pretrained_weights
from tpsl.training.job import Job
from tpsl.training.run_folder import RunFolder

FILE = "pretrained.safetensors"


def pretraining_key(job: Job) -> str | None:
    """Return a name that jobs share exactly if their pre-trained weights are the same; None without pre-training."""
    if job.training.pretrain is None:
        return None
    agreed = job.without_wide_part().agreed()
    content = [agreed["data"], agreed["model"], agreed["training"]["seed"], agreed["training"]["pretrain"]]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]


def is_prepared(job: Job, folder: Path) -> bool:
    """Whether `folder` holds the pre-trained weights of a job, or the job needs none."""
    key = pretraining_key(job)
    return key is None or all((folder / key / party / FILE).exists() for party in feature_party_names(job.data))


def prepare_pretrained(
    job: Job,
    data: Dataset,
    folder: Path,
    device: torch.device | None = None,
    progress: Progress = no_progress,
) -> None:
    """Make sure that `folder` holds the pre-trained weights of a job, those a run of it would compute by itself."""
    key = pretraining_key(job)
    if key is None:
        return
    for party in data.feature_parties:
        path = folder / key / party / FILE
        if path.exists():
            continue
        make_private_folder(path.parent)
        write_atomically(path, save(pretrained_weights(job, data.feature_sides[party], device, progress)))


def hand_over(job: Job, data: Dataset, folder: Path, run: RunFolder) -> None:
    """Put the pre-trained weights of a job into the folder of a run that has none yet."""
    key = pretraining_key(job)
    if key is None:
        return
    parties = list(data.feature_parties)
    with run.started(job, [*parties, "label"]):
        for party in parties:
            if not (run.party(party) / FILE).exists():
                write_atomically(run.party(party) / FILE, (folder / key / party / FILE).read_bytes())
