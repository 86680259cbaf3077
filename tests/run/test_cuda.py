"""Training on a GPU: everything that the CPU does, resumed and in two processes to the bit.

Needs a CUDA device; without one these tests are skipped. They need PyTorch, NumPy, PyArrow and what the package itself
imports to train, no command line and no data from elsewhere.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
import yaml
from tests.ports import free_port
from torch import nn

from tpsl.attacks import run_attacks
from tpsl.data.dataset import load
from tpsl.data.features import Features
from tpsl.model.trained import TrainedModel
from tpsl.models.halves import compute_in
from tpsl.models.model_config import Precision
from tpsl.net.asking import AtHome
from tpsl.registry import ExtensionError
from tpsl.run.job import Job, make_job
from tpsl.run.observer import UNWATCHED, Watching
from tpsl.run.one_process import train, train_together
from tpsl.run.own_parts import OwnParts
from tpsl.run.run_folder import NOT_PRIVATE, RunFolder
from tpsl.run.setup import RunSetup
from tpsl.run.transcript import Trajectory, Transcript
from tpsl.run.vaults import VaultChoice
from tpsl.vault import NO_LIMITS
from tpsl_research.defences import Defence, DefenceName, defended

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device to train on")

DEVICE = torch.device("cuda")
PRETRAIN = {"method": "masked", "epochs": 1}
ROWS = 600


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The data part of a job: two feature parties, and a label party with features of its own."""
    folder, numbers = tmp_path_factory.mktemp("tables"), np.random.default_rng(0)
    ids = [f"record {row}" for row in range(ROWS)]
    x = numbers.normal(size=(ROWS, 3))
    categories = numbers.integers(0, 5, size=(ROWS, 3)).astype(str)
    labels = (x.sum(axis=1) + numbers.normal(size=ROWS) > 0).astype(np.int64)
    files: list[dict[str, Any]] = []
    for column, party in enumerate(("bank", "shop", "label")):
        content = {"id": ids, "number": x[:, column], "category": categories[:, column]}
        if party == "label":
            content["label"] = labels
        path = folder / f"{party}.parquet"
        pa.parquet.write_table(pa.table(content), path)
        files.append({"path": str(path), "party": party, "numeric": ["number"], "categorical": ["category"]})
    return {"source": "table", "features": files[:2], "label": files[2]}


def job(data: dict[str, Any] | None = None, model: dict[str, Any] | None = None, **training: Any) -> Job:
    synthetic = {"source": "synthetic", "rows": ROWS, "numeric_fields": 3, "categorical_fields": 3, "signal": 3.0}
    content = {
        "data": data or synthetic,
        "privacy": {"mechanism": "discrete", "epsilon": 2.0},
        "model": {"embedding_dim": 4, "bottom": [16, 8], "top": [8], **(model or {})},
        "training": {"batch_size": 64, "epochs": 2, "checkpoint_every": 3, "patience": 0, **training},
    }
    return make_job(content, {}, "test")


def trained(run: Path) -> dict[str, bytes]:
    """All weights, what crossed the border, and predictions."""
    patterns = ("**/*.safetensors", "*/transcript/*", "label/trajectory.*")
    found = {str(path.relative_to(run)): path.read_bytes() for pattern in patterns for path in run.glob(pattern)}
    # Checkpoints of a run that was interrupted lie at other steps.
    return {name: content for name, content in found.items() if "checkpoints" not in name}


JOBS: dict[str, dict[str, Any]] = {
    "plain": {},
    "members": {"model": {"members": 3}, "averaging": 0.9},
    "wide": {"model": {"wide": True, "members": 2}, "validation": 0.2},
    "local head": {"head": "local", "pretrain": PRETRAIN, "validation": 0.2, "patience": 1},
    "lazy embeddings": {"model": {"embedding_updates": "lazy"}},
    "run ahead": {"staleness": 2, "micro_batches": 2, "wire": "float16"},
    "all of it": {
        "model": {"wide": True, "members": 2},
        **{"head": "local", "pretrain": PRETRAIN, "validation": 0.2, "averaging": 0.9},
    },
    "own halves": {
        "model": {"cut": {"bank": 5}},
        "feature_optimizer": {"name": "NAdam", "schedule": {"name": "StepLR", "arguments": {"step_size": 3}}},
        "label_optimizer": {"name": "RMSprop", "arguments": {"momentum": 0.9}},
        "staleness": 1,
    },
}


