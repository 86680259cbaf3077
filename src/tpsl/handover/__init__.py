"""Noisy labels handed over: what a feature party needs to train alone, in files or in one message."""
