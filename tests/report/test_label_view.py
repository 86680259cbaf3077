import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import pytest

from tpsl.mechanisms import laplace
from tpsl.report.promises import promise_of
from tpsl.report.run_reading import job_view, read_run
from tpsl.run.job import make_job
from tpsl.run.run_folder import RunFolder
from tpsl.vault import Vault


def test_a_view_has_the_numbers_of_the_run(runs: Path) -> None:
    view, result = read_run(runs / "laplace"), RunFolder(runs / "laplace").result()
    assert result is not None and view.auc and view.ledger and view.audited_epsilon
    assert view.state == "finished"
    assert view.promise.epsilon == result.epsilon == laplace(2.0).epsilon
    assert view.promise.private is result.private is True
    assert view.auc.value == result.test_auc
    assert (view.train_records, view.test_records, view.step) == (960, 240, result.steps)
    assert view.samples_per_second == result.samples_per_second
    assert [entry["epoch"] for entry in view.curves] == [1, 2, 3]
    assert view.curves == RunFolder(runs / "laplace").metrics()
    with Vault.open(runs / "laplace" / "label" / "vault") as vault:
        ledger = vault.ledger()
    assert view.ledger.entries[-1].hash == ledger.head
    assert [entry.hash for entry in view.ledger.entries] == [entry.hash for entry in ledger.entries]
    assert view.ledger.epsilon_per_record == 2.0
    assert view.audited_epsilon <= 2.0
    assert view.program == f"tpsl {version('tpsl')}"


def test_embeddings_cross_unless_labels_are_handed_over(tmp_path: Path) -> None:
    def words(exchange: str) -> str:
        job = make_job({"training": {"exchange": exchange}}, {}, "test")
        return job_view(tmp_path, job, "label", promise_of(job, 2), 2, None).features_words

    assert "embeddings of every record cross" in words("gradients")
    assert words("labels").startswith("No feature and no embedding crosses")


def test_tables_are_called_by_their_label_and_how_many_columns_there_are(tmp_path: Path) -> None:
    file = {"path": "a.csv", "id": "id", "numeric": ["x"]}
    content = {"source": "table", "features": [file], "label": {"path": "b.csv", "id": "id", "label": "paid\x1b"}}
    for dates, name in ([], "table ‘paid�’ (1 column)"), (["day"], "table ‘paid�’ (2 columns)"):
        job = make_job({"data": {**content, "features": [{**file, "dates": dates}]}}, {}, "test")
        assert job_view(tmp_path, job, "label", promise_of(job, 2), 2, None).data == name


def test_reading_changes_nothing(runs: Path) -> None:
    def state() -> dict[Path, tuple[int, bytes]]:
        files = [path for path in (runs / "laplace").rglob("*") if path.is_file()]
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    before = state()
    read_run(runs / "laplace")
    assert state() == before


def test_an_unfinished_run_is_shown_as_such(runs: Path) -> None:
    view = read_run(runs / "stopped")
    assert (view.state, view.epoch, view.epochs, view.auc) == ("unfinished", 1, 3, None)
    assert view.step > 0
    assert view.promise.epsilon_text == "0.5"


def test_a_vault_elsewhere_is_said_to_be_elsewhere(copied: Callable[[str], Path]) -> None:
    run = copied("discrete")
    shutil.rmtree(run / "label" / "vault")
    view = read_run(run)
    assert view.ledger is None
    assert "discrete/label/vault/synthetic is gone" in view.ledger_note
    assert "noted ε = 0.5, δ = 0 for its records" in view.ledger_note
    (run / "label" / "ledger.json").unlink()
    assert "not in this run" in read_run(run).ledger_note


def test_metrics_may_have_keys_that_are_not_known_yet(copied: Callable[[str], Path]) -> None:
    run = copied("discrete")
    entries = [
        {"epoch": 1, "step": 2, "validation_auc": 0.625, "something": "else"},
        {"epoch": 2, "step": 4, "test_auc": float("nan")},
    ]
    (run / "label" / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    assert read_run(run).curves == [entries[0], {"epoch": 2, "step": 4, "test_auc": None}]


def test_a_name_does_not_move_the_cursor(runs: Path) -> None:
    assert read_run(runs / "discrete", "a\x1b[31mb").name == "a�[31mb"


def test_places_of_files_stay_out(runs: Path) -> None:
    assert str(runs) not in json.dumps(asdict(read_run(runs / "laplace")))


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("job.yaml", None, "is not a run folder, it has no job.yaml"),
        ("job.yaml", "data: [", "job.yaml: is not YAML"),
        ("result.json", "{", "result.json: is damaged"),
        ("result.json", "{}", "result.json: is damaged (run"),
        ("label/metrics.jsonl", "{\n", "metrics.jsonl, line 1: is damaged"),
        ("label/metrics.jsonl", "{}\n", "metrics.jsonl, line 1: is damaged (epoch"),
        ("label/audit.json", "[]", "audit.json: is damaged"),
        ("label/vault/vault.sqlite", "no database", "vault"),
    ],
)
def test_damage_is_one_sentence_that_names_the_file(
    copied: Callable[[str], Path], file: str, content: str | None, complaint: str
) -> None:
    run = copied("laplace")
    if content is None:
        (run / file).unlink()
    else:
        assert (run / file).exists()
        (run / file).write_text(content)
    with pytest.raises(ValueError) as refusal:
        read_run(run)
    assert complaint in str(refusal.value)
    assert str(run) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_feature_partys_folder_is_not_the_label_partys(copied: Callable[[str], Path]) -> None:
    run = copied("laplace")
    shutil.rmtree(run / "label")
    with pytest.raises(ValueError, match=r"has no folder of the label party; .* --for feature$"):
        read_run(run)
