"""Learners besides the network that learn from noisy labels: trees, and any classifier of scikit-learn."""
