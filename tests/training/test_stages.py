"""The list of stages: both sides of each exchange, and what crosses in it."""

import inspect
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tpsl.net.failures import NOT_FINITE, BadMessage
from tpsl.training import stages
from tpsl.training.stages import HAND_OVER, METHODS, STAGES, agree, early_stopping, evaluate

ALL = [*dict.fromkeys((*STAGES, *HAND_OVER)), evaluate]
DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("stage", ALL, ids=lambda stage: stage.__name__)
def test_a_stage_shows_both_sides(stage: ModuleType) -> None:
    label, feature = stage.label, stage.feature
    assert label.__module__ == feature.__module__ == stage.__name__
    assert inspect.isgeneratorfunction(label) and not inspect.isgeneratorfunction(feature)
    for side, kind in ((label, "LabelRole"), (feature, "FeatureRun")):
        assert [parameter.annotation for parameter in inspect.signature(side).parameters.values()] == [kind]


def test_every_file_of_the_folder_is_a_stage_of_the_list() -> None:
    files = {path.stem for path in Path(stages.__file__).parent.glob("*.py")} - {"__init__"}
    known = {stage.__name__.rpartition(".")[2] for stage in [*ALL, agree, early_stopping]}  # type: ignore[attr-defined]
    assert files == known


def test_every_method_belongs_to_one_stage_and_is_written_down() -> None:
    of_stages = [value for stage in ALL for name, value in vars(stage).items() if name.isupper()]
    assert all(of_stages.count(method) == 1 for method in METHODS)
    rows = re.findall(r"^\| `(\w+)`", (DOCS / "wire.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {*METHODS, "Hello", "Agree", "Stop"} <= set(rows)


def test_predictions_that_are_not_finite_end_a_run_as_such_messages_do() -> None:
    """A search knows a divergence by the code, at every side."""
    role: Any = SimpleNamespace(done=5)
    with pytest.raises(BadMessage, match=r"^after step 5: the predictions") as stopped:
        evaluate.keep_predictions(role, 1, np.array([0.5, np.nan], np.float32))
    assert stopped.value.code == NOT_FINITE
