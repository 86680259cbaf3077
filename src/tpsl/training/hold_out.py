"""When training ends: noisy labels of held-out records say it, unless a job has nothing for them to decide.

A network that goes on learning from noisy labels learns their noise by heart. Held-out records have no part in its
steps, so they notice; their noisy labels were released anyway, so it costs no ε.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

HELD_OUT = 0.1
"""The share of the training records that judges."""
PATIENCE = 2
"""Epochs without a better one after which training ends."""
MOST_EPOCHS = 20
"""Epochs of a network that is stopped; far more than it takes where labels are noisy."""
_EPOCHS = 2
"""Epochs of a network that is not."""


def with_hold_out(content: dict[str, Any]) -> dict[str, Any]:
    """Return a job's content, with no hold-out by default where there is nothing to stop or the job says not to.

    That is: no network learns from noisy labels, or it sees each record once, or `validation` or `patience` is 0. What
    the job names stays as it is.
    """
    training, privacy = (_named(content.get(part, {})) for part in ("training", "privacy"))
    is_off = isinstance(training, dict) and (
        content.get("method") == "statistic"
        or (isinstance(privacy, dict) and privacy.get("gradients") == "none")
        or training.get("labels") == "arriving"
        or training.get("epochs") == 1
        or 0 in (training.get("validation"), training.get("patience"))
    )
    if not is_off:
        return content
    epochs = 1 if training.get("labels") == "arriving" else _EPOCHS
    return {**content, "training": {"validation": 0.0, "patience": 0, "epochs": epochs, **training}}


def _named(part: Any) -> Any:
    """Return the keys that a part of a job names; what is no such part stays, for the validation to name it."""
    return part.model_dump(exclude_unset=True) if isinstance(part, BaseModel) else part
