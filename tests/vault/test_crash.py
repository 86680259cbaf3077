"""Crash drill: processes that create, add, release and read are killed with SIGKILL at random moments.

After each kill the vault must open, verify, have lost nothing, and give out the very noisy labels and statistics that
anyone ever saw.
TPSL_DRILL_KILLS says how many kills (12 by default).
"""

import hashlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.vault_labels import true_labels

from tpsl.mechanisms import DiscreteLaplace, laplace, randomized_response
from tpsl.vault import ReleasePolicy, StatisticPlan, Vault, VaultError

KILLS = int(os.environ.get("TPSL_DRILL_KILLS", "12"))
KILLS_PER_VAULT = 4
ONCE, TWICE = laplace(1.0), randomized_response(0.5)
TOGETHER, COMPOSE = StatisticPlan(DiscreteLaplace(400), 100, 3), ReleasePolicy(compose=True)

# The worker works until it is killed. It notes what it has seen only after it has seen it.
WORKER = """
import hashlib
import numpy as np
from tpsl.mechanisms import DiscreteLaplace, laplace, randomized_response
from tpsl.vault import ReleasePolicy, StatisticPlan, Vault, VaultError

once, twice = laplace(1.0), randomized_response(0.5)
together, compose = StatisticPlan(DiscreteLaplace(400), 100, 3), ReleasePolicy(compose=True)

def records(start, stop):
    ids = np.arange(start, stop)
    return ids, ids * 7 % 3 % 2, ids // 5

def note(kind, count, *draws):
    with open(seen, "a") as file:
        file.write(f"{kind} {count} {hashlib.sha256(b''.join(d.tobytes() for d in draws)).hexdigest()}\\n")

def work(vault):
    vault.release(once)
    note("once", len(vault), *vault.noisy_labels(once, range(len(vault))).draws)
    newest = np.arange(0 if len(vault) == 3000 else len(vault) - 700, len(vault))
    rows = newest[:, None] * [1, 2, 3] % 50
    note("together", len(vault), vault.release_statistic(together, newest, [rows], policy=compose).values)
    vault.release(twice, draws=2, ids=range(0, len(vault), 2), compose=True)
    note("twice", len(vault), *vault.noisy_labels(twice, range(0, len(vault), 2), draws=2).draws)
    vault.add([records(len(vault), len(vault) + 700)])

print("ready", flush=True)
try:
    vault = Vault.create(place, batches=[records(0, 3000)])
except VaultError:
    vault = Vault.open(place)
while True:
    work(vault)
"""


def digest(draws: tuple[np.ndarray, ...]) -> str:
    return hashlib.sha256(b"".join(draw.tobytes() for draw in draws)).hexdigest()


def check(folder: Path, seen: Path) -> bool:
    """Compare the vault with everything that was ever seen of it; False while it has not come into being."""
    lines = [line.split() for line in seen.read_text().splitlines(keepends=True) if line.endswith("\n")]
    try:
        vault = Vault.open(folder)
    except VaultError as error:
        assert "no such folder" in str(error) or "no file" in str(error) or "was interrupted" in str(error)
        assert not lines, "a vault was lost"
        return False
    with vault:
        assert vault.verify() == []
        ids = np.arange(len(vault))
        assert (true_labels(vault, ids) == ids * 7 % 3 % 2).all()
        assert all(int(count) <= len(vault) for _, count, _ in lines), "records were lost"
        for kind, count, told in lines:
            if kind == "once":
                draws = vault.noisy_labels(ONCE, ids[: int(count)]).draws
            elif kind == "together":
                newest = ids[0 if count == "3000" else int(count) - 700 : int(count)]
                rows = newest[:, None] * [1, 2, 3] % 50
                draws = (vault.release_statistic(TOGETHER, newest, [rows], policy=COMPOSE).values,)
            else:
                draws = vault.noisy_labels(TWICE, ids[: int(count) : 2], draws=2).draws
            assert digest(draws) == told, f"what was released of the first {count} records changed"
        ledger = vault.ledger()
        assert ledger.private
        one, two, three = ONCE.epsilon, ONCE.epsilon + 0.25, ONCE.epsilon + 0.25 + 2 * TWICE.epsilon
        assert ledger.epsilon_per_record in (0.0, one, two, three), "something was drawn twice"
        batches = 1 + (len(vault) - 3000) // 700
        assert [entry.kind for entry in ledger.entries].count("statistic") in (batches - 1, batches)
    return True


def wait_for_more(file: Path, than: int) -> None:
    patience = time.monotonic() + 120
    while file.stat().st_size <= than:
        assert time.monotonic() < patience, "the worker does nothing"
        time.sleep(0.002)


@pytest.mark.drill
def test_a_kill_at_any_moment_redraws_nothing_and_loses_nothing(
    tmp_path: Path, fork: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    random_moment = random.Random(0)
    existed = 0
    for kill in range(KILLS):
        vault, seen = (tmp_path / f"{name}-{kill // KILLS_PER_VAULT}" for name in ("vault", "seen"))
        seen.touch()
        monkeypatch.setenv("TPSL_HOME", str(tmp_path / f"home-{kill // KILLS_PER_VAULT}"))
        worker = fork(WORKER, tmp_path, place=str(vault), seen=str(seen))
        wait_for_more(worker.stdout, than=0)
        if kill % 2:  # on every other kill the vault has certainly come into being, however slow the machine
            wait_for_more(seen, than=seen.stat().st_size)
        time.sleep(random_moment.uniform(0, 0.15))  # in which it does its work about five times
        assert worker.status() is None, worker.stderr.read_text()
        worker.signal(signal.SIGKILL)
        assert worker.status(60) == -signal.SIGKILL
        existed += check(vault, seen)
    assert existed >= KILLS // 2


# A child of this process kills itself before the next statement that it sends to the database, then the one after it.
KILLED_AT_EACH_STATEMENT = """
import os, signal
import numpy as np
from tpsl.vault import StatisticPlan, Vault
from tpsl.mechanisms import DiscreteGaussian

plan, rows = StatisticPlan(DiscreteGaussian(10**8, 1e-6), 100, 3), np.arange(300).reshape(100, 3)

def release(kill_at):
    vault, sent = Vault.open(place), 0

    def before(statement):
        nonlocal sent
        sent += 1
        if sent == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    vault._store.connection.set_trace_callback(before)
    return vault.release_statistic(plan, range(100), (rows[at : at + 50] for at in (0, 50))).values

for kill_at in range(1, 1000):
    child = os.fork()
    if not child:
        release(kill_at)
        os._exit(0)
    killed = os.waitpid(child, 0)[1] == signal.SIGKILL
    with Vault.open(place) as vault:
        kinds = [entry.kind for entry in vault.ledger().entries]
        assert vault.verify() == []
        assert kinds.count("statistic") == (0 if killed else 1), kinds
    if not killed:
        break
seen = {release(0).tobytes() for _ in range(2)}
print(kill_at - 1, len(seen))
"""


def test_a_statistic_that_is_killed_at_any_statement_is_whole_or_absent(
    tmp_path: Path, fork: Callable[..., Any]
) -> None:
    place = tmp_path / "vault"
    Vault.create(place, batches=[(np.arange(100), np.arange(100) % 2, None)]).close()
    worker = fork(KILLED_AT_EACH_STATEMENT, tmp_path, place=str(place))
    assert worker.status(120) == 0, worker.stderr.read_text()
    kills, different = map(int, worker.stdout.read_text().split())
    assert kills > 20
    assert different == 1
