"""Alignments of all parties in one process, against Python's sets."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from tpsl.alignment import AlignmentError
from tpsl.alignment.parties import AlignmentResult, align_together
from tpsl.alignment.terms import AlignmentTerms
from tpsl.data.aligned import UNKNOWN, Alignment
from tpsl.run.observer import Watching

Record = Mapping[str, str]
LABEL = "label"


def people(numbers: Sequence[int]) -> list[Record]:
    return [{"id": f"person {number}"} for number in numbers]


def samples(parties: int, *, seed: int = 0, size: int = 60, of: int = 90) -> dict[str, list[Record]]:
    """Who is at which party: the label party first, each in an order of its own."""
    random = Random(seed)
    names = [LABEL, *(f"party{number}" for number in range(parties))]
    return {name: people(random.sample(range(of), size + 3 * place)) for place, name in enumerate(names)}


def folders(path: Path, terms: AlignmentTerms) -> dict[str, Path]:
    return {name: path / name for name in terms.circle}


def aligned(
    path: Path, terms: AlignmentTerms, records: Mapping[str, Sequence[Record]], make_table: Any
) -> dict[str, Alignment]:
    tables = {name: make_table(each) for name, each in records.items()}
    return {name: each.alignment for name, each in align_together(terms, tables, folders(path, terms)).items()}


def ids_of(alignment: Alignment, records: Sequence[Record]) -> list[str | None]:
    return [None if row == UNKNOWN else records[row]["id"] for row in alignment.rows]


@pytest.mark.parametrize("parties", [1, 2, 3])
def test_label_only_tells_the_label_party_alone_whom_it_knows(
    tmp_path: Path, make_terms: Any, make_table: Any, parties: int
) -> None:
    records = samples(parties)
    found = aligned(tmp_path, make_terms(parties), records, make_table)
    sets = {name: {record["id"] for record in each} for name, each in records.items()}
    expected = set.intersection(*(sets[name] for name in sets if name != LABEL))
    order = ids_of(found["party0"], records["party0"])
    assert len(order) == len(expected) and set(order) == expected
    for name in sets:
        theirs = ids_of(found[name], records[name])
        wanted = order if name != LABEL else [each if each in sets[LABEL] else None for each in order]
        assert theirs == wanted
        assert found[name].matched == (len(expected & sets[LABEL]) if name == LABEL else None)
        assert found[name].matched_keys is None
    assert len({each.digest for each in found.values()}) == 1


@pytest.mark.parametrize("parties", [1, 2, 3])
def test_both_tells_all_parties_whom_all_know(tmp_path: Path, make_terms: Any, make_table: Any, parties: int) -> None:
    records = samples(parties, seed=1)
    found = aligned(tmp_path, make_terms(parties, mode="both"), records, make_table)
    expected = set.intersection(*({record["id"] for record in each} for each in records.values()))
    orders = [ids_of(found[name], records[name]) for name in records]
    assert all(order == orders[0] for order in orders)
    assert len(orders[0]) == len(expected) and set(orders[0]) == expected
    assert {each.matched for each in found.values()} == {len(expected)}
    assert len({each.ids().to_pylist()[0] for each in found.values()}) == 1
    assert all(each.ids().equals(found[LABEL].ids()) for each in found.values())


@pytest.mark.parametrize("parties", [1, 2, 3])
def test_size_tells_a_number_and_no_row(tmp_path: Path, make_terms: Any, make_table: Any, parties: int) -> None:
    records = samples(parties, seed=2)
    found = aligned(tmp_path, make_terms(parties, mode="size"), records, make_table)
    expected = set.intersection(*({record["id"] for record in each} for each in records.values()))
    for each in found.values():
        assert (each.matched, len(each.rows)) == (len(expected), 0)


@pytest.mark.parametrize(("label", "feature"), [([1, 2, 3], [4, 5]), ([7], [7]), (range(5), range(5))])
@pytest.mark.parametrize("mode", ["label-only", "both", "size"])
def test_nothing_everything_and_one_record_in_common(
    tmp_path: Path, make_terms: Any, make_table: Any, mode: str, label: Sequence[int], feature: Sequence[int]
) -> None:
    found = aligned(tmp_path, make_terms(mode=mode), {LABEL: people(label), "party0": people(feature)}, make_table)
    assert found[LABEL].matched == len(set(label) & set(feature))
    assert len(found["party0"].rows) == {"label-only": len(feature), "size": 0}.get(mode, found[LABEL].matched)


SEVERAL_KEYS: dict[str, Sequence[Record]] = {
    LABEL: [
        {"email": "a", "phone": "1"},
        {"email": "b"},
        {"phone": "3"},
        {"email": "d", "phone": "5"},
        {"email": "x", "phone": "6"},
        {"email": "y"},
    ],
    "party0": [
        {"phone": "5"},  # party0 4 is preferred for label 3, so this one matches nobody
        {"email": "b", "phone": "9"},
        {"email": "c", "phone": "3"},
        {"email": "a", "phone": "6"},  # by e-mail with label 0; by telephone it would be label 4
        {"email": "d"},
        {"email": "z"},
    ],
}


def test_the_first_key_wins_and_a_record_counts_once(tmp_path: Path, make_terms: Any, make_table: Any) -> None:
    terms = make_terms(keys=["email", "phone"], mode="both")
    found = aligned(tmp_path, terms, SEVERAL_KEYS, make_table)
    pairs = dict(zip(found["party0"].rows.tolist(), found[LABEL].rows.tolist(), strict=True))
    assert pairs == {1: 1, 2: 2, 3: 0, 4: 3}
    label_keys, party_keys = found[LABEL].matched_keys, found["party0"].matched_keys
    assert label_keys is not None and party_keys is not None
    np.testing.assert_array_equal(label_keys, party_keys)


def test_several_keys_of_one_record_count_once_in_size(tmp_path: Path, make_terms: Any, make_table: Any) -> None:
    found = aligned(tmp_path, make_terms(keys=["email", "phone"], mode="size"), SEVERAL_KEYS, make_table)
    assert {each.matched for each in found.values()} == {4}


def test_several_keys_with_several_parties(tmp_path: Path, make_terms: Any, make_table: Any) -> None:
    records = {**SEVERAL_KEYS, "party1": [{"email": "q", "phone": "3"}, {"email": "d"}, {"email": "a", "phone": "1"}]}
    found = aligned(tmp_path, make_terms(2, keys=["email", "phone"], mode="both"), records, make_table)
    triples = set(zip(*(found[name].rows.tolist() for name in records), strict=True))
    assert triples == {(0, 3, 2), (3, 4, 1), (2, 2, 0)}


def test_records_are_in_a_new_secret_order_each_time(tmp_path: Path, make_terms: Any, make_table: Any) -> None:
    records = samples(1)
    one = aligned(tmp_path / "one", make_terms(), records, make_table)["party0"]
    two = aligned(tmp_path / "two", make_terms(), records, make_table)["party0"]
    assert sorted(one.rows) == sorted(two.rows) == list(range(len(records["party0"])))
    assert one.rows.tolist() != two.rows.tolist()
    assert one.digest != two.digest
    assert one.rows.tolist() != sorted(one.rows)


def test_the_order_of_time_is_that_of_the_first_feature_party(tmp_path: Path, make_terms: Any, make_table: Any) -> None:
    records = samples(2)
    terms = make_terms(2, mode="both", order="time")
    tables = {name: make_table(each) for name, each in records.items()}
    order = np.array(Random(3).sample(range(len(records["party0"])), len(records["party0"])))
    tables["party0"] = make_table(records["party0"], order)
    found = align_together(terms, tables, folders(tmp_path, terms))
    rows = found["party0"].alignment.rows.tolist()
    assert rows == [row for row in order.tolist() if row in rows]
    assert ids_of(found["party1"].alignment, records["party1"]) == ids_of(found["party0"].alignment, records["party0"])


def test_a_folder_holds_the_alignment_and_no_secret_afterwards(
    tmp_path: Path, make_terms: Any, make_table: Any
) -> None:
    terms = make_terms()
    aligned(tmp_path, terms, samples(1), make_table)
    for folder in folders(tmp_path, terms).values():
        assert {each.name for each in folder.iterdir()} == {".lock", "alignment.json", "rows.npy"}
        assert all(each.stat().st_mode & 0o077 == 0 for each in folder.iterdir())
        assert json.loads((folder / "alignment.json").read_text())["mode"] == "label-only"


def test_a_finished_alignment_is_only_read(tmp_path: Path, make_terms: Any, make_table: Any) -> None:
    before = aligned(tmp_path, make_terms(), samples(1), make_table)
    again = aligned(tmp_path, make_terms(), samples(1), make_table)
    assert [each.digest for each in before.values()] == [each.digest for each in again.values()]
    with pytest.raises(AlignmentError, match="holds another alignment; remove it, or choose another folder"):
        aligned(tmp_path, make_terms(mode="both"), samples(1), make_table)
    with pytest.raises(AlignmentError, match="holds another alignment"):
        aligned(tmp_path, make_terms(), samples(1, seed=5), make_table)


def test_a_party_without_any_key_is_told_so(tmp_path: Path, make_terms: Any, make_table: Any) -> None:
    terms = make_terms()
    tables = {LABEL: make_table(people([1])), "party0": make_table([{}, {}])}
    with pytest.raises(AlignmentError, match="no record of party0 has a key to align by: id"):
        align_together(terms, tables, folders(tmp_path, terms))


def test_traffic_is_counted(tmp_path: Path, make_terms: Any, make_table: Any) -> None:
    terms = make_terms()
    tables = {LABEL: make_table(people(range(30))), "party0": make_table(people(range(20, 40)))}
    results: dict[str, AlignmentResult] = align_together(terms, tables, folders(tmp_path, terms))
    label, feature = results[LABEL], results["party0"]
    assert (label.bytes_sent, label.bytes_received) == (30 * 32 + 20 * 5, 20 * 32 + 30 * 32)
    assert (feature.bytes_sent, feature.bytes_received) == (label.bytes_received, label.bytes_sent)


def test_parties_are_told_how_long_the_other_lists_are(tmp_path: Path, make_terms: Any, make_table: Any) -> None:
    """Whoever puts many keys into its list learns about many: the others should see it."""
    terms, told = make_terms(), list[str]()
    tables = {LABEL: make_table(people(range(3000))), "party0": make_table(people(range(20)))}
    align_together(terms, tables, folders(tmp_path, terms), Watching(notice=told.append))
    assert told == ["feature party 'party0' has 20 records to align", "the label party has 3,000 records to align"]
