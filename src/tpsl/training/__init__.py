"""The job, the run folder, checkpoints, and the stages of the two roles."""

from tpsl.training.job import Job, PrivacyConfig, TrainingConfig, load_job, make_job
from tpsl.training.observer import Watching
from tpsl.training.one_process import ALL_STEPS, train
from tpsl.training.own_parts import OwnParts
from tpsl.training.result import TrainResult
from tpsl.training.vaults import VaultChoice

__all__ = [
    "ALL_STEPS",
    "Job",
    "OwnParts",
    "PrivacyConfig",
    "TrainResult",
    "TrainingConfig",
    "VaultChoice",
    "Watching",
    "load_job",
    "make_job",
    "train",
]
