import json
from collections import Counter

import numpy as np
import pytest

from tpsl.mechanisms import identity, laplace, randomized_response
from tpsl.vault import Spent, Vault, accounting


@pytest.mark.parametrize("at_once", [1 << 22, 5000])
def test_the_largest_unit_is_found_among_partly_released_records(
    folder, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(accounting, "_RECORDS_AT_ONCE", at_once)
    rng = np.random.default_rng(5)
    count = 70_000
    units = rng.integers(0, 10_000, count)
    with Vault.create(folder, batches=[(np.arange(count), np.zeros(count), units)]) as vault:
        assert vault.ledger().largest_unit.epsilon == 0
        vault.release(laplace(0.5), ids=np.flatnonzero(units % 3 == 0))
        vault.release(randomized_response(1.0), ids=np.arange(0, count, 7), compose=True)
        spent, epsilon = Counter(), randomized_response(1.0).epsilon
        for position, unit in enumerate(units.tolist()):
            spent[unit] += 0.5 * (unit % 3 == 0) + epsilon * (position % 7 == 0)
        most = max(spent.values())
        largest = vault.ledger().largest_unit
        assert abs(largest.epsilon - most) < 1e-9
        assert largest.records in {(units == unit).sum() for unit, total in spent.items() if total > most - 1e-9}


def test_units_times_epsilon(folder) -> None:
    with Vault.create(folder, batches=[(range(10), [0] * 10, ["a"] * 7 + ["b"] * 3)]) as vault:
        vault.release(laplace(0.5))
        assert vault.ledger().largest_unit == Spent(epsilon=3.5, delta=0.0, records=7, who="unit")
        assert vault.ledger().as_dict()["largest_unit"] == {"epsilon": 3.5, "delta": 0.0, "records": 7}


def test_the_dictionary_is_json_also_with_infinite_epsilon(vault: Vault) -> None:
    assert vault.ledger().largest_unit is None
    vault.release(laplace(1.0), draws=2)
    vault.release(identity(), ids=[1], compose=True)
    told = json.loads(json.dumps(vault.ledger().as_dict(), allow_nan=False))
    assert told["epsilon_per_record"] == "inf"
    assert told["private"] is False
    assert (told["records"], told["released_records"], told["classes"]) == (1000, 1000, 2)
    assert [(part["records"], part["epsilon"]) for part in told["spent"]] == [(1, "inf"), (999, 2.0)]
    release = told["entries"][2]
    assert (release["kind"], release["epsilon"], release["draws"], release["noise"]) == ("released", 2.0, 2, "secure")
    assert release["records"] == 1000
    assert release["previous"] == told["entries"][1]["hash"]
    assert told["head"] == told["entries"][-1]["hash"]