class Half(nn.Module):
    """A half with buffers that change in every step; the number of a record alone is its input."""

    def __init__(self, width: int, inputs: Features) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, width))

    def forward(self, categories: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layers(numbers)
        return output


def own_parts(name: str, made: Callable[[nn.Module], nn.Module] = lambda half: half) -> dict[str, OwnParts]:
    if name != "own halves":
        return {}

    def bottom(width: int, inputs: Features) -> nn.Module:
        return made(Half(width, inputs))

    def top(cut: int, classes: int) -> nn.Module:
        return made(nn.Sequential(nn.Linear(cut, 8), nn.ELU(), nn.Linear(8, 1)))

    return {"bank": OwnParts(bottom=bottom), "label": OwnParts(bottom=bottom, top=top)}


def compiled(half: nn.Module) -> nn.Module:
    half.compile(dynamic=False)
    return half


@pytest.mark.parametrize("name", JOBS)
def test_a_run_is_repeated_and_resumed_to_the_bit(tmp_path: Path, tables: dict[str, Any], name: str) -> None:
    agreed = job(tables, **JOBS[name])
    data, vault, own = load(agreed.data), tmp_path / "vault", own_parts(name)
    train(agreed, tmp_path / "whole", vault=vault, record_steps=10**9, data=data, own=own, device=DEVICE)

    class Stop(Exception):
        pass

    def stop(done: int, total: int, note: str) -> None:
        if done == 10 and note.startswith("epoch"):
            raise Stop

    broken = tmp_path / "broken"
    with pytest.raises(Stop):
        train(
            agreed,
            broken,
            vault=vault,
            record_steps=10**9,
            data=data,
            own=own,
            device=DEVICE,
            watching=Watching(progress=stop),
        )
    notices: list[str] = []
    train(
        agreed,
        broken,
        vault=vault,
        record_steps=10**9,
        data=data,
        own=own,
        device=DEVICE,
        watching=Watching(notice=notices.append),
    )
    assert "resuming after step 9" in notices
    expected, found = trained(tmp_path / "whole"), trained(broken)
    assert {path for path in expected if path.endswith(".f32")} >= {"label/trajectory.f32"}
    assert found.keys() == expected.keys()
    assert [path for path in expected if found[path] != expected[path]] == []
    assert (RunFolder(broken).local_head() is not None) == (agreed.training.head == "local")


SGD = {"feature_optimizer": {"name": "sgd"}, "label_optimizer": {"name": "sgd"}}
ADAGRAD = {"feature_optimizer": {"name": "adagrad"}, "label_optimizer": {"name": "adagrad"}}
LAZY: dict[str, Any] = {"model": {"embedding_updates": "lazy"}}
HUNDRED_STEPS = {"epochs": 14, "checkpoint_every": 30}
JOINT_JOBS: dict[str, dict[str, Any]] = {
    **{name: JOBS[name] for name in ("plain", "members", "wide", "all of it")},
    "sgd": {**SGD, **HUNDRED_STEPS},
    "sgd, lazy": {**SGD, **LAZY, **HUNDRED_STEPS},
    "adagrad": {**ADAGRAD, **HUNDRED_STEPS},
    "adagrad, lazy": {**ADAGRAD, **LAZY, **HUNDRED_STEPS},
    "adam": HUNDRED_STEPS,
    "adam, lazy": {**LAZY, **HUNDRED_STEPS},
    "parts, lazy": {"micro_batches": 3, **LAZY},
    "parts": {"micro_batches": 3, "wire": "bfloat16", "checkpoint_every": 17},
    "eight bits, in order of arrival": {"wire": "int8", "order": "arrival", "validation": 0.2, "averaging": 0.9},
}


@pytest.fixture
def precision(request: pytest.FixtureRequest) -> Iterator[Precision]:
    """In which precision this process computes within a test."""
    compute_in(request.param)
    yield request.param
    compute_in("float32")


IN_BF16 = ["wide", "all of it", "sgd, lazy", "adagrad", "parts, lazy", "eight bits, in order of arrival"]


class InMessages(AtHome):
    """Brings every question to the label party, so that no step is taken without one."""


@pytest.mark.parametrize(
    "name, precision",
    [*((name, "float32") for name in JOINT_JOBS), *((name, "bf16") for name in IN_BF16)],
    indirect=["precision"],
)
def test_steps_of_all_parties_at_once_have_the_bits_of_messages(
    tmp_path: Path, tables: dict[str, Any], name: str, precision: Precision
) -> None:
    """And a run that was interrupted those of one that was not."""
    agreed, notices = job(tables, **JOINT_JOBS[name]), list[str]()
    data, choice = load(agreed.data), VaultChoice(tmp_path / "vault")

    class Stop(Exception):
        pass

    def stop(done: int, total: int, note: str) -> None:
        if done >= 10 and note.startswith("epoch"):
            raise Stop

    def trained_in(run: str, watching: Watching = UNWATCHED, ask_label: type[AtHome] = AtHome) -> dict[str, bytes]:
        train_together(
            RunSetup(agreed, RunFolder(tmp_path / run), device=DEVICE, watching=watching),
            choice,
            data,
            ask_label=ask_label,
        )
        return trained(tmp_path / run)

    expected = trained_in("messages", ask_label=InMessages)
    assert trained_in("at once", Watching(notice=notices.append)) == expected
    assert not [notice for notice in notices if "GPU" in notice]
    with pytest.raises(Stop):
        trained_in("broken", Watching(progress=stop))
    assert trained_in("broken") == expected


def test_what_cannot_be_done_at_once_is_said(tmp_path: Path) -> None:
    notices: list[str] = []
    train(job(staleness=1), tmp_path / "run", device=DEVICE, watching=Watching(notice=notices.append))
    assert "a step on the GPU takes longer than it could: with training.staleness a feature party runs ahead" in notices


def test_a_half_that_no_graph_can_hold_takes_its_steps_one_by_one(tmp_path: Path) -> None:
    class Curious(nn.Linear):
        def forward(self, categories: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
            output = super().forward(numbers)
            return output if float(output.detach().sum()) < 1e9 else -output

    agreed, notices = job(**SGD), list[str]()
    data, choice = load(agreed.data), VaultChoice(tmp_path / "vault")
    own = {"feature": OwnParts(bottom=lambda width, inputs: Curious(inputs.numeric.shape[1], width))}
    for run, ask_label in (("messages", InMessages), ("at once", AtHome)):
        setup = RunSetup(agreed, RunFolder(tmp_path / run), own, DEVICE, watching=Watching(notice=notices.append))
        train_together(setup, choice, data, ask_label=ask_label)
    assert trained(tmp_path / "messages") == trained(tmp_path / "at once")
    (said,) = [notice for notice in notices if "GPU" in notice]
    assert said.endswith("a half of a party's own waits for the device in its forward or backward pass")


@pytest.mark.parametrize("precision", ["float32", "bf16"], indirect=True)
def test_compiled_halves_are_resumed_to_the_bit(tmp_path: Path, tables: dict[str, Any], precision: Precision) -> None:
    """The last batch of an epoch is smaller, so that two sizes are compiled: here in one order, there in another."""
    agreed, notices = job(tables, model={"cut": {"bank": 5}}, **SGD), list[str]()
    data, vault, own = load(agreed.data), tmp_path / "vault", own_parts("own halves", compiled)

    class Stop(Exception):
        pass

    def stop(done: int, total: int, note: str) -> None:
        if done >= 10 and note.startswith("epoch"):
            raise Stop

    def trained_in(run: str, **watching: Any) -> dict[str, bytes]:
        watched = Watching(notice=notices.append, **watching)
        train(agreed, tmp_path / run, vault=vault, data=data, own=own, device=DEVICE, watching=watched)
        return trained(tmp_path / run)

    expected = trained_in("whole")
    with pytest.raises(Stop):
        trained_in("broken", progress=stop)
    torch._dynamo.reset()
    assert trained_in("broken") == expected
    assert not [notice for notice in notices if "GPU" in notice]


@pytest.mark.parametrize(
    "name, precision", [("plain", "float32"), ("all of it", "float32"), ("plain", "bf16")], indirect=["precision"]
)
def test_the_gpu_learns_what_the_cpu_learns(
    tmp_path: Path, tables: dict[str, Any], name: str, precision: Precision
) -> None:
    """Not to the bit: sums have another order. With pre-training the halves drift apart a little further."""
    agreed = job(tables, **{**JOBS[name], "pretrain": None})
    data, vault = load(agreed.data), tmp_path / "vault"
    for run, device in (("gpu", DEVICE), ("cpu", None)):
        train(agreed, tmp_path / run, vault=vault, data=data, device=device)
    one, other = (TrainedModel.open(tmp_path / run).predict_rows(data) for run in ("gpu", "cpu"))
    np.testing.assert_allclose(one, other, atol=2e-3 if precision == "float32" else 2e-2)


def test_dropout_on_the_gpu_is_refused(tmp_path: Path) -> None:
    own = {"label": OwnParts(top=lambda cut, classes: nn.Sequential(nn.Dropout(0.5), nn.Linear(cut, 1)))}
    with pytest.raises(ExtensionError, match="draws random numbers from PyTorch's generator"):
        train(job(), tmp_path / "run", vault=tmp_path / "vault", own=own, device=DEVICE)


def test_a_recorded_run_is_attacked(tmp_path: Path) -> None:
    agreed = job()
    data, run = load(agreed.data), tmp_path / "run"
    train(agreed, run, vault=tmp_path / "vault", record_steps=10**9, data=data, device=DEVICE)
    assert len(Transcript(run / "feature" / "transcript")) == RunFolder(run).result().steps  # type: ignore[union-attr]
    Trajectory(run / "label")
    report = run_attacks(run, data.labels, features=data.feature_parties)
    assert {"norm", "spectral", "shortest_distance", "likelihood"} <= {attack.name for attack in report.attacks}
    assert all(0 <= attack.auc <= 1 for attack in report.attacks)


def test_many_classes(tmp_path: Path) -> None:
    data = {"source": "synthetic", "rows": ROWS, "numeric_fields": 3, "categorical_fields": 2, "classes": 4}
    agreed = job(data, head="local")
    result = train(agreed, tmp_path / "run", vault=tmp_path / "vault", record_steps=10**9, device=DEVICE)
    assert result.classes == 4 and 0 < result.test_auc < 1
    assert (tmp_path / "run" / "label" / NOT_PRIVATE / "local_head.safetensors").exists()


def test_a_feature_party_that_gets_nothing_back(tmp_path: Path, tables: dict[str, Any]) -> None:
    content = job(tables, head="local", pretrain=PRETRAIN).model_dump(mode="json", exclude={"privacy"})
    agreed = make_job({**content, "privacy": {"gradients": "none"}}, {}, "test")
    train(agreed, tmp_path / "run", vault=tmp_path / "vault", device=DEVICE)
    assert RunFolder(tmp_path / "run").local_head() is not None


@pytest.mark.parametrize("name", ["gaussian-cut", "max-norm", "marvell"])
def test_a_label_party_of_the_callers_own_is_on_the_device(tmp_path: Path, name: DefenceName) -> None:
    content = {**job().model_dump(mode="json"), "privacy": {"mechanism": "none", "estimator": "linear"}}
    agreed, made = make_job(content, {}, "test"), []
    build = defended(Defence(name), seed=1)

    def own(*arguments: Any) -> Any:
        made.append(build(*arguments))
        return made[-1]

    setup = RunSetup(agreed, RunFolder(tmp_path / "run"), device=DEVICE, record_steps=4)
    train_together(setup, VaultChoice(tmp_path / "vault", policy=NO_LIMITS), make_label_party=own)
    assert [type(party).__name__ for party in made] == ["DefendedLabelParty"]
    assert next(made[0].top.parameters()).device.type == DEVICE.type


PARTY = """
import sys
from pathlib import Path

from tpsl.run.after_training import evaluate_run
from tpsl.run.job import load_job
from tpsl.run.local import Local
from tpsl.run.observer import Watching
from tpsl.run.own_parts import OwnParts
from tpsl.run.run_folder import RunFolder
from tpsl.run.over_network import join, serve

party, job, address, vault, run, device = sys.argv[1:]
shared = dict(watching=Watching(notice=print))
shared |= dict(record_steps=10**9, insecure_loopback=True)
if party == "label":
    local = Local(listen=address, vault=Path(vault), device=device, wait=60)
    serve(load_job(Path(job)), local, Path(run), **shared)
    evaluate_run(RunFolder(Path(run)), local)
else:
    join(load_job(Path(job)), party, Local(connect=address, device=device, wait=60), Path(run), **shared)
"""


@pytest.mark.parametrize("name", ["plain", "all of it"])
def test_processes_of_their_own_compute_the_same_bits(tmp_path: Path, tables: dict[str, Any], name: str) -> None:
    agreed, vault, address = job(tables, **JOBS[name]), tmp_path / "vault", f"127.0.0.1:{free_port()}"
    train(agreed, tmp_path / "one", vault=vault, record_steps=10**9, device=DEVICE)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(agreed.model_dump(mode="json")))
    started = {
        party: subprocess.Popen(
            [sys.executable, "-c", PARTY, party, tmp_path / "job.yaml", address, vault, tmp_path / party, DEVICE.type],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for party in ("label", "bank", "shop")
    }
    try:
        said = {party: process.communicate(timeout=240)[0] for party, process in started.items()}
    finally:
        for process in started.values():
            process.kill()
    assert {party: process.returncode for party, process in started.items()} == dict.fromkeys(started, 0), said
    expected = trained(tmp_path / "one")
    found = {}
    for party in started:
        found |= trained(tmp_path / party)
    assert found.keys() == expected.keys()
    assert [path for path in expected if found[path] != expected[path]] == []
