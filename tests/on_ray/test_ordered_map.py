"""The blinding of keys, computed by a Ray cluster."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tpsl.alignment.group import hashed, multiplied
from tpsl.on_ray.cluster import RayWorkers
from tpsl.on_ray.ordered_map import map_on


def _blinded_by_one_who_dies_once(points: Any, scalar: bytes, died: Path) -> Any:
    if not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return multiplied(points, scalar)


def test_points_are_those_of_one_process_in_the_same_order(cluster: Any, tmp_path: Path) -> None:
    keys = np.random.default_rng(1).integers(0, 256, (7, 16, 32), np.uint8)
    batches = [hashed(batch, b"test") for batch in keys]
    here = [multiplied(batch, b"s" * 32) for batch in batches]
    work = partial(_blinded_by_one_who_dies_once, scalar=b"s" * 32, died=tmp_path / "died")
    there = list(map_on(cluster, RayWorkers(2))(work, iter(batches)))
    assert (tmp_path / "died").exists()
    assert np.array_equal(there, here)


def test_batches_are_taken_as_they_are_needed(cluster: Any) -> None:
    taken: list[int] = []

    def batches() -> Any:
        for number in range(100):
            taken.append(number)
            yield number

    results = map_on(cluster, RayWorkers(1))(abs, batches())
    assert next(results) == 0
    assert taken == [0, 1]


@pytest.mark.parametrize("options", [(), ("--plain",)])
def test_parties_find_their_common_records(cluster: Any, tpsl: Any, tmp_path: Path, options: Any) -> None:
    (tmp_path / "shop.csv").write_text("\n".join(["mail,size", *(f"u{n}@x.org,{n}" for n in range(40))]))
    (tmp_path / "bank.csv").write_text("\n".join(["mail,label", *(f"u{n}@x.org,{n % 2}" for n in range(25, 60))]))
    shop = {"path": str(tmp_path / "shop.csv"), "party": "shop", "numeric": ["size"], "keys": {"email": "mail"}}
    bank = {"path": str(tmp_path / "bank.csv"), "keys": {"email": "mail"}}
    job: dict[str, Any] = {
        "data": {"source": "table", "features": [shop], "label": bank, "alignment": {"mode": "both", "keys": ["email"]}}
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    done = tpsl("align", tmp_path / "job.yaml", "--together", "--ray", "--ray-workers", 2, *options, "--json").json()
    assert [done["parties"][party]["records"] for party in ("label", "shop")] == [15, 15]
    assert done["parties"]["label"]["digest"] == done["parties"]["shop"]["digest"]
