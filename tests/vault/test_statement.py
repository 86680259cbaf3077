import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from tpsl.mechanisms import DiscreteGaussian, gaussian, laplace, randomized_response
from tpsl.vault import StatisticPlan, Vault, VaultError
from tpsl.vault.statement import digest_of_ids, first_difference, require_statement


def test_a_statement_says_what_the_ledger_says(folder: Path) -> None:
    units = [f"u{row // 4}" for row in range(20)]
    with Vault.create(folder, classes=3, batches=[(range(20), [0, 1] * 10, units)]) as vault:
        assert vault.statement()["releases"] == []
        once, twice = gaussian(2.0, 1e-5, 3), randomized_response(1.0, 3)
        vault.release(once, ids=range(8))
        vault.release(once)  # the same series, later
        vault.release(twice, draws=2, ids=[3, 4], compose=True)
        stated, ledger = vault.statement(), vault.ledger()
    assert (stated["records"], stated["classes"], stated["released_records"]) == (20, 3, 20)
    assert stated["epsilon_per_record"] == ledger.epsilon_per_record >= once.epsilon + 2 * twice.epsilon
    assert stated["delta_per_record"] == 1e-5
    assert stated["largest_unit"]["epsilon"] == ledger.largest_unit.epsilon
    assert (stated["private"], stated["ledger_entries"], stated["ledger_head"]) == (True, 5, ledger.head)
    rows = [[row[name] for name in ("mechanism", "draws", "records", "entries", "noise")] for row in stated["releases"]]
    assert rows == [[str(once), 1, 20, 2, "secure"], [str(twice), 2, 2, 1, "secure"]]
    assert [row["table_digest"] for row in stated["releases"]] == [once.digest, twice.digest]
    require_statement(json.loads(json.dumps(stated, allow_nan=False)))


def test_a_statistic_is_stated_with_its_noise_and_no_digest_of_its_vectors(vault: Vault) -> None:
    plan = StatisticPlan(DiscreteGaussian(10**8, 1e-6), 100, 3)
    vault.release(laplace(0.5), ids=range(400))
    for start, count in ((400, 500), (900, 100)):
        vault.release_statistic(plan, range(start, start + count), [np.ones((count, 3), np.int64)])
    stated = json.loads(json.dumps(vault.statement(), allow_nan=False))
    require_statement(stated)
    assert (stated["released_records"], stated["delta_per_record"]) == (1000, 1e-6)
    (entry,) = [entry for entry in vault.ledger().entries if entry.details.get("records") == 500]
    assert entry.details["phi_digest"] not in str(stated)
    for row in stated["releases"][1:]:
        assert row["spec"] == {"noise": "gaussian", "variance": 10**8, "delta": 1e-6, "bound": 100, "width": 3}
        assert (row["epsilon"], row["table_digest"], row["draws"]) == (plan.cost(2).epsilon, plan.noise.digest, 1)
        assert row["mechanism"].startswith("statistic of 3 numbers, discrete Gaussian noise, σ = 10000 (ε = ")
    assert [row["records"] for row in stated["releases"]] == [400, 500, 100]


def test_labels_and_their_corrections_leave_no_trace_in_a_statement(tmp_path: Path) -> None:
    """Two vaults that differ in labels, changes of labels and outcomes state the same, up to hash and time."""
    stated = []
    for name, labels in (("a", [0] * 30), ("b", [1] * 30)):
        with Vault.create(tmp_path / name, batches=[(range(30), labels, None)], apart="other people") as vault:
            vault.release(laplace(1.0), seed=1234567)
            corrected = [1] * 5 + [0] * 25 if name == "a" else [0] * 29 + [1]
            vault.add([([*range(30), "new"], [*corrected, 1], None)])
            facts = vault.statement()
        assert "1234567" not in str(facts)
        facts.pop("ledger_head")
        for row in facts["releases"]:
            row.pop("first"), row.pop("last")
        stated.append(facts)
    assert stated[0] == stated[1]
    assert stated[0]["private"] is False


def test_a_statement_does_not_tell_an_add_that_corrects_from_one_that_changes_nothing(tmp_path: Path) -> None:
    stated, sizes = [], []
    for name, second in (("corrected", 1), ("as it was", 0)):
        with Vault.create(tmp_path / name, batches=[(range(30), [0] * 30, None)], apart="other people") as vault:
            vault.release(laplace(1.0))
            before = vault.head()
            assert vault.add([(range(30), [0, second] + [0] * 28, None)]).changed == second
            facts = vault.statement()
            assert facts.pop("ledger_head") != before, "others see one more entry, whatever it changed"
            (body,) = vault._store.connection.execute(
                "SELECT body FROM ledger ORDER BY sequence DESC LIMIT 1"
            ).fetchone()
        nonce = json.loads(body)["nonce"]
        assert len(set(nonce)) > 4 and len(nonce) == 32, "128 random bits: nobody can try out what the head stands for"
        sizes.append(len(body))
        for row in facts["releases"]:
            row.pop("first"), row.pop("last")
        stated.append(facts)
    assert stated[0] == stated[1]
    assert stated[0]["ledger_entries"] == 4
    assert sizes[0] == sizes[1]


def test_membership_leaves_no_trace_in_a_statement(tmp_path: Path) -> None:
    """Records of an alignment: whether the label party knows whom two are about changes a unit, not the statement."""
    stated = []
    for name, units in (("nobody", ["a-0", "a-1"]), ("somebody", ["person", "person"])):
        with Vault.create(
            tmp_path / name,
            batches=[(["a-0", "a-1"], [0, 1], units)],
            counts_people=True,
            apart="other people",
        ) as vault:
            vault.release(laplace(1.0))
            assert vault.ledger().largest_unit.epsilon == (2.0 if name == "somebody" else 1.0)
            facts = vault.statement()
        facts.pop("ledger_head")
        for row in facts["releases"]:
            row.pop("first"), row.pop("last")
        stated.append(facts)
    assert stated[0] == stated[1]


def test_the_digest_of_ids_is_that_of_the_set(tmp_path: Path) -> None:
    ids = ["b", "a", "é", "Z", "10", "9", "ab"]
    digests = set()
    for name, order in (("one", ids), ("other", sorted(ids))):
        with Vault.create(tmp_path / name, batches=[(order, [0] * len(ids), None)], apart="other people") as vault:
            digests.add(vault.statement()["ids_digest"])
    by_hand = hashlib.sha256(b"".join(id + b"\0" for id in sorted(id.encode() for id in ids))).hexdigest()
    assert digests == {by_hand} == {digest_of_ids(ids)}
    assert digest_of_ids([*ids, "c"]) != by_hand


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("statement", 2),
        ("records", "many"),
        ("records", True),
        ("epsilon_per_record", "large"),
        ("epsilon_per_record", 1),
        ("releases", [{}]),
        ("releases", ["laplace"]),
        ("largest_unit", {"epsilon": 1.0}),
        ("private", "yes"),
    ],
)
def test_what_has_not_the_form_of_a_statement_is_refused(vault: Vault, field: str, value: object) -> None:
    with pytest.raises(VaultError, match="it is no statement about a vault"):
        require_statement({**vault.statement(), field: value})


def test_an_infinite_epsilon_can_be_stated_and_differences_are_named(vault: Vault) -> None:
    before = vault.statement()
    vault.release(laplace(1.0), ids=np.arange(10))
    now = vault.statement()
    assert first_difference(now, now) is None
    assert first_difference(before, now) == "released_records"
    require_statement({**now, "epsilon_per_record": "inf"})
