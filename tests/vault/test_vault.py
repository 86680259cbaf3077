"""Sequences of operations against a small model of what a vault must say."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tpsl.mechanisms import Mechanism, identity, laplace, randomized_response
from tpsl.vault import Vault, VaultError

MECHANISMS = [laplace(1.0), laplace(0.5), randomized_response(1.0), identity()]
Series = tuple[int, int, int | None]  # which mechanism, draws, seed

some_ids = st.lists(st.integers(0, 30), unique=True, max_size=12)
series = st.tuples(st.integers(0, 3), st.integers(1, 2), st.sampled_from([None, None, 7]))


class VaultAgainstModel(RuleBasedStateMachine):
    """Records with labels and units in dictionaries; the outcomes that a read has shown must never change."""

    @initialize()
    def create(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.vault = Vault.create(Path(self.folder.name) / "vault")
        self.labels: dict[int, int] = {}
        self.released: dict[int, set[Series]] = {}
        self.shown: dict[tuple[int, Series], tuple[int, ...]] = {}
        self.entries = 1

    def teardown(self) -> None:
        if hasattr(self, "vault"):
            assert self.vault.verify() == []
            self.vault.close()
            self.folder.cleanup()

    @rule(ids=some_ids, bits=st.integers(0, 2**12 - 1))
    def add(self, ids: list[int], bits: int) -> None:
        labels = [bits >> i & 1 for i in range(len(ids))]
        given = dict(zip(ids, labels, strict=True))
        known = given.keys() & self.labels.keys()
        changed = {id for id in known if self.labels[id] != given[id]}
        added = self.vault.add([(ids, labels, [id % 3 for id in ids])])
        assert added.new == len(ids) - len(known)
        assert added.changed == len(changed)
        assert added.unchanged == len(known - changed)
        assert added.changed_after_release == sum(id in self.released for id in changed)
        self.entries += bool(added.new or added.changed)
        self.labels |= given

    @rule(what=series, ids=st.one_of(st.none(), some_ids), compose=st.booleans())
    def release(self, what: Series, ids: list[int] | None, compose: bool) -> None:
        wanted = set(self.labels if ids is None else ids) & self.labels.keys()
        missing = {id for id in wanted if what not in self.released.get(id, set())}
        elsewhere = {id for id in missing if self.released.get(id)}
        request = {"draws": what[1], "seed": what[2], "compose": compose}
        asked = None if ids is None else [id for id in ids if id in self.labels]
        if elsewhere and not compose:
            try:
                self.vault.release(MECHANISMS[what[0]], ids=asked, **request)
            except VaultError as error:
                assert str(error).startswith(f"{len(elsewhere)} records were released before")
                return
            raise AssertionError("a second release was not refused")
        report = self.vault.release(MECHANISMS[what[0]], ids=asked, **request)
        assert (report.requested, report.released, report.composed) == (len(wanted), len(missing), len(elsewhere))
        self.entries += bool(missing)
        for id in missing:
            self.released.setdefault(id, set()).add(what)

    @rule(what=series)
    def read(self, what: Series) -> None:
        ids = [id for id, under in self.released.items() if what in under]
        noisy = self.vault.noisy_labels(MECHANISMS[what[0]], ids, draws=what[1], seed=what[2])
        for id, outcome in zip(ids, zip(*(draw.tolist() for draw in noisy.draws), strict=True), strict=True):
            assert self.shown.setdefault((id, what), outcome) == outcome

    @rule()
    def reopen(self) -> None:
        self.vault.close()
        self.vault = Vault.open(self.vault.path)

    @invariant()
    def the_ledger_says_what_was_spent(self) -> None:
        if not hasattr(self, "vault"):
            return
        spent = {id: sum(cost(MECHANISMS[m], draws) for m, draws, _ in self.released.get(id, ())) for id in self.labels}
        ledger = self.vault.ledger()
        assert len(ledger.entries) == self.entries
        assert (ledger.records, ledger.released_records) == (len(self.labels), len(self.released))
        assert np.isclose(ledger.epsilon_per_record, max(spent.values(), default=0.0), rtol=1e-12)
        assert ledger.private == all(
            seed is None and m != 3 for under in self.released.values() for m, _, seed in under
        )
        if self.labels:
            units = [sum(spent[id] for id in self.labels if id % 3 == unit) for unit in range(3)]
            assert np.isclose(ledger.largest_unit.epsilon, max(units), rtol=1e-12)


def cost(mechanism: Mechanism, draws: int) -> float:
    return mechanism.epsilon * draws


TestVault = VaultAgainstModel.TestCase
TestVault.settings = settings(
    max_examples=40,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
