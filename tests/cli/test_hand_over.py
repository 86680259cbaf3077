"""`tpsl vault release` at the label party, `tpsl train` at the feature party, and what comes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from tests.vault_labels import true_labels

from tpsl.handover.labels_file import file_digest
from tpsl.vault import Vault, the_vault

JOB = {
    "privacy": {"epsilon": 1.0},
    "model": {"embedding_dim": 4, "bottom": [8], "top": [8]},
    "training": {"batch_size": 128, "epochs": 2, "validation": 0.2, "patience": 1},
}


@pytest.fixture
def office(tmp_path: Path, tpsl: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of two parties, a job, and a vault of all labels."""
    monkeypatch.chdir(tmp_path)
    tpsl("research", "data", "synthetic", "--rows", 600, "--out", tmp_path, "--json").json()
    content = yaml.safe_load((tmp_path / "job.yaml").read_text())
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({**content, **JOB}))
    tpsl("vault", "add", "--new", "bought", "label.parquet", "--json").json()
    return tmp_path


def test_labels_are_handed_over_and_learned_from(tpsl: Any, office: Path, certificates: Path) -> None:
    """The feature party has no file of labels, no vault and no network, and ends with a network that predicts."""
    given = ("vault", "release", "bought", "--epsilon", 1, "--certs", certificates / "label", "--out", "given")
    made = tpsl(*given, "--json").json()
    content = made["content"]
    assert (content["records"], content["epsilon"], content["epsilon_per_record"]) == (600, 1.0, 1.0)
    assert content["ledger_head"] == tpsl("vault", "ledger", "bought", "--json").json()["head"]
    assert pq.read_schema(made["labels"]).names == ["id", "outcome"]
    again = tpsl(*given)
    assert again.facts()["labels"] == "0 noisy labels released now, 600 before"
    assert again.facts()["mechanism"] == "discrete (ε = 1)"
    assert again.facts()["guarantee"] == "largest total of any record: ε = 1"
    (office / "label.parquet").unlink()
    learning = ("train", "job.yaml", "--labels", "given", "--certs", certificates / "feature", "--out", "run")
    learned = tpsl(*learning, "--json").json()
    assert learned["epsilon"] == 1.0 and learned["validation_loss"] is not None and learned["test_auc"] is None
    scored = tpsl("predict", "run", "--records", "feature=feature.parquet", "--out", "scores.parquet", "--json").json()
    assert scored["records"] == 600
    shown = tpsl(*learning)
    assert "run is a finished run; nothing to do" in shown.stderr
    assert shown.facts()["test AUC"] == "– (no true label of a test record is known here)"
    assert "guarantee          ε = 1" in shown.stdout
    for whose in ((), ("--for", "feature")):
        assert tpsl("report", "run", *whose, "--out", "page.html", "--json").json()


def test_labels_of_something_else_are_refused(tpsl: Any, office: Path) -> None:
    given = ("vault", "release", "bought", "--epsilon", 1, "--out", "given", "--label")
    learning = ("train", "job.yaml", "--labels", "given", "--out", "run", "--json")
    assert tpsl(*given, "bought", "--json").json()["content"]["label"] == "bought"
    refused = "labels.parquet: has labels of 'bought', and data.label.label in the job is 'label'"
    assert refused in tpsl(*learning).error()
    tpsl(*given, "label")
    assert tpsl(*learning).json()["epsilon"] == 1.0


def test_only_records_that_the_feature_party_has_are_named(tpsl: Any, office: Path) -> None:
    """ε is about labels: whom else the label party knows must not be told by the list of ids."""
    ids = pq.read_table("label.parquet", columns=["id"])
    pq.write_table(ids.slice(100, 200), "shop.parquet")
    given = ("vault", "release", "bought", "--epsilon", 1, "--records", "shop.parquet", "--out", "given")
    assert tpsl(*given, "--json").json()["content"]["records"] == 200
    named = pq.read_table("given/labels.parquet")["id"].to_pylist()
    assert named == sorted(str(id) for id in ids["id"].to_pylist()[100:300])
    with Vault.open(the_vault()) as vault:
        assert vault.ledger().released_records == 200  # and the others have spent nothing
    everything = tpsl("vault", "release", "bought", "--epsilon", 1, "--out", "all")
    assert "names every released record of the vault" in everything.stderr
    assert tpsl(*given, "--json").json()["content"]["records"] == 200
    Path("stranger.csv").write_text("id\nnobody\n")
    assert "does not know 1 of the 1 records" in tpsl(*given[:-3], "stranger.csv", "--out", "none").error()
    assert not Path("none").exists()


def test_a_card_that_nobody_signed_is_used_with_a_warning(tpsl: Any, office: Path, certificates: Path) -> None:
    made = tpsl("vault", "release", "bought", "--epsilon", 1, "--out", "given")
    assert "nobody has signed the card" in made.stderr
    refused = tpsl("train", "job.yaml", "--labels", "given", "--certs", certificates / "feature", "--out", "run")
    assert "card.json: nobody has signed it" in refused.error()
    learned = tpsl("train", "job.yaml", "--labels", "given/labels.parquet", "--out", "run", "--json")
    assert learned.json()["epsilon"] == 1.0 and "who has made these labels is not checked" in learned.stderr


