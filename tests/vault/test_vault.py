"""Sequences of operations against a small model of what a vault must say."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tpsl.mechanisms import DiscreteLaplace, identity, laplace, randomized_response
from tpsl.vault import ReleasePolicy, StatisticPlan, Vault, VaultError

MECHANISMS = [laplace(1.0), laplace(0.5), randomized_response(1.0), identity()]
STATISTIC = StatisticPlan(DiscreteLaplace(400), 100, 2)
ANY_COST = {"max_epsilon": float("inf"), "not_private": True}
Series = tuple[int, int, int | None]  # which mechanism, draws, seed
Statistic = tuple[str, int, tuple[int, ...]]  # "statistic", which vectors, records in order

some_ids = st.lists(st.integers(0, 30), unique=True, max_size=12)
series = st.tuples(st.integers(0, 3), st.integers(1, 2), st.sampled_from([None, None, 7]))


class VaultAgainstModel(RuleBasedStateMachine):
    """Records with labels and units in dictionaries; the outcomes that a read has shown must never change."""

    @initialize()
    def create(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.vault = Vault.create(Path(self.folder.name) / "vault")
        self.labels: dict[int, int] = {}
        self.released: dict[int, set[Series | Statistic]] = {}
        self.shown: dict[object, object] = {}
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
        self.labels |= given
        self.entries += bool(self.labels)

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

    @rule(ids=some_ids, vectors=st.integers(1, 2), compose=st.booleans())
    def release_statistic(self, ids: list[int], vectors: int, compose: bool) -> None:
        asked = [id for id in ids if id in self.labels]
        if not asked:
            return
        what = ("statistic", vectors, tuple(asked))
        elsewhere = {id for id in asked if self.released.get(id)} if what not in self.shown else set()
        rows = [np.full((len(asked), 2), vectors)]
        policy = ReleasePolicy(compose=compose, **ANY_COST)
        if elsewhere and not compose:
            try:
                self.vault.release_statistic(STATISTIC, asked, rows, policy=policy)
            except VaultError as error:
                assert str(error).startswith(f"{len(elsewhere)} records were released before")
                return
            raise AssertionError("a second release was not refused")
        values = self.vault.release_statistic(STATISTIC, asked, rows, policy=policy).values.tolist()
        self.entries += what not in self.shown
        assert self.shown.setdefault(what, values) == values
        for id in asked:
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
        spent = {id: sum(map(cost, self.released.get(id, ()))) for id in self.labels}
        ledger = self.vault.ledger()
        assert len(ledger.entries) == self.entries
        assert (ledger.records, ledger.released_records) == (len(self.labels), len(self.released))
        assert np.isclose(ledger.epsilon_per_record, max(spent.values(), default=0.0), rtol=1e-12)
        assert ledger.private == all(
            what[0] == "statistic" or (what[0] != 3 and what[2] is None)
            for under in self.released.values()
            for what in under
        )
        if self.labels:
            units = [sum(spent[id] for id in self.labels if id % 3 == unit) for unit in range(3)]
            assert np.isclose(ledger.largest_unit.epsilon, max(units), rtol=1e-12)


def cost(what: Series | Statistic) -> float:
    return 0.25 if what[0] == "statistic" else MECHANISMS[what[0]].epsilon * what[1]


TestVault = VaultAgainstModel.TestCase
TestVault.settings = settings(
    max_examples=40,
    stateful_step_count=20,
    suppress_health_check=list(HealthCheck),
)
