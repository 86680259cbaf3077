"""Models fitted on a release, and pre-training: wide part, statistic head, local head."""
