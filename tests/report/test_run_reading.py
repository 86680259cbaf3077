"""The view of a run for a party, from the folder that is there."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tpsl.handover.signing import sign
from tpsl.mechanisms import laplace
from tpsl.net.certificates import create_authority, issue
from tpsl.report.page import write_page
from tpsl.report.run_reading import read_feature_run, read_run, read_view
from tpsl.run.run_folder import RunFolder
from tpsl.vault import Vault


@pytest.fixture
def label_only(copied: Callable[[str], Path]) -> Path:
    """The folder of a run as the label party of two processes has it."""
    run = copied("laplace")
    shutil.rmtree(run / "feature")
    return run


def test_each_party_gets_its_own_view(runs: Path) -> None:
    assert read_view(runs / "laplace", "label") == read_run(runs / "laplace")
    assert read_view(runs / "laplace", "feature") == read_feature_run(runs / "laplace", "feature")
    with pytest.raises(ValueError, match=r"'nobody' is not a feature party of the job; they are feature$"):
        read_view(runs / "laplace", "nobody")


def test_feature_stands_for_the_one_feature_party_that_there_is(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("data: {source: own, parties: [airport, weather]}")
    with pytest.raises(ValueError, match=r"which feature party\? Name it with --for: airport, weather$"):
        read_view(tmp_path, "feature")
    (tmp_path / "weather").mkdir()
    assert read_view(tmp_path, "feature").party == "weather"


def test_no_file_of_a_run_is_waited_for(copied: Callable[[str], Path], tmp_path: Path) -> None:
    """A pipe in its place gives a view without it, or an error in one sentence."""
    run = copied("laplace")
    (run / "statement-2026.json").touch()
    told = []

    def give_up(*_: object) -> None:
        raise AssertionError(f"{file} is waited for")

    before = signal.signal(signal.SIGALRM, give_up)
    try:
        for file in [path for path in run.rglob("*") if path.is_file() and path.suffix in (".json", ".jsonl", ".yaml")]:
            file.rename(tmp_path / "kept")
            os.mkfifo(file)
            signal.alarm(20)
            for party in ("label", "feature"):
                try:
                    read_view(run, party)
                except ValueError as error:
                    assert "\n" not in str(error)
                    told.append(file.name)
            signal.alarm(0)
            (tmp_path / "kept").rename(file)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert {"job.yaml", "result.json", "metrics.jsonl", "ledger.json", "attacks.json", "audit.json"} <= set(told)


def ids_in(vault: Vault) -> list[str]:
    """The records of a vault that were released with Laplace noise."""
    return [record for ids, _ in vault.released(laplace(2.0)) for record in ids]


def test_what_the_label_party_hands_over_does_not_depend_on_true_labels(label_only: Path, tmp_path: Path) -> None:
    """Two folders of the label party that differ in all that true labels decide."""
    run = label_only
    write_page(tmp_path / "one.html", [read_view(run, "feature")], title="A page")
    result = json.loads((run / "result.json").read_text())
    other = {
        key: 0.123 if key.startswith("test_") and isinstance(value, float) else value for key, value in result.items()
    }
    assert other != result
    (run / "result.json").write_text(json.dumps(other))
    for name in ("metrics.jsonl", "attacks.json", "audit.json"):
        (run / "label" / name).write_text("not even JSON")
    with Vault.open(RunFolder(run).vault()) as vault:
        ids = ids_in(vault)
        flipped = 1 - vault.true_labels_for_evaluation(ids)
        vault.add([(ids, flipped, None)])
        assert vault.true_labels_for_evaluation(ids).tolist() == flipped.tolist()
    write_page(tmp_path / "other.html", [read_view(run, "feature")], title="A page")
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "other.html").read_bytes()


def test_it_hands_over_the_promise_by_the_ledger(label_only: Path) -> None:
    view, own = read_view(label_only, "feature"), read_run(label_only)
    assert (view.party, view.state, view.train_records) == ("feature", "finished", own.train_records)
    for key in ("total_epsilon", "epsilon", "ceiling", "private", "words"):
        assert getattr(view.promise, key) == getattr(own.promise, key)
    assert "960 of 960 records had a release, and none has spent more than ε = 2 in all" in view.ledger_note
    for unknown in ("auc", "scores", "ledger", "attacks", "audited_epsilon", "test_records", "samples_per_second"):
        assert getattr(view, unknown) is None
    assert (view.crossed, own.crossed) == (8, None)
    shutil.rmtree(label_only / "label" / "vault")
    with pytest.raises(ValueError, match="its vault cannot be reached, and it says what was spent; name it with"):
        read_view(label_only, "feature")


def test_a_statement_beside_the_vault_is_named(label_only: Path, tmp_path: Path) -> None:
    create_authority(tmp_path / "authority")
    issue(tmp_path / "authority", tmp_path / "certs", "label", label=True)
    assert read_run(label_only).statement is None
    place = RunFolder(label_only).vault()
    with Vault.open(place) as vault:
        document = sign(vault.statement(), tmp_path / "certs")
        ids = ids_in(vault)[:1]
        file = place.parent / "statement-20260131-120000.json"
        file.write_text(json.dumps(document))
        vault.add([(ids, 1 - vault.true_labels_for_evaluation(ids), None)])
    found = read_run(label_only).statement
    assert found is not None
    told = f"{file.name}, signed by label on {document['content']['time'][:16].replace('T', ' ')} UTC: at most ε = 2"
    assert found == f"{told}; 1 newer ledger entry"
    handed = read_view(label_only, "feature").statement
    assert handed == told  # whether labels were corrected is not told
    # What does not hold is passed over: another figure than was signed, another vault, no JSON.
    file.write_text(json.dumps({**document, "content": {**document["content"], "epsilon_per_record": 1.0}}))
    assert read_run(label_only).statement is None
    with Vault.create(tmp_path / "other", batches=[(["a"], [1], None)]) as other:
        file.write_text(json.dumps(sign(other.statement(), tmp_path / "certs")))
    assert read_run(label_only).statement is None
    file.write_text("[" * 100_000)
    assert read_run(label_only).statement is None
