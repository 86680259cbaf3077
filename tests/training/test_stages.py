"""The list of stages: both sides of each exchange, and what crosses in it."""

import inspect
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tpsl.transport.checks import NOT_FINITE, BadMessage

from tpsl.alignment import terms
from tpsl.prediction import exchange
from tpsl.training import stages
from tpsl.training.stages import HAND_OVER, STAGES, TOPICS, early_stopping, evaluate

ALL = [*dict.fromkeys((*STAGES, *HAND_OVER)), evaluate, early_stopping]
DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("stage", ALL, ids=lambda stage: stage.__name__)
def test_a_stage_shows_both_sides(stage: ModuleType) -> None:
    for side, role in (("label", "LabelRole"), ("feature", "FeatureRole")):
        function = getattr(stage, side)
        assert inspect.iscoroutinefunction(function) and function.__module__ == stage.__name__
        assert [parameter.annotation for parameter in inspect.signature(function).parameters.values()] == [role]


def test_every_file_of_the_folder_is_a_stage_of_the_list() -> None:
    files = {path.stem for path in Path(stages.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == {stage.__name__.rpartition(".")[2] for stage in ALL}  # type: ignore[attr-defined]


def test_what_crosses_under_each_topic_is_written_down() -> None:
    rows = re.findall(r"^\| topic `([^`]+)` \|", (DOCS / "wire.md").read_text(encoding="utf-8"), re.MULTILINE)
    both_ways = [terms.POINTS]  # it has a row for each direction
    known = [*TOPICS, terms.POINTS, terms.POSITIONS, *exchange.TOPICS]
    assert sorted(rows) == sorted([*known, *both_ways]) and len(set(known)) == len(known)


def test_predictions_that_are_not_finite_end_a_run_as_such_messages_do() -> None:
    """The sentence ends as that of a message with such numbers: a search knows a divergence by it, at every side."""
    role: Any = SimpleNamespace(done=5)
    with pytest.raises(BadMessage, match=f"^after step 5: the predictions {NOT_FINITE}$"):
        evaluate.keep_predictions(role, 1, np.array([0.5, np.nan], np.float32))
