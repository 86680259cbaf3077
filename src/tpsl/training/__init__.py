"""The job, the run folder, checkpoints, and the step loop."""

from tpsl.training.job import Job, PrivacyConfig, TrainingConfig, load_job, make_job
from tpsl.training.loop import train
from tpsl.training.result import TrainResult

__all__ = ["Job", "PrivacyConfig", "TrainResult", "TrainingConfig", "load_job", "make_job", "train"]
