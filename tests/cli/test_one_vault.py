"""Ways round the total of a label, each with the commands of a user: they end in a refusal, and the total stays."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROWS = 300
LIMIT = ("--set=local.max_epsilon=1",)
JOB: dict[str, Any] = {
    "data": {
        "source": "table",
        "features": [{"path": "shop.csv", "numeric": ["pages"]}],
        "label": {"path": "bank.csv"},
    },
    "privacy": {"mechanism": "discrete", "epsilon": 1.0},
    "model": {"embedding_dim": 2, "bottom": [4], "top": [4]},
    "training": {"batch_size": 100, "epochs": 1, "validation": 0, "patience": 0},
}


class Bank:
    """A label party that is asked for its labels again and again, by whatever job."""

    def __init__(self, tpsl: Any, folder: Path) -> None:
        self.tpsl, self.folder = tpsl, folder
        (folder / "shop.csv").write_text("id,pages\n" + "".join(f"r{row},{row % 7}\n" for row in range(ROWS)))
        (folder / "bank.csv").write_text("id,label\n" + "".join(f"r{row},{self.label(row)}\n" for row in range(ROWS)))

    @staticmethod
    def label(row: int) -> int:
        return row % 7 // 4

    def job(self, name: str = "job.yaml", **data: Any) -> Path:
        """Write the job that another party proposes."""
        (self.folder / name).write_text(yaml.safe_dump({**JOB, "data": {**JOB["data"], **data}}))
        return self.folder / name

    def train(self, job: Path, out: str, *options: object) -> Any:
        return self.tpsl("train", job, *LIMIT, *options, "--out", self.folder / out, "--json")

    def totals(self) -> dict[str, float]:
        """What every label of the vault has spent, by its own ledger and in the list of all."""
        listed = self.tpsl("vault", "ledger", "--json").json()["labels"]
        for label in listed:
            ledger = self.tpsl("vault", "ledger", label["label"], "--json").json()
            assert ledger["epsilon_per_record"] == label["epsilon_per_record"]
        return {label["label"]: label["epsilon_per_record"] for label in listed}


@pytest.fixture
def bank(tpsl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bank:
    monkeypatch.chdir(tmp_path)
    return Bank(tpsl, tmp_path)


def refused(outcome: Any) -> None:
    """A command that fails prints one JSON object, if it was asked for, and exits with 1."""
    assert outcome.status == 1, outcome.stdout + outcome.stderr
    if outcome.stdout:
        assert "error" in json.loads(outcome.stdout)
    assert "Traceback" not in outcome.stderr


def test_a_sum_that_is_permitted_is_the_total_of_both_names(bank: Bank) -> None:
    assert bank.train(bank.job(), "first").json()["total_epsilon"] == 1.0
    turned = bank.job("turned.yaml", class_values=["1", "0"])
    both = bank.train(turned, "second", "--set=local.compose=true", "--set=local.max_epsilon=2").json()
    assert both["total_epsilon"] == 2.0
    assert bank.totals() == {"table-label": 2.0, "table-label-2": 2.0}
    again = bank.train(bank.job(), "first", "--set=local.max_epsilon=2").json()
    assert (again["total_epsilon"], again["epsilon"]) == (2.0, 1.0)


@pytest.mark.parametrize("permitted", [(), ("--set=local.compose=true", *LIMIT)])
def test_labels_that_are_stored_again(bank: Bank, tpsl: Any, permitted: tuple[object, ...]) -> None:
    assert bank.train(bank.job(), "run").json()["total_epsilon"] == 1.0
    tpsl("vault", "add", "--new", "again", "bank.csv", "--json").json()
    for command in (
        ("vault", "release", "again", "--epsilon", 1),
        ("vault", "release", "again", "--epsilon", 1, "--out", "given"),
    ):
        refused(tpsl(*command, *permitted, "--json"))
    assert not Path("given").exists()
    # Releases of the first label are in the total of the second before it has any.
    assert bank.totals() == {"table-label": 1.0, "again": 1.0}


def test_a_second_vault(bank: Bank, tpsl: Any) -> None:
    assert bank.train(bank.job(), "run").json()["total_epsilon"] == 1.0
    tpsl("vault", "backup", "--out", "copy", "--json").json()
    other = bank.folder / "other"
    for command in (
        ("vault", "add", "--new", other, "bank.csv"),
        ("vault", "release", "copy", "--epsilon", 2, "--set=local.compose=true"),
        ("vault", "release", "copy", "--epsilon", 2, "--set=local.compose=true", "--out", "given"),
    ):
        refused(tpsl(*command, "--json"))
    refused(bank.train(bank.job(), "second", "--set=local.compose=true", "--vault", other))
    refused(
        bank.train(bank.job(), "third", "--set=local.compose=true", "--epsilon", 0.5, "--vault", bank.folder / "copy")
    )
    assert not other.exists() and not Path("given").exists()
    assert bank.totals() == {"table-label": 1.0}
    assert tpsl("vault", "ledger", "copy", "--json").json()["epsilon_per_record"] == 1.0


def test_two_servers_that_were_started_before_the_first_release(bank: Bank, programs: Callable[..., Any]) -> None:
    """Both were permitted when they opened their ports; the vault decides when they release."""
    jobs = [bank.job(f"{classes}.yaml", classes=classes) for classes in (2, 3)]
    loopback = ("--set=local.insecure_loopback=true", "--set=local.log=json", "--json", "--out")
    servers = [
        programs(bank.folder, "label", "serve", job, "--listen", "127.0.0.1:0", *LIMIT, *loopback, f"at-{job.stem}")
        for job in jobs
    ]
    addresses = [server.wait_for("listening")["address"] for server in servers]
    assert set(bank.totals().values()) == {0.0}
    clients = []
    for job, address in zip(jobs, addresses, strict=True):
        joining = ("feature", "join", job, "--connect", address, "--party", "feature", "--set=local.wait=5")
        clients.append(programs(bank.folder, *joining, *loopback, f"shop-{job.stem}"))
        clients[-1].outcome()
    assert servers[0].result()["total_epsilon"] == 1.0
    refused(servers[1].outcome())
    refused(clients[1].outcome())
    assert sum(bank.totals().values()) == 2.0, "one release, in the total of both names"
    assert not (bank.folder / "shop-3" / "feature" / "bottom.safetensors").exists()


def test_another_working_directory(bank: Bank, tpsl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    job = bank.job()
    assert bank.train(job, "run").json()["total_epsilon"] == 1.0
    (bank.folder / "elsewhere").mkdir()
    monkeypatch.chdir(bank.folder / "elsewhere")
    refused(bank.train(job, "second", "--epsilon", 0.5))
    assert bank.train(job, "third").json()["total_epsilon"] == 1.0
    assert list(Path.cwd().iterdir()) == []
    assert bank.totals() == {"table-label": 1.0}
