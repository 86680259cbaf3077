"""The job, the run folder, checkpoints, and the step loop."""

from tpsl.training.job import Job, PrivacyConfig, TrainingConfig, load_job, make_job
from tpsl.training.one_process import ALL_STEPS, train
from tpsl.training.result import TrainResult

__all__ = ["ALL_STEPS", "Job", "PrivacyConfig", "TrainResult", "TrainingConfig", "load_job", "make_job", "train"]
