"""A party of several workers computes what one worker does, and goes on when one of them is killed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.ports import free_port

from tpsl.data.dataset import load_feature_party
from tpsl.net.failures import PeerMissing
from tpsl.net.messages import Message
from tpsl.run.job import JobError, SearchStep, make_job
from tpsl.run.local import Local
from tpsl.run.one_process import train_together
from tpsl.run.over_network import _connected
from tpsl.run.result import FeatureResult
from tpsl.run.role import FeatureRole
from tpsl.run.run_folder import RunFolder
from tpsl.run.setup import RunSetup
from tpsl.run.stages.collect import CODES, embed_codes
from tpsl.run.vaults import VaultChoice
from tpsl.workers import ALONE, Workers

InWorkers = Callable[..., list[Any]]

SYNTHETIC = {"source": "synthetic", "rows": 1500, "numeric_fields": 3, "categorical_fields": 4, "signal": 2.0}
PLAIN = {"batch_size": 128, "epochs": 2, "checkpoint_every": 4, "validation": 0.1, "averaging": 0.5, "patience": 0}
SMALL = {"embedding_dim": 4, "bottom": [16, 8], "top": [8]}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"training": PLAIN},
    "lazy tables": {"training": {**PLAIN, "averaging": 0}, "model": {"embedding_updates": "lazy"}},
    "all at once": {
        "training": {**PLAIN, "micro_batches": 2, "staleness": 1, "patience": 1, "head": "local"},
        "model": {"members": 2, "wide": True},
    },
    "pre-trained, two draws": {
        "training": {**PLAIN, "pretrain": {"method": "masked", "epochs": 1}},
        "privacy": {"draws": 2},
    },
    "statistic": {"training": PLAIN, "statistic": {"share_codes": True}},
    "handed over, three classes": {"training": {**PLAIN, "exchange": "labels"}, "data": {**SYNTHETIC, "classes": 3}},
}


def trained(workers: Workers, kind: str, folder: str) -> str:
    """Train a job, all of its parties in the process of each worker, and return where."""
    torch.set_num_threads(1)
    parts = KINDS[kind]
    privacy = {"mechanism": "randomized_response", "epsilon": 2.0, "noise_seed": 1, **parts.get("privacy", {})}
    content = {"data": SYNTHETIC, **parts, "privacy": privacy, "model": {**SMALL, **parts.get("model", {})}}
    run = Path(folder) / f"{kind}, {workers.count} worker(s)"
    setup = RunSetup(make_job(content, {}, "test"), RunFolder(run), workers=workers)
    train_together(setup, VaultChoice(scratch=True))
    return str(run)


def all_trained(workers: Workers, folder: str) -> list[str]:
    return [trained(workers, kind, folder) for kind in KINDS]


def weights(run: Path) -> dict[str, torch.Tensor]:
    found = {}
    for file in sorted(run.glob("*/*.safetensors")):
        found |= {f"{file.relative_to(run)}:{name}": tensor for name, tensor in load_file(file).items()}
    assert found
    return found


@pytest.fixture(scope="module")
def in_one_and_in_two(in_workers: InWorkers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workers")
    all_trained(ALONE, str(folder))
    for found in in_workers(2, all_trained, str(folder)):
        if isinstance(found, Exception):
            raise found
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_two_workers_compute_what_one_does(in_one_and_in_two: Path, kind: str) -> None:
    one, two = (weights(in_one_and_in_two / f"{kind}, {count} worker(s)") for count in (1, 2))
    assert one.keys() == two.keys()
    # φ is rounded to integers, so that the least difference of an embedding may become one of the noisy statistic.
    for name, weight in ((name, weight) for name, weight in one.items() if "statistic_head" not in name):
        torch.testing.assert_close(two[name], weight, rtol=0, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"record_steps": 1}, "a transcript is recorded"),
        ({"search": SearchStep(1, ())}, "it is one of a search"),
    ],
)
def test_what_several_workers_cannot_do_is_refused(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    job = make_job({"data": SYNTHETIC, "training": change.pop("training", {})}, {}, "test")
    setup = RunSetup(job, RunFolder(tmp_path), workers=Workers(1, 2), **change)
    with pytest.raises(JobError, match=f"^this run is for one worker, not for 2: {reason}"):
        train_together(setup, VaultChoice(scratch=True))


def _coded(workers: Workers, folder: str) -> None:
    job = make_job({"data": SYNTHETIC, "statistic": {"share_codes": True}}, {}, "test")
    role = FeatureRole(RunSetup(job, RunFolder(Path(folder)), workers=workers), load_feature_party(job.data, "feature"))
    if workers.is_first:
        role.folder.mkdir(parents=True)
    for _ in range(20):
        workers.barrier()
        embed_codes(role, role.side.features)
        workers.barrier()
        if workers.is_first:
            (role.folder / CODES).unlink()


def test_workers_do_not_write_the_same_codes_at_the_same_time(in_workers: InWorkers, tmp_path: Path) -> None:
    assert in_workers(3, _coded, str(tmp_path)) == [None] * 3


def _unconfirmed(workers: Workers, folder: str, port: int) -> None:
    """Be a worker of a feature party that has finished, and whose label party does not come back to confirm it."""
    job = make_job({"data": SYNTHETIC}, {}, "test")
    side = load_feature_party(job.data, "feature")
    role = FeatureRole(RunSetup(job, RunFolder(Path(folder)), workers=workers), side)
    if workers.is_first:
        role.folder.mkdir(parents=True)
        role.run.finish_party(FeatureResult(folder, "feature", job.digest(), len(side.train), 1, 1, 1.0))
    workers.barrier()
    local = Local(connect=f"127.0.0.1:{port}", silence=0.5, wait=0.5)
    with _connected(role, local, None) as label:
        label.agree({"feature": Message()})
        raise AssertionError("nobody is there")


def test_a_finished_party_that_nobody_confirms_ends_well_at_all_workers(in_workers: InWorkers, tmp_path: Path) -> None:
    assert in_workers(2, _unconfirmed, str(tmp_path / "run"), free_port()) == [None, None]
    missing = in_workers(2, _unfinished, free_port())
    assert [type(error) for error in missing] == [PeerMissing, PeerMissing]


def _unfinished(workers: Workers, port: int) -> None:
    """Ask a label party that is not there."""
    job = make_job({"data": SYNTHETIC}, {}, "test")
    run = RunFolder(Path(os.environ["TPSL_HOME"]) / "unfinished")
    role = FeatureRole(RunSetup(job, run, workers=workers), load_feature_party(job.data, "feature"))
    with _connected(role, Local(connect=f"127.0.0.1:{port}", silence=0.5, wait=0.5), None) as label:
        label.agree({"feature": Message()})
