"""What several runs share because it would be the same in each: pre-trained weights and wide parts.

Pre-trained weights depend on features, model, seed and method, and on no label; wide parts on features, the release,
the seed and the hold-out. Both are put into the folder of a run before it starts, which then need not compute them.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from safetensors.torch import save

from tpsl.data.dataset import Dataset, feature_party_names
from tpsl.files import make_private_folder, write_atomically
from tpsl.net.peers import LABEL_PARTY
from tpsl.net.rounding import rounded
from tpsl.training.build import pretrained_weights
from tpsl.training.job import Job
from tpsl.training.run_folder import RunFolder
from tpsl.training.schedule import Schedule
from tpsl.training.stages import prepare
from tpsl.training.stages.prepare import PRETRAINED
from tpsl.vault import NoisyLabels


def pretraining_key(job: Job) -> str | None:
    """Return a name that jobs share exactly if their pre-trained weights are the same; None without pre-training."""
    if job.training.pretrain is None:
        return None
    agreed = job.without_wide_part().agreed()
    content = [agreed["data"], agreed["model"], agreed["training"]["seed"], agreed["training"]["pretrain"]]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]


def pretrain_once(job: Job, data: Dataset, folder: Path, device: torch.device | None = None) -> None:
    """Make sure that `folder` holds the pre-trained weights of a job, those a run of it would compute by itself."""
    for party in data.feature_parties:
        path = folder / str(pretraining_key(job)) / party / PRETRAINED
        if not path.exists():
            make_private_folder(path.parent)
            write_atomically(path, save(pretrained_weights(job, data.feature_sides[party], device)))


def fit_wide_once(job: Job, data: Dataset, noisy: NoisyLabels, folder: Path) -> None:
    """Make sure that `folder` holds the wide parts of a job, those that a run of it would fit by itself."""
    schedule = Schedule(job, data.train, data.test)
    estimates = prepare.label_estimates(noisy)[schedule.among_labelled(schedule.trained), None]
    sent = rounded(estimates, job.training.wire)
    rows, own = data.train[schedule.trained], folder / job.training.wire
    for name, features in data.feature_parties.items():
        prepare.fit_wide_part(features, rows, sent[:, 0].numpy(), job.training.seed, own / name)
    prepare.fit_own_wide_part(job, data.label_side.records, noisy, own / LABEL_PARTY)


def copy_pretrained(job: Job, folder: Path, run: RunFolder) -> None:
    """Put the pre-trained weights of a job, if it has any, into a run that has none yet."""
    if (key := pretraining_key(job)) is not None:
        _copy(folder / key, PRETRAINED, run, feature_party_names(job.data))


def copy_wide_parts(job: Job, folder: Path, run: RunFolder) -> None:
    """Put the wide parts of a job, if it has any, into a run that has none yet."""
    if job.model.wide:
        _copy(folder / job.training.wire, prepare.WIDE, run, (*feature_party_names(job.data), LABEL_PARTY))


def copy_from_earlier(earlier: Job, source: RunFolder, job: Job, run: RunFolder, party: str) -> None:
    """Put what a party has computed in an earlier run of a search, and would compute again, into one that lacks it."""
    key = pretraining_key(job)
    shared = [PRETRAINED] if key is not None and key == pretraining_key(earlier) else []
    if earlier.model.wide and job.model.wide and earlier.training.wire == job.training.wire:
        shared.append(prepare.WIDE)
    for name in shared:
        _copy_file(source.party(party) / name, run.party(party) / name)


def _copy(folder: Path, name: str, run: RunFolder, parties: tuple[str, ...]) -> None:
    for party in parties:
        _copy_file(folder / party / name, run.party(party) / name)


def _copy_file(source: Path, target: Path) -> None:
    if source.exists() and not target.exists():  # a label party without features has no wide part
        write_atomically(target, source.read_bytes())
