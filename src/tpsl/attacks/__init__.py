"""Attacks: what a feature party can find out about the labels from what it has seen."""

from tpsl.attacks.shortest_distance import ShortestDistance, shortest_distance_attack

__all__ = ["ShortestDistance", "shortest_distance_attack"]
