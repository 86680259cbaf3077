"""Whatever is wrong with a job, its data, its run folder or its vault is one sentence that names the culprit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tpsl.vault import Vault


def with_changes(job: Path, **parts: Any) -> Path:
    content = yaml.safe_load(job.read_text())
    for part, fields in parts.items():
        content[part] = {**content[part], **fields} if isinstance(fields, dict) else fields
    job.write_text(yaml.safe_dump(content))
    return job


def test_a_job_file_that_is_not_there(tpsl: Any, tmp_path: Path) -> None:
    assert tpsl("train", tmp_path / "no.yaml").error() == (
        f"error: {tmp_path / 'no.yaml'}: cannot be read (No such file or directory)"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("- a\n- b\n", "a job is a mapping with the parts data, privacy, model, training, prediction"),
        ("just words\n", "a job is a mapping with the parts data, privacy, model, training, prediction"),
        ("data: {source: flights\n", "is not YAML"),
        ("nonsense: 1\n", "nonsense: "),
        ("training: 7\n", "training: "),
        ("privacy: []\n", "privacy: "),
        ("data: {source: nowhere}\n", "nowhere"),
    ],
)
def test_a_job_file_that_is_no_job(tpsl: Any, tmp_path: Path, text: str, reason: str) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(text)
    for options in ((), ("--epochs", 2, "--epsilon", 1, "--set=data.rows=100")):
        sentence = tpsl("train", job, *options, "--out", tmp_path / "run").error()
        assert sentence.startswith(f"error: {job}: ")
        assert reason in sentence
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("part", "field", "value", "reason"),
    [
        ("data", "rows", "many", "data.rows: Input should be a valid integer, got 'many'"),
        ("privacy", "epsilonn", 3, "privacy.epsilonn: "),
        ("privacy", "mechanism", "magic", "privacy.mechanism: unknown mechanism 'magic'; known are auto, none"),
        ("privacy", "epsilon", None, "privacy: mechanism 'laplace' needs epsilon"),
        ("training", "label_optimizer", {"name": "magic"}, "training.label_optimizer.name: "),
        ("model", "bottom", [], "model.bottom: "),
    ],
)
def test_a_wrong_field_is_named_with_its_value(
    tpsl: Any, small_job: Path, tmp_path: Path, part: str, field: str, value: Any, reason: str
) -> None:
    with_changes(small_job, **{part: {field: value}})
    sentence = tpsl("train", small_job, "--out", tmp_path / "run").error()
    assert sentence.startswith(f"error: {small_job}: {part}")
    assert reason in sentence
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--set privacy.mechanism=laplace", "privacy: mechanism 'laplace' needs epsilon"),
        ("--epsilon nan", "nan"),
        ("--epsilon inf", "inf"),
        ("--data flights --set data.task=never", "data.task: "),
        ("--set training.feature_optimizer.learning_rate=0", "training.feature_optimizer.learning_rate: "),
    ],
)
def test_a_wrong_option_is_named_without_a_job_file_too(tpsl: Any, tmp_path: Path, options: str, reason: str) -> None:
    sentence = tpsl("train", *options.split(), "--out", tmp_path / "run").error()
    assert sentence.startswith("error: options: ")
    assert reason in sentence


def table_job(folder: Path) -> Path:
    """Two small CSV files and their job."""
    rows = range(40)
    (folder / "features.csv").write_text("id,size\n" + "".join(f"{row},{row * 0.5}\n" for row in rows))
    (folder / "labels.csv").write_text("id,late\n" + "".join(f"{row},{row % 2}\n" for row in rows))
    data = {
        "source": "table",
        "features": [{"path": "features.csv", "numeric": ["size"]}],
        "label": {"path": "labels.csv", "label": "late"},
    }
    job = folder / "job.yaml"
    job.write_text(yaml.safe_dump({"data": data, "training": {"epochs": 1}}))
    return job


def test_a_table_that_is_missing_or_lacks_a_column(tpsl: Any, tmp_path: Path) -> None:
    job = table_job(tmp_path)
    with_changes(job, data={"label": {"path": "labels.csv", "label": "delayed"}})
    sentence = tpsl("train", job, "--out", tmp_path / "a").error()
    assert str(tmp_path / "labels.csv") in sentence
    assert "'delayed'" in sentence
    (tmp_path / "labels.csv").unlink()
    assert str(tmp_path / "labels.csv") in tpsl("train", job, "--out", tmp_path / "b").error()


@pytest.mark.parametrize(
    ("data", "advice"),
    [
        (
            {"class_values": ["a", "b", "c", "d"]},
            "class_values needs 2 different values, one a class, not 4: for 4 classes",
        ),
        ({"class_values": ["no", "yes"]}, "'0' is not a label; labels are no, yes (class_values names others"),
        ({"classes": 2, "clases": 3}, "data.clases: there is no such key; `tpsl help keys` lists them"),
    ],
)
def test_what_to_set_is_said(tpsl: Any, tmp_path: Path, data: dict[str, Any], advice: str) -> None:
    assert advice in tpsl("train", with_changes(table_job(tmp_path), data=data), "--out", tmp_path / "run").error()


def test_labels_that_are_all_the_same_are_named_and_a_second_release_says_what_permits_it(
    tpsl: Any, tmp_path: Path
) -> None:
    job = table_job(tmp_path)
    (tmp_path / "labels.csv").write_text("id,late\n" + "".join(f"{row},0\n" for row in range(40)))
    said = tpsl("train", job, "--out", tmp_path / "run").stderr
    assert "all 32 training labels are '0': nothing can be learned; is it the right column?" in said
    sentence = tpsl("train", job, "--epsilon", 2, "--out", tmp_path / "again").error()
    ways = [
        sentence.index(way)
        for way in ("cost nothing", "--scratch", "--set local.compose=true (in Python compose=True)")
    ]
    assert ways == sorted(ways) and sentence.endswith("brings the records to ε = 3 in all, for good")


@pytest.mark.parametrize("party", ["label", "../outside", "job.yaml", ".hidden", "a/b"])
def test_a_party_whose_name_is_no_folder_of_its_own(tpsl: Any, tmp_path: Path, party: str) -> None:
    job = table_job(tmp_path)
    data = yaml.safe_load(job.read_text())["data"]
    data["features"][0]["party"] = party
    data["label"]["party"] = "airline"
    sentence = tpsl("train", with_changes(job, data=data), "--out", tmp_path / "run").error()
    assert f"the feature party {party!r} needs a name" in sentence
    assert not (tmp_path / "run").exists()


def test_another_job_in_the_same_folder_is_refused_with_the_field(tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert tpsl("train", small_job, "--out", run).status == 0
    assert tpsl("train", small_job, "--out", run, "--set=training.seed=4").error() == (
        f"error: {run}: holds a run of another job (training.seed: 0 against 4); choose another --out"
    )
    assert "privacy.epsilon: 2.0 against 1.0" in tpsl("train", small_job, "--out", run, "--epsilon", 1).error()


def test_an_out_that_is_a_file_or_holds_other_things(tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    assert f"{tmp_path / 'file'}: is a file" in tpsl("train", small_job, "--out", tmp_path / "file").error()
    (tmp_path / "folder").mkdir(mode=0o755)
    (tmp_path / "folder" / "photo").write_text("precious")
    sentence = tpsl("train", small_job, "--out", tmp_path / "folder").error()
    assert f"{tmp_path / 'folder'}: holds no run but other files (photo)" in sentence
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o755
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["photo"]


def test_a_damaged_checkpoint(tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    tpsl("train", small_job, "--out", run)
    (run / "result.json").unlink()  # as if killed just before it was finished
    (checkpoint,) = (run / "label" / "checkpoints").glob("step-*")
    written = checkpoint.read_bytes()
    at = len(written) // 2
    checkpoint.write_bytes(written[:at] + bytes([written[at] ^ 1]) + written[at + 1 :])
    sentence = tpsl("train", small_job, "--out", run).error()
    assert str(checkpoint) in sentence
    assert "is damaged" in sentence
    checkpoint.write_bytes(written)
    assert tpsl("train", small_job, "--out", run).status == 0


def test_a_vault_that_is_none_or_does_not_fit(tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "photo").touch()
    for name, reason in (("other", "not empty"), ("vault/three", "3 classes")):
        if name == "vault/three":
            Vault.create(tmp_path / "vault", label="three", classes=3).close()
        sentence = tpsl("train", small_job, "--out", tmp_path / "run", "--vault", tmp_path / name).error()
        assert str(tmp_path / name) in sentence
        assert reason in sentence


def test_recording_cannot_begin_in_the_middle(tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    tpsl("train", small_job, "--out", run)
    (run / "result.json").unlink()
    shutil.rmtree(run / "feature" / "transcript")  # as if it had been begun over a network
    (run / "label" / "trajectory.f32").unlink()
    sentence = tpsl("train", small_job, "--out", run, "--set=local.record_transcript=true").error()
    assert str(run) in sentence
    assert "not recorded from its first step" in sentence
    assert tpsl("train", small_job, "--out", run).status == 0, "which nobody has asked to record"
    assert not (run / "feature" / "transcript").exists()
