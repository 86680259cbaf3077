import numpy as np
import pytest

from tpsl.mechanisms import laplace
from tpsl.vault import Vault, id_order
from tpsl.vault.statement import digest_of_ids


def test_ids_come_in_the_order_of_their_text_in_parts(folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_order, "_IDS_AT_ONCE", 1000)
    ids = [f"a{number * 7919 % 100_003}" for number in range(70_000)]
    with Vault.create(folder, batches=[(ids, np.zeros(70_000), None)]) as vault:
        assert vault.statement()["ids_digest"] == digest_of_ids(ids)
        vault.release(laplace(1.0), ids=ids[:60_000])
        found, outcomes = [], []
        for part, drawn in vault.released(laplace(1.0)):
            if not found:
                vault.add([(["a0 later"], [0], None)])  # nobody holds the vault between two parts
            found += part
            outcomes.append(drawn)
        assert len(outcomes) > 50
        assert found == sorted(ids[:60_000])
        assert (np.concatenate(outcomes, axis=1)[0] == vault.noisy_labels(laplace(1.0), found).draws[0]).all()
