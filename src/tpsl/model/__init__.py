"""Predicting with a finished run: its trained halves, new records, and several parties over a network."""
