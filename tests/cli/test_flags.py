"""Flags and `--set` reach the job and the local file; the keys that they know are those of the schemas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tpsl.cli.flags import Settings, UnknownKey, all_keys, key_above, settable_keys
from tpsl.models.halves import precision
from tpsl.run.job import Job, load_job
from tpsl.run.local import SMALL_BATCH, Local

MOST_KEYS = 120
"""Of the job and the local file together; one that several data sources have counts once."""


def leaves(content: dict[str, object], prefix: str = "") -> list[str]:
    """The dotted names of all that a mapping holds."""
    below = [leaves(value, f"{prefix}{key}.") for key, value in content.items() if isinstance(value, dict)]
    return [*(prefix + key for key in content), *(name for names in below for name in names)]


def test_every_key_of_job_and_local_file_is_known() -> None:
    names = settable_keys().keys()
    assert set(leaves(Job().model_dump(mode="json"))) <= names
    assert set(leaves({"local": Local().model_dump(mode="json")})) - {"local"} <= names
    assert key_above("training.label_optimizer.schedule.name").name == "training.label_optimizer.schedule"
    assert {"data.label.unit", "data.path", "training.pretrain.method"} <= names


def test_keys_are_few() -> None:
    assert len({key.name for key in all_keys()}) <= MOST_KEYS


def test_every_key_has_a_description() -> None:
    assert [key.name for key in all_keys() if not key.description] == []


def test_a_key_says_what_it_takes() -> None:
    assert key_above("training.epochs").values == "integer"
    assert key_above("privacy.estimator").choices == ("linear", "unbiased", "posterior")
    assert key_above("model.bottom").default == "[128, 128]"
    assert (key_above("local.wait").values, key_above("local.wait").default) == ("number", "3600.0")
    assert (key_above("model.wide").values, key_above("model.wide").default) == ("true or false", "false")
    rows = {key.source: key.description for key in all_keys() if key.name == "data.rows"}
    assert rows["criteo"].startswith("Use only the first n records")
    assert rows["flights"].startswith("Use only n records, chosen at random")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("training.epoch", "training.epochs"),
        ("epochs", "training.epochs, training.pretrain.epochs"),
        ("privacy.epsilonn", "privacy.epsilon"),
        ("local.wiat", "local.wait"),
        ("data.features[].path", "data.label.path, data.path"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UnknownKey, match=f"there is no key .*; near are {near}"):
        key_above(name)


def test_a_key_like_no_other() -> None:
    with pytest.raises(UnknownKey, match="`tpsl help keys` lists them"):
        key_above("zzz")


def test_keys_are_listed_with_what_they_mean(tpsl: Any) -> None:
    found = tpsl("help", "keys", "--json").json()["keys"]
    assert [(entry["name"], entry["source"]) for entry in found] == [(key.name, key.source) for key in all_keys()]
    shown = tpsl("help", "keys", "patience", "local.wa").stdout.splitlines()
    assert shown[0::2] == ["training.patience: integer; default 2", "local.wait: number; default 3600.0"]
    assert all(line.startswith("    ") and line.endswith(".") for line in shown[1::2])
    assert tpsl("help", "keys", "nothing").error() == "error: no key has nothing in its name"


def test_keys_become_parts_of_job_and_local_file() -> None:
    settings = Settings.of(
        ["local.wait=5.0", "training.label_optimizer.name=sgd", "local.bottom=a:b"], {"training.epochs": 3}
    )
    assert settings.job == {"training": {"epochs": 3, "label_optimizer": {"name": "sgd"}}}
    assert settings.local == {"wait": 5.0, "bottom": "a:b"}


def test_a_key_beside_the_part_that_holds_it_is_refused() -> None:
    assert Settings.of(["training={epochs: 2}"], {"training.epochs": 3}).job == {"training": {"epochs": 2}}
    with pytest.raises(ValueError, match=r"training.pretrain.epochs and training.pretrain cannot both be given"):
        Settings.of(["training.pretrain=null", "training.pretrain.epochs=2"])


def test_values_are_yaml_and_win_over_the_files(tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    local = tmp_path / "label.yaml"
    local.write_text("party: label\nout: file\nmax_epsilon: 1\n")
    options = ["model={bottom: [4], top: []}", "training.averaging=5e-1", "local.out=set", "local.max_epsilon=2"]
    sets = [word for option in options for word in ("--set", option)]
    outcome = tpsl("train", small_job, "--local", local, *sets, f"--set=local.out={tmp_path / 'run'}", "--json")
    assert outcome.status == 0, "the last value of a key counts"
    job = load_job(tmp_path / "run" / "job.yaml")
    assert (job.model.bottom, job.model.top, job.training.averaging) == ((4,), (), 0.5)
    assert job.model.embedding_dim == load_job(small_job).model.embedding_dim


def test_a_local_file_of_one_process_says_whose_it_is(tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    local = tmp_path / "local.yaml"
    local.write_text("wait: 1\n")
    assert f"{local}: names no party" in tpsl("train", small_job, "--local", local).error()


def test_a_gpu_that_is_not_there_is_one_sentence(tpsl: Any, small_job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    sentence = tpsl("train", small_job, "--set=local.device=cuda").error()
    assert sentence == "error: local.device: PyTorch finds no GPU on this machine"


def test_the_local_files_of_one_process_say_where_each_party_keeps_its_data(tpsl: Any, tmp_path: Path) -> None:
    tpsl("research", "data", "synthetic", "--out", tmp_path, "--rows", 200)
    for party in ("feature", "label"):
        (tmp_path / party).mkdir()
        (tmp_path / f"{party}.parquet").rename(tmp_path / party / "own.parquet")
        (tmp_path / party / "local.yaml").write_text(f"party: {party}\ndata: own.parquet\n")
    files = ("--local", tmp_path / "feature" / "local.yaml", "--local", tmp_path / "label" / "local.yaml")
    assert tpsl("train", tmp_path / "job.yaml", *files, "--out", tmp_path / "run", "--json").status == 0
    job = load_job(tmp_path / "run" / "job.yaml")
    assert [file.path.parent.name for file in (*job.data.features, job.data.label)] == ["feature", "label"]
    (tmp_path / "local.yaml").write_text("party: nobody\n")
    refused = tpsl("train", tmp_path / "job.yaml", "--local", tmp_path / "local.yaml").error()
    assert "there is no party 'nobody' in the job, only label, feature" in refused


def test_precision_is_a_setting_of_the_process() -> None:
    try:
        Settings.of(None, {"local.precision": "bf16"}).load_local(None)
        assert precision() == "bf16"
    finally:
        Settings.of(None).load_local(None)
    assert precision() == "float32"


def test_small_batches_are_computed_by_one_thread_unless_threads_are_given() -> None:
    before = torch.get_num_threads()
    try:
        for batch, threads, expected in (
            (SMALL_BATCH, {}, 1),
            (SMALL_BATCH + 1, {}, 3),
            (SMALL_BATCH, {"threads": 2}, 2),
        ):
            torch.set_num_threads(3)
            settings = Settings(local=threads, job={"training": {"batch_size": batch}})
            settings.load_local(None, settings.load_job(None))
            assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)
