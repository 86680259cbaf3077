"""What a feature party sees in mode `label-only`: the same number of frames of the same sizes, whoever is known."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tpsl.alignment import terms as terms_module
from tpsl.alignment.feature_side import FeatureSide
from tpsl.alignment.label_side import LabelSide
from tpsl.alignment.working_folder import WorkingFolder
from tpsl.training.observer import UNWATCHED
from tpsl.transport.in_process import InProcessMeeting, run_together
from tpsl.transport.linked import SentFrame, linked_pair

LABEL = "label"
AT_FEATURE_PARTIES = [range(40), range(10, 55)]
LABEL_LISTS = {
    "nobody": range(100, 130),
    "everybody": range(10, 40),
    "ten": [*range(10, 20), *range(100, 120)],
    "another ten": [*range(200, 220), *range(30, 40)],
    "some of one feature party": [*range(10), *range(300, 320)],
}

Shape = tuple[str, str, str, int, int, int]


def frames(path: Path, terms: Any, label_list: Sequence[int], make_table: Any) -> tuple[list[Shape], int | None]:
    """Each frame but for its bytes, in order, and how many records the label party has found."""
    lists = {LABEL: label_list, **dict(zip(terms.parties, AT_FEATURE_PARTIES, strict=False))}
    tables = {name: make_table([{"id": str(number)} for number in numbers]) for name, numbers in lists.items()}
    workings = {name: WorkingFolder(path / name, terms) for name in terms.circle}
    for name, working in workings.items():
        working.begin(tables[name].source)
    seen: list[SentFrame] = []
    ends = {name: linked_pair((LABEL, name), "uint8", terms.limits(), seen.append) for name in terms.parties}
    label = LabelSide(LABEL, terms, tables[LABEL], workings[LABEL], UNWATCHED)
    features = [FeatureSide(name, terms, tables[name], workings[name], UNWATCHED) for name in terms.parties]
    run_together(
        label.attend(InProcessMeeting({name: end for name, (end, _) in ends.items()})),
        *(side.attend(InProcessMeeting({LABEL: ends[side.name][1]}), lambda outcome: None) for side in features),
    )
    return [frame[:6] for frame in seen], label.outcome().matched


@pytest.mark.parametrize("parties", [1, 2])
@pytest.mark.parametrize("engine", ["ecdh", "plain"])
def test_label_only_looks_the_same_whomever_the_label_party_knows(
    tmp_path: Path,
    make_terms: Any,
    make_table: Any,
    monkeypatch: pytest.MonkeyPatch,
    parties: int,
    engine: str,
) -> None:
    monkeypatch.setattr(terms_module, "POINTS_AT_ONCE", 8)
    terms = make_terms(parties, engine=engine)
    found = {name: frames(tmp_path / name, terms, numbers, make_table) for name, numbers in LABEL_LISTS.items()}
    matched = {name: count for name, (_, count) in found.items()}
    assert matched["nobody"] == 0 and matched["everybody"] == 30 and matched["ten"] == matched["another ten"] == 10
    seen, _ = found["nobody"]
    assert len(seen) > 10
    assert all(each == seen for each, _ in found.values())


def test_both_does_not(tmp_path: Path, make_terms: Any, make_table: Any) -> None:
    """What is compared above can differ."""
    nobody, _ = frames(tmp_path / "one", make_terms(mode="both"), LABEL_LISTS["nobody"], make_table)
    everybody, _ = frames(tmp_path / "two", make_terms(mode="both"), LABEL_LISTS["everybody"], make_table)
    assert nobody != everybody
