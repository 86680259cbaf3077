"""`tpsl tune`, and the search of two organisations (`--tune` of `tpsl label serve` and `tpsl feature join`)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.ports import free_port

from tpsl.vault import the_vault


@pytest.fixture
def space(tmp_path: Path) -> Path:
    path = tmp_path / "space.yaml"
    rates = [{"feature_optimizer": {"learning_rate": rate}} for rate in (0.001, 0.01)]
    path.write_text(yaml.safe_dump([{"training": rate} for rate in rates]))
    return path


def test_tuning_spends_once_and_writes_the_best_job(
    tpsl: Any, small_job: Path, space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "runs" / f"{small_job.stem}-tuned"
    command = ("tune", small_job, "--space", space)
    shown = tpsl(*command)
    assert shown.status == 0, shown.stderr
    assert "one release for all of them" in shown.stdout
    assert not re.search(r"\b400\b", shown.stdout)
    content = tpsl(*command, "--json").json()
    assert content == json.loads((out / "tune.json").read_text())
    assert [candidate["number"] for candidate in content["candidates"]] == [0, 1]
    assert content["best"]["configuration"] in shown.stdout
    vault = the_vault() / "synthetic"
    assert content["vault"] == str(vault)
    ledger = tpsl("vault", "ledger", "synthetic", "--json").json()
    assert ledger["epsilon_per_record"] == content["total_epsilon"] == content["epsilon"]
    page = tpsl("report", out, "--out", tmp_path / "page.html", "--json").json()
    assert [run["test_auc"] for run in page["runs"]] == [candidate["test_auc"] for candidate in content["candidates"]]
    again = tpsl("train", out / "best.yaml", "--vault", vault, "--out", tmp_path / "run", "--json").json()
    assert again["test_auc"] == content["best"]["test_auc"]


def test_tuning_asks_before_it_releases(tpsl: Any, table_job: Path, space: Path, tmp_path: Path) -> None:
    command = ("tune", table_job, "--out", tmp_path / "tuned", "--space", space)
    assert "local.max_epsilon" in tpsl(*command, "--set=local.max_epsilon=1").error()
    assert not the_vault().exists()
    assert tpsl("train", table_job, "--epsilon", 1, "--out", tmp_path / "run").status == 0
    assert "local.compose=true" in tpsl(*command).error()
    shown = tpsl(*command, "--set=local.compose=true")
    promised = "ε = 3 in all (this run's release: ε = 2): one release for all of them"
    assert shown.facts()["guarantee"] == promised
    assert tpsl(*command, "--json").json()["total_epsilon"] == 3.0  # released already: nothing to compose


def test_what_is_wrong_is_one_sentence(tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("learning_rate: [1, 2]")
    tune = ("tune", small_job, "--out", tmp_path / "out", "--space")
    assert "bad.yaml: a space is a list" in tpsl(*tune, bad).error()
    assert "missing.yaml: cannot be read" in tpsl(*tune, tmp_path / "missing.yaml").error()
    bad.write_text("- {privacy: {epsilon: 8}}")
    assert "configuration 1 of the space: privacy.epsilon must stay" in tpsl(*tune, bad).error()
    bad.write_text("- [")
    assert "bad.yaml: is not YAML" in tpsl(*tune, bad).error()
    started = (*tune[:-1], "--set=local.start_from=runs/monday")
    assert "tuning takes no local.start_from" in tpsl(*started).error()
    statistic = (*tune[:-1], "--set=method=statistic")
    assert "nothing to tune" in tpsl(*statistic).error() and "train it with `tpsl train`" in tpsl(*statistic).error()


ROWS, NEW = 300, 40


def write_tables(folder: Path) -> None:
    """A shop's and a bank's records, and new ones of both."""
    for name, numbers in (("", range(ROWS)), ("new_", range(ROWS, ROWS + NEW))):
        shop = [f"c{n:04d},{('red', 'green', 'blue')[n % 3]},{n % 11}" for n in numbers]
        bank = [f"c{n:04d},{n % 7},{int(n % 11 > 5)}" for n in numbers]
        (folder / f"{name}shop.csv").write_text("\n".join(["id,colour,pages", *shop]))
        (folder / f"{name}bank.csv").write_text("\n".join(["id,income,label", *bank]))


def write_job(folder: Path) -> None:
    shop = {"party": "shop", "path": "shop.csv", "categorical": ["colour"], "numeric": ["pages"]}
    job = {
        "data": {"source": "table", "features": [shop], "label": {"path": "bank.csv", "numeric": ["income"]}},
        "privacy": {"epsilon": 4.0},
        "model": {"embedding_dim": 2, "bottom": [8], "top": [8]},
        "training": {"batch_size": 64, "epochs": 1},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    (folder / "space.yaml").write_text(yaml.safe_dump([{"model": {"members": 2}}, {"model": {"wide": True}}]))


def test_two_programs_search_and_predict_with_the_ensemble(programs: Callable[..., Any], tmp_path: Path) -> None:
    write_tables(tmp_path)
    write_job(tmp_path)
    address = f"127.0.0.1:{free_port()}"

    def both(commands: dict[str, tuple[str, ...]], given: dict[str, tuple[str, ...]]) -> list[Any]:
        doors = {"label": ("--listen", address), "feature": ("--connect", address)}
        running = [
            programs(tmp_path, *commands[party], *own, *doors[party], "--set=local.insecure_loopback=true", "--json")
            for party, own in given.items()
        ]
        return [program.result() for program in running]

    search = ("job.yaml", "--tune", "space.yaml", "--out")
    tuned, kept = both(
        {"label": ("label", "serve"), "feature": ("feature", "join")},
        {"label": (*search, "bank"), "feature": (*search, "shop")},
    )
    assert len(tuned["candidates"]) == len(kept["candidates"]) == 2
    assert not any(name in row for row in kept["candidates"] for name in ("weight", "test_auc", "validation_loss"))
    assert tuned["ensemble"]["test_auc"] is tuned["best"]["test_auc"] is None, "this process ends where a peer sees it"
    tuned = programs(tmp_path, "label", "evaluate", "bank", "--json").result()
    both(
        {"label": ("predict",), "feature": ("predict",)},
        {
            "label": ("bank", "--records", "new_bank.csv", "--out", "scores.csv"),
            "feature": ("shop", "--records", "new_shop.csv"),
        },
    )
    alone = ("tune", "job.yaml", "--space", "space.yaml", f"--set=local.vault={tuned['vault']}", "--out", "one")
    one = programs(tmp_path, *alone, "--json").result()
    assert one["ensemble"] == tuned["ensemble"]
    records = ("--records", "label=new_bank.csv", "--records", "shop=new_shop.csv")
    programs(tmp_path, "predict", "one", *records, "--out", "expected.csv", "--json").result()
    assert (tmp_path / "scores.csv").read_text() == (tmp_path / "expected.csv").read_text()
