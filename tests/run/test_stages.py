"""The list of stages: both sides of each exchange, and what crosses in it."""

import inspect
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tpsl.net.failures import NOT_FINITE, BadMessage
from tpsl.run import stages
from tpsl.run.stages import HAND_OVER, METHODS, STAGES, evaluate

ALL = [*dict.fromkeys((*STAGES, *HAND_OVER)), evaluate]
DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("stage", [*dict.fromkeys((*STAGES, *HAND_OVER)), evaluate], ids=lambda stage: stage.__name__)
def test_a_stage_shows_both_sides(stage: ModuleType) -> None:
    assert inspect.isgeneratorfunction(stage.label)
    for side, given in (("label", "LabelRole"), ("feature", "FeatureRun")):
        function = getattr(stage, side)
        assert function.__module__ == stage.__name__
        assert [parameter.annotation for parameter in inspect.signature(function).parameters.values()] == [given]


def test_every_file_of_the_folder_is_a_stage_of_the_list() -> None:
    files = {path.stem for path in Path(stages.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == {stage.__name__.rpartition(".")[2] for stage in ALL}  # type: ignore[attr-defined]


def test_what_crosses_under_each_method_is_written_down() -> None:
    written = (DOCS / "wire.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)`", written[written.index("## Methods of a job") :], re.MULTILINE)
    assert set(METHODS) <= set(rows) and len(set(METHODS)) == len(METHODS)


def test_predictions_that_are_not_finite_end_a_run_as_such_messages_do() -> None:
    """The code is that of a message with such numbers: a search knows a divergence by it, at every side."""
    role: Any = SimpleNamespace(done=5)
    with pytest.raises(BadMessage) as bad:
        evaluate.keep_predictions(role, 1, np.array([0.5, np.nan], np.float32))
    assert bad.value.code == NOT_FINITE
