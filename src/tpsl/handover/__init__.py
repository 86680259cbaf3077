"""Noisy labels as a file with a signed card: the label party hands them over, a feature party checks and learns."""
