"""What a feature party sees in mode `label-only`: the same number of frames of the same sizes, whoever is known."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tpsl.alignment import terms as terms_module
from tpsl.alignment.rounds import AligningFeatureParty, AligningLabelParty, attend_as_features
from tpsl.audit.replay import FrameLog, SentFrame
from tpsl.run.observer import UNWATCHED

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
    seen: list[SentFrame] = []
    label, _ = attended(path, terms, lists, make_table, seen.append)
    return [frame[:6] for frame in seen], label.outcome().matched


def attended(
    path: Path, terms: Any, lists: Mapping[str, Sequence[int]], make_table: Any, watch: Callable[[SentFrame], None]
) -> tuple[AligningLabelParty, list[AligningFeatureParty]]:
    """All parties after an alignment through frames, with all that they keep while it runs."""
    tables = {name: make_table([{"id": str(number)} for number in numbers]) for name, numbers in lists.items()}
    label = AligningLabelParty(LABEL, terms, tables[LABEL], path / LABEL, UNWATCHED)
    features = [AligningFeatureParty(name, terms, tables[name], path / name, UNWATCHED) for name in terms.parties]
    for side in (label, *features):
        side.working.begin(side.table)
    attend_as_features(features, FrameLog(label.begin, "uint8", watch))
    return label, features


@pytest.mark.parametrize("parties", [1, 2])
def test_label_only_looks_the_same_whomever_the_label_party_knows(
    tmp_path: Path,
    make_terms: Any,
    make_table: Any,
    monkeypatch: pytest.MonkeyPatch,
    parties: int,
) -> None:
    monkeypatch.setattr(terms_module, "POINTS_AT_ONCE", 8)
    terms = make_terms(parties)
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


def test_the_digest_does_not_tell_a_feature_party_whether_its_only_record_is_known(
    tmp_path: Path, make_terms: Any, make_table: Any
) -> None:
    """It has every point of the label party blinded by both, and tries which of them gives the digest."""
    lists = {LABEL: [7], "party0": [7]}
    label, (feature,) = attended(tmp_path, make_terms(), lists, make_table, lambda frame: None)
    (point,) = feature.points(feature.working.list_of(LABEL, 2))
    assert point.tobytes() == label.working.list_of("party0", 2).read().tobytes()
    digest, domain = label.outcome().digest, b"tpsl alignment: common records\0"
    assert digest == hashlib.sha256(domain + label.working.state.salt + point.tobytes()).hexdigest()
    state = feature.working.state
    known = (b"", feature.session, state.identity, state.salt, state.scalar)
    assert digest not in [hashlib.sha256(domain + each + point.tobytes()).hexdigest() for each in known]
