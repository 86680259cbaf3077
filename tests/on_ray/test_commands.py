"""Commands on a Ray cluster that do not train together; all tests share one cluster."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pyarrow.parquet as pq
import pytest
import yaml

from tpsl.alignment.group import hashed, multiplied
from tpsl.data import out_of_core
from tpsl.data.config import TableData
from tpsl.data.dataset import load_feature_party
from tpsl.data.sides import FeatureSide
from tpsl.on_ray.cluster import RayError, RayWorkers, connected, own_errors
from tpsl.on_ray.feature_reading import prepare_features, readers_on
from tpsl.on_ray.ordered_map import map_on
from tpsl.on_ray.task_pool import RayTaskPool
from tpsl.tables import DataError, reading
from tpsl.training.job import make_job
from tpsl.training.local import Local
from tpsl.training.one_process import train
from tpsl.tuning.pool import Task, run_tasks

# A search whose runs are tasks.


RATES = [{"training": {"feature_optimizer": {"learning_rate": rate}}} for rate in (0.001, 0.01, 0.1)]


@pytest.mark.long
def test_a_search_finds_the_same_on_ray(cluster: Any, tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    space = tmp_path / "space.yaml"
    space.write_text(yaml.safe_dump(RATES))
    here = tpsl("tune", small_job, "--out", tmp_path / "here", "--space", space, "--json").json()
    there = tpsl(
        "tune", small_job, "--out", tmp_path / "there", "--space", space, "--ray", "--ray-workers", 2, "--json"
    ).json()
    assert {**there, "out": here["out"]} == here
    ledger = tpsl("vault", "ledger", here["vault"], "--json").json()
    assert [entry["kind"] for entry in ledger["entries"]].count("released") == 1
    assert {**tpsl("tune", small_job, "--out", tmp_path / "there", "--space", space, "--json").json(), "out": ""} == {
        **there,
        "out": "",
    }


def _note(path: Path, name: str) -> None:
    with path.open("a") as file:
        file.write(f"{name} {os.getpid()}\n")


def _die_once(path: Path) -> None:
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.long
def test_a_task_whose_process_is_killed_is_done_again(cluster: Any, tmp_path: Path) -> None:
    notes, died = tmp_path / "notes", tmp_path / "died"
    tasks = [
        Task("after", partial(_note, notes, "after"), frozenset({"dies"})),
        Task("dies", partial(_die_once, died)),
        Task("free", partial(_note, notes, "free")),
    ]
    done = list(run_tasks(tasks, RayTaskPool(cluster, RayWorkers(2))))
    assert sorted(done) == ["after", "dies", "free"] and done.index("after") > done.index("dies")
    lines = [line.split() for line in notes.read_text().splitlines()]
    assert sorted(name for name, _ in lines) == ["after", "free"]
    assert str(os.getpid()) not in {process for _, process in lines}


def test_an_error_is_the_one_that_was_raised_there(cluster: Any, tmp_path: Path) -> None:
    tasks = [Task("bad", partial(int, "x")), Task("after", partial(_note, tmp_path / "notes", "after"))]
    with pytest.raises(ValueError, match=r"^invalid literal for int"), own_errors():
        list(
            run_tasks(
                [tasks[0], Task(tasks[1].name, tasks[1].run, frozenset({"bad"}))], RayTaskPool(cluster, RayWorkers(2))
            )
        )
    assert not (tmp_path / "notes").exists()


def test_a_cluster_without_room_is_refused(cluster: Any) -> None:
    assert RayWorkers(cpus=2).count_in(cluster) == 2
    with pytest.raises(RayError, match=r"no room for a process with 1 CPU\(s\) and 1 GPU\(s\)"):
        RayWorkers(gpus=1).count_in(cluster)


def test_training_that_waits_for_room_says_so(cluster: Any) -> None:
    two_cpus = RayWorkers(cpus=2)
    assert two_cpus.shortage_in(cluster, 2) is None
    waiting = "the Ray cluster has room for 2 of 3 processes with 2 CPU(s) and 0 GPU(s): waiting"
    assert str(two_cpus.shortage_in(cluster, 3)).startswith(waiting)


def test_what_is_not_installed_is_one_sentence(
    tpsl: Any, small_job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install 'tpsl[ray]'" in tpsl("tune", small_job, "--out", tmp_path / "out", "--ray").error()


def test_options_of_ray_are_for_ray(tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    assert "--ray-workers is for --ray" in tpsl("tune", small_job, "--out", tmp_path, "--ray-workers", 2).error(2)


# Lists of keys that a cluster blinds.


def _blinded_by_one_who_dies_once(points: Any, scalar: bytes, died: Path) -> Any:
    if not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return multiplied(points, scalar)


@pytest.mark.long
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


@pytest.mark.long
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


# A file of scores for each file of records.


def write_tables(folder: Path, name: str, records: int, seed: int) -> None:
    """Write a file of features of the shop, and one of the bank with a feature and the label."""
    draws = np.random.default_rng(seed)
    minutes, age = draws.normal(5, 2, records), draws.normal(40, 9, records)
    ids = [f"{seed}-{number:04d}" for number in range(records)]
    for party, columns in (("shop", {"minutes": minutes}), ("bank", {"age": age, "label": (minutes > 5).astype(int)})):
        (folder / party).mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pa.table({"id": ids, **columns}), folder / party / name)


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with features at both parties, and three files of new records of each."""
    folder = tmp_path_factory.mktemp("office")
    write_tables(folder, "known.parquet", 200, seed=1)
    for number in range(3):
        write_tables(folder / "new", f"part-{number}.parquet", 30 + number, seed=2 + number)
    shop = {"path": str(folder / "shop" / "known.parquet"), "party": "shop", "numeric": ["minutes"]}
    label = {"path": str(folder / "bank" / "known.parquet"), "numeric": ["age"]}
    content = {
        "data": {"source": "table", "features": [shop], "label": label},
        "model": {"embedding_dim": 2, "bottom": [4], "top": [4]},
        "training": {"epochs": 1, "batch_size": 64},
    }
    train(make_job(content, {}, "test"), folder / "run")
    return folder


