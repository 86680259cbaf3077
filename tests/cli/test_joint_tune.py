"""Two organisations search, and predict with the ensemble: `label tune` and `feature tune`, each a process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from tests.ports import free_port

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
