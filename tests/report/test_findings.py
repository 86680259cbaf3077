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
    keep_finding(run, "audit", {"claimed": 1.0, "lower_bound": 0.25, "confidence": 0.95, "passed": True})
    assert (read_finding(run, "audit") or {})["lower_bound"] == 0.25  # the newest replaces the others


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"attacks": {"norm": {}}, "ceiling": 1, "closed_form": 1})])
def test_damage_is_one_sentence_that_names_the_file(copied: Callable[[str], Path], content: str) -> None:
    run = copied("discrete")
    (run / "label" / "attacks.json").write_text(content)
    with pytest.raises(RunError, match=r"discrete/label/attacks\.json: is damaged \(.+\)$"):
        read_finding(run, "attacks")
