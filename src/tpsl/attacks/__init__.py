"""Attacks: what a feature party can find out about the labels from what it has seen."""

from tpsl.attacks.attacked_run import AttackedRun
from tpsl.attacks.auc_prediction import PredictedAUC, auc_ceiling, predicted_auc, predicted_statistic_auc
from tpsl.attacks.known_labels import KnownLabels, draw_known
from tpsl.attacks.scoring import AttackReport, AttackResult
from tpsl.attacks.suite import ATTACKS, Attack, run_attacks
from tpsl.attacks.transcript_walk import AttackError, evaluate_attacks

__all__ = [
    "ATTACKS",
    "Attack",
    "AttackError",
    "AttackReport",
    "AttackResult",
    "AttackedRun",
    "KnownLabels",
    "PredictedAUC",
    "auc_ceiling",
    "draw_known",
    "evaluate_attacks",
    "predicted_auc",
    "predicted_statistic_auc",
    "run_attacks",
]
