"""The wide part of a party in a run: fitted once on what the noisy labels say, and kept in the party's folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, from_numpy

from tpsl.data.features import Features
from tpsl.data.sides import LabelRecords
from tpsl.data.source import Inputs, table_features
from tpsl.files import make_private_folder, write_atomically
from tpsl.party.wide import AdditiveModel, cross_fit, with_scores
from tpsl.perturb import LogitGradient
from tpsl.training.job import Job
from tpsl.training.schedule import Rows, Schedule
from tpsl.vault import NoisyLabels

FILE = "wide.safetensors"
_SCORES = "scores"


def label_estimates(noisy: NoisyLabels, draw: int = 0) -> Tensor:
    """Return an unbiased estimate of each record's label, from its noisy label alone: shape `[n]`."""
    if noisy.mechanism.classes != 2:
        raise ValueError(f"a wide part is for two classes, not for {noisy.mechanism.classes}: set model.wide to false")
    return LogitGradient(noisy.mechanism, "unbiased").evidence(noisy.draws[draw])


def fit_wide(
    features: Features | Inputs, rows: Rows, estimates: npt.NDArray[np.float32], seed: int, folder: Path
) -> None:
    """Fit a party's wide part on these rows and keep it, unless it is there already."""
    if not (folder / FILE).exists():
        model, scores = cross_fit(table_features(features, "model.wide"), rows, estimates.astype(np.float64), seed)
        make_private_folder(folder)
        write_atomically(folder / FILE, save({**model.tensors(), _SCORES: from_numpy(scores)}))


def scored_features(features: Features | Inputs, folder: Path) -> Features:
    """Return the features of a run's records with the scores they were trained with."""
    return with_scores(table_features(features, "model.wide"), load((folder / FILE).read_bytes())[_SCORES].numpy())


def unscored_features(features: Features) -> Features:
    """Return the features with a score of 0 for each record: what a half sees before there are noisy labels."""
    return with_scores(features, np.zeros(len(features), dtype=np.float32))


def load_wide(folder: Path) -> AdditiveModel:
    """Return the wide part of a party, to score any records with."""
    path = folder / FILE
    try:
        return AdditiveModel.from_tensors(load(path.read_bytes()))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{path}: is damaged ({error})") from error


def newly_scored_features(features: Features, model: AdditiveModel) -> Features:
    """Return features of any records with the scores that a wide part gives them."""
    return with_scores(features, model.scores(features, np.arange(len(features), dtype=np.int64)))


def label_features(job: Job, records: LabelRecords, noisy: NoisyLabels, folder: Path) -> Features | Inputs | None:
    """Return the label party's own features, if it has any, as its half reads them."""
    if records.features is None or not job.model.wide:
        return records.features
    schedule = Schedule(job, records.train, records.test)
    # With two draws, what the label party learns for itself comes from the second (Algorithm 3).
    estimates = label_estimates(noisy, draw=-1).numpy()[schedule.trained]
    fit_wide(records.features, records.train[schedule.trained], estimates, job.training.seed, folder)
    return scored_features(records.features, folder)
