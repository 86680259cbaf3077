"""tpsl: transcript private split learning.

Two organisations train one network, one with the features, one with the labels; what crosses the border is
differentially private in each label.

    import tpsl

    job = tpsl.job("flights", epsilon=1.0)
    run = tpsl.train(job)
    run.attack()
    run.plot()

    model = tpsl.load(run.path)
    model.predict(records)
    model.export("exported", "label")

`import tpsl` is quick: what a name needs is imported when the name is first used.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpsl.estimator import SplitClassifier
    from tpsl.model.trained import TrainedModel, load
    from tpsl.notebook import Attacks, Run, job, train
    from tpsl.run.job import Job
    from tpsl.run.own_parts import OwnParts

__version__ = "0.1.0"

__all__ = [
    "Attacks",
    "Job",
    "OwnParts",
    "Run",
    "SplitClassifier",
    "TrainedModel",
    "__version__",
    "job",
    "load",
    "train",
]

_ROOM_OF = {
    "Attacks": "tpsl.notebook",
    "Job": "tpsl.run.job",
    "OwnParts": "tpsl.run.own_parts",
    "Run": "tpsl.notebook",
    "SplitClassifier": "tpsl.estimator",
    "TrainedModel": "tpsl.model.trained",
    "job": "tpsl.notebook",
    "load": "tpsl.model.trained",
    "train": "tpsl.notebook",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Read when PyTorch is imported, which happens below: see tpsl.cli.main.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    value = getattr(import_module(_ROOM_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
