"""Learners by name, and their models as folders.

    fitted = fit("lightgbm", LearnerRecords(features, rows, targets, held_out))
    fitted.model.probabilities(features)

A user's learner is a function from `LearnerRecords` to `Fitted`:

    LEARNERS.register("nearest", nearest)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from tpsl.files import make_private_folder, read_plain, write_atomically
from tpsl.handover.committee_model import committee
from tpsl.handover.learner import Fitted, LearnedModel, LearnerError, LearnerRecords
from tpsl.handover.logistic import logistic
from tpsl.handover.trees import lightgbm, plain_lightgbm, xgboost
from tpsl.registry import Registry

COMMITTEE = "committee"
"""The name that stands for those of `IN_COMMITTEE` together, weighted by noisy labels."""
IN_COMMITTEE = ("lightgbm", "plain_lightgbm", "logistic")

Learner = Callable[[LearnerRecords], Fitted]
LEARNERS: Registry[Learner] = Registry("learner")
LEARNERS.register("lightgbm", lightgbm)
LEARNERS.register("xgboost", xgboost)
LEARNERS.register("logistic", logistic)
LEARNERS.register("plain_lightgbm", plain_lightgbm)
LEARNERS.register(COMMITTEE, lambda records: committee(records, [fit(name, records) for name in IN_COMMITTEE]))

_DESCRIPTION = "learner.json"
_VERSION = 1


def fit(name: str, records: LearnerRecords) -> Fitted:
    """Fit the learner of this name. Guarantee: a function of features and noisy labels, so post-processing of them."""
    return LEARNERS.get(name)(records)


def save(model: LearnedModel, folder: Path) -> None:
    """Write a model into a folder, which is whole once its description is there."""
    make_private_folder(folder)
    files = model.files()
    for name, content in files.items():
        write_atomically(folder / name, content)
    described = {"version": _VERSION, "model": model.kind, "files": sorted(files)}
    write_atomically(folder / _DESCRIPTION, json.dumps(described).encode())


def load(folder: Path) -> LearnedModel:
    """Return the model that `save` has written; a folder that holds none is an error in one sentence."""
    try:
        described: Any = json.loads(read_plain(folder / _DESCRIPTION))
        kind, version = described["model"], described["version"]
        if version != _VERSION or kind not in LearnedModel.kinds:
            known = f"{', '.join(LearnedModel.kinds)}, version {_VERSION}"
            raise LearnerError(f"{folder}: holds a model {kind!r}, version {version!r}; known are {known}")
        files = {name: (folder / Path(name).name).read_bytes() for name in described["files"]}
        return LearnedModel.kinds[kind].from_files(files)
    except LearnerError:
        raise
    except OSError as error:
        raise LearnerError(f"{folder}: holds no whole model ({error.filename}: {error.strerror})") from error
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        raise LearnerError(f"{folder}: its model cannot be read ({error})") from error