def records_of(folder: Path) -> tuple[str, ...]:
    return ("--records", f"shop={folder / 'shop'}", "--records", f"label={folder / 'bank'}")


@pytest.mark.long
def test_each_file_gets_the_scores_of_tpsl_predict(cluster: Any, office: Path, tpsl: Any, tmp_path: Path) -> None:
    out, options = tmp_path / "scores", ("--ray", "--ray-workers", 2, "--json")
    command = ("predict", office / "run", *records_of(office / "new"), "--out", out, *options)
    out.mkdir()
    (out / ".predicted.json.new").touch()  # left by a command that was killed
    assert tpsl(*command).json() == {"scores": str(out), "files": 3, "head": "private"}
    names = [f"part-{number}.parquet" for number in range(3)]
    assert sorted(path.name for path in out.iterdir()) == [*names, "predicted.json"]
    for name in names:
        one = [f"{party}={office / 'new' / folder / name}" for party, folder in (("shop", "shop"), ("label", "bank"))]
        alone = ("predict", office / "run", "--records", one[0], "--records", one[1], "--out", tmp_path / name)
        assert tpsl(*alone).status == 0
        assert (out / name).read_bytes() == (tmp_path / name).read_bytes()
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    (out / names[1]).unlink()
    assert tpsl(*command).json()["files"] == 3
    after = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    assert [name for name in before if before[name] != after[name]] == [names[1]]
    write_tables(tmp_path, "part-0.parquet", 10, seed=9)
    other = ("predict", office / "run", *records_of(tmp_path), "--out", out, *options)
    assert "holds scores by another model or of other records" in tpsl(*other).error()


def test_files_without_a_partner_are_refused(cluster: Any, office: Path, tpsl: Any, tmp_path: Path) -> None:
    write_tables(tmp_path, "part-0.parquet", 10, seed=9)
    write_tables(tmp_path, "part-1.parquet", 10, seed=10)
    (tmp_path / "bank" / "part-1.parquet").unlink()
    command = ("predict", office / "run", *records_of(tmp_path), "--out", tmp_path / "scores", "--ray")
    assert tpsl(*command).error() == "error: part-1.parquet: 'shop' has such a file of records, and 'label' has none"


# A feature party's Parquet files, on a disk or in object storage.


ROWS, FILES = 500, 5
DRAWS = np.random.default_rng(0)
WHOLE = pa.table(
    {
        "id": DRAWS.permutation(ROWS),
        "word": [f"w{number}" for number in DRAWS.integers(0, 9, ROWS)],
        "size": DRAWS.normal(size=ROWS),
    }
)


def parts() -> dict[str, bytes]:
    """The table as files of different lengths, one of them without records."""
    found = {}
    ends = [0, 70, 70, 200, 340, ROWS]
    for number, (start, stop) in enumerate(pairwise(ends)):
        sink = pa.BufferOutputStream()
        pq.write_table(WHOLE.slice(start, stop - start), sink)
        found[f"part-{number}.parquet"] = bytes(sink.getvalue())
    assert len(found) == FILES
    return found


def config(path: str | Path) -> TableData:
    features = [{"path": path, "party": "shop", "categorical": ["word"], "numeric": ["size"]}]
    return TableData.model_validate({"source": "table", "features": features, "label": {"path": "bank.parquet"}})


def forbid_reading_here(patch: pytest.MonkeyPatch) -> None:
    def refused(*given: Any) -> Any:
        raise AssertionError("this process reads a Parquet file")

    patch.setattr(reading, "_parquet_blocks", refused)


def same(one: FeatureSide, other: FeatureSide) -> bool:
    columns = [(side.features.categorical, side.features.numeric, side.train) for side in (one, other)]
    return one.ids.to_pylist() == other.ids.to_pylist() and all(map(np.array_equal, *columns))


def test_files_in_object_storage_are_read_by_the_cluster(
    cluster: Any, object_storage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = config(object_storage.put(parts()))
    here = load_feature_party(data, "shop")
    assert len(here.ids) == ROWS
    with monkeypatch.context() as patch, reading.parquet_read_by(readers_on(cluster, RayWorkers(2))):
        forbid_reading_here(patch)
        there = load_feature_party(data, "shop")
    assert same(here, there)


@pytest.mark.long
def test_large_features_are_left_in_the_cache_for_the_workers(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPSL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "shop").mkdir()
    for name, content in parts().items():
        (tmp_path / "shop" / name).write_bytes(content)
    data = config(tmp_path / "shop")
    job, share = make_job({"data": data.model_dump(mode="json", exclude_none=True)}, {}, "test"), RayWorkers(2)
    in_memory = load_feature_party(data, "shop")
    monkeypatch.setattr(out_of_core, "LARGE_BYTES", 100)
    with monkeypatch.context() as patch:
        forbid_reading_here(patch)
        prepare_features(cluster, share, job, "shop", Local())
    encoded = load_feature_party(data, "shop")
    assert encoded.features.is_mapped and same(encoded, in_memory)
    (tmp_path / "shop" / "part-3.parquet").write_bytes(b"PAR1 damaged")
    with pytest.raises(DataError, match=r"part-3.parquet: cannot be read"), connected() as ray:
        prepare_features(ray, share, job, "shop", Local())