def test_before_there_are_certificates_the_local_file_of_init_is_told_what_to_do(
    tpsl: Any, office: Path, certificates: Path
) -> None:
    Path("feature.yaml").write_text("party: feature\ndata: feature.parquet\ncertificates: certs/feature\n")
    learning = ("train", "job.yaml", "--labels", "given", "--local", "feature.yaml", "--out", "run")
    tpsl("vault", "release", "bought", "--epsilon", 1, "--out", "given", "--json").json()
    unsigned = tpsl(*learning).error()
    assert "the label party signs with --certs (`tpsl certs` makes certificates)" in unsigned
    assert "certs/feature" in unsigned and "without `certificates` in the local file" in unsigned
    signed = (
        "vault",
        "release",
        "bought",
        "--epsilon",
        1,
        "--out",
        "given",
        "--certs",
        certificates / "label",
        "--json",
    )
    assert tpsl(*signed).json()
    assert "certs/feature/ca.pem: cannot be read (No such file or directory); `tpsl certs`" in tpsl(*learning).error()


def test_what_is_not_permitted_is_not_released(tpsl: Any, office: Path) -> None:
    refused = tpsl("vault", "release", "bought", "--epsilon", 2, "--set=local.max_epsilon=1", "--out", "given")
    assert "ε = 2" in refused.error() and not Path("given").exists()
    tpsl("vault", "release", "bought", "--epsilon", 1, "--json").json()
    assert (
        "600 records were released before under something else"
        in tpsl("vault", "release", "bought", "--epsilon", 0.5, "--out", "given").error()
    )
    with Vault.open(the_vault()) as vault:
        assert vault.total(None).epsilon == 1.0


def test_a_lying_card_and_a_job_that_needs_both_parties_are_sentences(tpsl: Any, office: Path) -> None:
    tpsl("vault", "release", "bought", "--epsilon", 1, "--out", "given", "--json").json()
    split = tpsl("train", "job.yaml", "--labels", "given", "--set=training.head=local")
    assert "the local head is trained on true labels, which needs split training" in split.error()
    assert "privacy in the job says" in tpsl("train", "job.yaml", "--labels", "given", "--epsilon", 2).error()
    card = json.loads(Path("given/card.json").read_text())
    card["content"]["epsilon"] = 0.1
    Path("given/card.json").write_text(json.dumps(card))
    assert "not those of its table" in tpsl("train", "job.yaml", "--labels", "given").error()


def test_aligned_records_have_other_ids_at_the_feature_party(tpsl: Any, office: Path) -> None:
    content = yaml.safe_load((office / "job.yaml").read_text())
    content["data"]["alignment"] = {"mode": "both"}
    (office / "job.yaml").write_text(yaml.safe_dump(content))
    tpsl("align", "job.yaml", "--together", "--json").json()
    tpsl("vault", "release", "bought", "--epsilon", 1, "--out", "given", "--json").json()
    refused = tpsl("train", "job.yaml", "--labels", "given", "--out", "run").error()
    assert "labels.parquet: has no label of 480 of the 480 training records" in refused
    assert refused.endswith("with training.exchange: labels, then noisy labels cross in the common order")


def test_what_was_handed_over_is_compared_with_the_vault(tpsl: Any, office: Path) -> None:
    tpsl("vault", "release", "bought", "--epsilon", 1, "--out", "given", "--json").json()
    sound = tpsl("vault", "verify", "bought", "--handed", "given")
    assert sound.status == 0 and sound.facts()["handed over"].startswith("given holds noisy labels")
    with Vault.open(the_vault()) as vault:
        ids = pq.read_table("given/labels.parquet")["id"]
        truth = pa.array(true_labels(vault, ids), pa.uint8())
    pq.write_table(pa.table({"id": ids, "outcome": truth}), "given/labels.parquet")
    card = json.loads(Path("given/card.json").read_text())
    card["content"]["labels_digest"] = file_digest(Path("given/labels.parquet"))
    Path("given/card.json").write_text(json.dumps(card))
    found = tpsl("vault", "verify", "bought", "--handed", "given", "--json")
    content = json.loads(found.stdout)
    assert (found.status, content["sound"]) == (1, False)
    (problem,) = content["problems"]
    assert "of 600 records are not those that the vault has released" in problem


def test_a_list_of_more_records_than_the_vault_has_is_refused(tpsl: Any, office: Path) -> None:
    (office / "list.csv").write_text("id\n" + "".join(f"{number}\n" for number in range(601)))
    refused = tpsl("vault", "release", "bought", "--epsilon", 1, "--out", "given", "--records", "list.csv")
    assert refused.status == 1 and "lists more records than the 600 of the vault" in " ".join(refused.stderr.split())
