"""What all attacks on one run found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tpsl.attacks.scoring import AttackResult
from tpsl.files import for_json


@dataclass(frozen=True)
class AttackReport:
    """What all attacks reached on one run, beside what the mechanism's table predicts and what ε allows."""

    mechanism: str
    estimator: str
    draws: int
    classes: int
    epsilon: float
    """The ε of the release, over all draws."""
    delta: float
    closed_form: float
    """The mechanism's AUC under the shortest-distance attack with its hard guess."""
    closed_form_best: float
    """The mechanism's AUC under the best attack on one draw, the likelihood ratio."""
    ceiling: float
    """What ε and δ allow any attack that scores by the noisy label alone; each attack has its own ceiling beside it."""
    predicted_from: tuple[str, ...]
    """What the ceilings of attackers with features were computed from; empty where there was no need or no way."""
    records: int
    steps: int
    skip: int
    known_labels: int
    attacks: tuple[AttackResult, ...]
    not_run: Mapping[str, str]
    """Attacks that do not exist for this run, each with the reason."""

    def __getitem__(self, name: str) -> AttackResult:
        for result in self.attacks:
            if result.name == name:
                return result
        raise KeyError(name)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able data; an infinite ε becomes null."""
        attacks = {result.name: result.as_dict() for result in self.attacks}
        content: dict[str, Any] = for_json({**vars(self), "attacks": attacks, "not_run": dict(self.not_run)})
        return content
