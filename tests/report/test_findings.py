import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tpsl.report.findings import keep_finding, read_finding
from tpsl.run.run_folder import RunError


def test_what_was_kept_is_read_and_what_json_lacks_becomes_null(copied: Callable[[str], Path]) -> None:
    run = copied("seeded")
    assert read_finding(run, "audit") is None
    keep_finding(run, "audit", {"claimed": float("inf"), "lower_bound": 0.5, "confidence": 0.95, "passed": True})
    assert read_finding(run, "audit") == {"claimed": None, "lower_bound": 0.5, "confidence": 0.95, "passed": True}


def test_attacks_on_the_same_steps_are_added_and_others_replace(copied: Callable[[str], Path]) -> None:
    run = copied("discrete")
    before = read_finding(run, "attacks")
    assert before is not None and len(before["attacks"]) > 5
    again = {**before, "attacks": {"norm": {**before["attacks"]["norm"], "auc": 0.25}}}
    keep_finding(run, "attacks", again)
    after = read_finding(run, "attacks")
    assert after is not None
    assert after["attacks"]["norm"]["auc"] == 0.25
    assert after["attacks"]["likelihood"] == before["attacks"]["likelihood"]
    keep_finding(run, "attacks", {**again, "skip": 3})
    assert list((read_finding(run, "attacks") or {})["attacks"]) == ["norm"]


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"attacks": {"norm": {}}, "ceiling": 1, "closed_form": 1})])
def test_damage_is_one_sentence_that_names_the_file(copied: Callable[[str], Path], content: str) -> None:
    run = copied("discrete")
    (run / "label" / "attacks.json").write_text(content)
    with pytest.raises(RunError, match=r"discrete/label/attacks\.json: is damaged \(.+\)$"):
        read_finding(run, "attacks")


def test_attacks_of_one_kind_have_one_bound_however_they_were_run(copied: Callable[[str], Path]) -> None:
    run = copied("discrete")
    before = read_finding(run, "attacks")
    assert before is not None
    low = {"ceiling": 0.6, "ceiling_low": 0.59, "ceiling_high": 0.61}
    keep_finding(run, "attacks", {**before, "attacks": {"norm": {**before["attacks"]["norm"], **low}}})
    after = (read_finding(run, "attacks") or {})["attacks"]
    assert after["norm"]["ceiling"] == after["spectral"]["ceiling"] == before["attacks"]["spectral"]["ceiling"] > 0.61
    assert after["norm"]["ceiling_low"] == before["attacks"]["spectral"]["ceiling_low"]
