"""The job, the run folder, checkpoints, and the stages of the two roles."""
