"""Scores for applications that wait for them: services of the label party and of feature parties."""
