"""A run that starts from an earlier one: its weights, encoders and wide part, its vault; then it needs it no more."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from tpsl.attacks import run_attacks
from tpsl.audit.examination import examine
from tpsl.data.encoder import EncoderState
from tpsl.data.true_labels import reveal
from tpsl.mechanisms import laplace
from tpsl.model.trained import TrainedModel
from tpsl.report.ledgers import read_ledger, result_now
from tpsl.run.job import Job, make_job
from tpsl.run.observer import Observer, Watching
from tpsl.run.one_process import ALL_STEPS, load_records, train, train_together
from tpsl.run.result import Origin, TrainResult
from tpsl.run.run_folder import RunError, RunFolder
from tpsl.run.setup import RunSetup
from tpsl.run.stages.prepare import WIDE
from tpsl.run.transcript import Transcript
from tpsl.run.vaults import VaultChoice
from tpsl.run.warm_start import StartingPoint
from tpsl.tables import DataError
from tpsl.vault import NO_LIMITS, Vault, VaultError

DAYS, A_DAY = 6, 100
NEW = "2026-11-15"
"""The first of the last two days."""
STANDING_STILL = {"feature_optimizer": {"learning_rate": 1e-30}, "label_optimizer": {"learning_rate": 1e-30}}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six days of records; from the fifth day on there are shops that nobody has seen before."""
    folder = tmp_path_factory.mktemp("tables")
    random = np.random.default_rng(0)
    feature, label = ["id,day,shop,pages"], ["id,day,device,bought"]
    for number in range(DAYS * A_DAY):
        day, pages = number // A_DAY, random.integers(20)
        shop = random.integers(5 if day < 4 else 9)
        bought = int(random.random() < (0.8 if pages > 10 else 0.2))
        feature.append(f"{number:05d},2026-11-{11 + day},shop {shop},{pages}")
        label.append(f"{number:05d},2026-11-{11 + day},device {number % 3},{bought}")
    (folder / "shop.csv").write_text("\n".join(feature))
    (folder / "bank.csv").write_text("\n".join(label))
    return folder


def job(
    tables: Path,
    *,
    since: str | None = None,
    privacy: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    own_features: bool = True,
    **training: Any,
) -> Job:
    own = {"categorical": ["device"]} if own_features else {}
    data = {
        "source": "table",
        "features": [{"path": str(tables / "shop.csv"), "time": "day", "categorical": ["shop"], "numeric": ["pages"]}],
        "label": {"path": str(tables / "bank.csv"), "time": "day", "label": "bought", **own},
        "since": since,
    }
    content = {
        "data": data,
        "privacy": privacy or {"epsilon": 1.0},
        "model": {"embedding_dim": 4, "bottom": [8, 4], "top": [4], **(model or {})},
        "training": {"batch_size": 32, "epochs": 1, "checkpoint_every": 3, "patience": 0, **training},
    }
    return make_job(content, {}, "test")


def start(job: Job, run: Path, earlier: Path, **changes: Any) -> TrainResult:
    """Train a job from an earlier run, as the command line does."""
    setup = RunSetup(job, RunFolder(run), start=StartingPoint(earlier))
    return train_together(replace(setup, **changes), VaultChoice())


def begin(job: Job, run: Path) -> TrainResult:
    """Train a job anew, with a vault in its folder that counts."""
    return train(job, run, vault=run / "label" / "vault")


def weights(run: Path, part: str = "") -> dict[str, bytes]:
    return {path.parts[-1]: path.read_bytes() for path in sorted(run.glob(f"*/{part}*.safetensors"))}


def first_days(tables: Path, **changes: Any) -> Job:
    """A job of all records but the last two days'."""
    return job(tables / "first", **changes)


@pytest.fixture(scope="module")
def earlier(tables: Path) -> Path:
    """A finished run on the first four days, with averages."""
    (tables / "first").mkdir()
    for name in ("shop.csv", "bank.csv"):
        lines = (tables / name).read_text().splitlines()[: 1 + 4 * A_DAY]
        (tables / "first" / name).write_text("\n".join(lines))
    begin(first_days(tables, averaging=0.9), tables / "earlier")
    return tables / "earlier"


def test_it_begins_with_the_weights_that_predict_in_the_earlier_run(
    tables: Path, earlier: Path, tmp_path: Path
) -> None:
    start(job(tables, since=NEW, **STANDING_STILL), tmp_path / "run", earlier)
    assert weights(tmp_path / "run") == weights(earlier)
    start(job(tables, since=NEW), tmp_path / "moved", earlier)
    assert weights(tmp_path / "moved").keys() == weights(earlier).keys()
    assert all(weights(tmp_path / "moved")[name] != content for name, content in weights(earlier).items())


def test_new_records_are_encoded_as_in_the_earlier_run(tables: Path, earlier: Path, tmp_path: Path) -> None:
    agreed = job(tables, since=NEW, validation=0.2)
    start(agreed, tmp_path / "run", earlier)
    for party in ("feature", "label"):
        before, now = (EncoderState.load(run / party / "encoder") for run in (earlier, tmp_path / "run"))
        assert now.digest() == before.digest()
    # What the run has noted of its test records is what it predicts when they are encoded again.
    data = load_records(agreed, encoders=StartingPoint.of_run(tmp_path / "run").encoders())
    noted = RunFolder(tmp_path / "run").predictions(1)["test"]
    assert np.abs(TrainedModel.open(tmp_path / "run").predict_rows(data, data.test) - noted).max() < 1e-6
    with pytest.raises(DataError, match="records of 'feature' are encoded otherwise"):
        setup = RunSetup(agreed, RunFolder(tmp_path / "other"), start=StartingPoint(earlier))
        train_together(setup, VaultChoice(), load_records(agreed))


def test_the_earlier_run_is_not_needed_to_resume_attack_or_audit(tables: Path, earlier: Path, tmp_path: Path) -> None:
    agreed = job(tables, since=NEW, epochs=2, own_features=True)
    parent = tmp_path / "parent"
    shutil.copytree(earlier, parent)
    start(agreed, tmp_path / "whole", parent, record_steps=ALL_STEPS)

    class Killed(Observer):
        def at_step(self, done: int, total: int, records: int) -> None:
            if done == 4:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(agreed, tmp_path / "killed", parent, watching=Watching(Killed()), record_steps=ALL_STEPS)
    shutil.copytree(tmp_path / "killed", tmp_path / "unnamed")
    shutil.copytree(parent / "label" / "vault", tmp_path / "vault")
    shutil.rmtree(parent)
    shutil.copytree(tmp_path / "vault", parent / "label" / "vault")
    start(agreed, tmp_path / "killed", parent, record_steps=ALL_STEPS)
    train(agreed, tmp_path / "unnamed", vault=VaultChoice(), record_steps=ALL_STEPS)
    for resumed in ("killed", "unnamed"):
        assert weights(tmp_path / resumed) == weights(tmp_path / "whole")
    labels = load_records(agreed).labels
    report = run_attacks(tmp_path / "whole", labels, which=["completion", "no_transcript"])
    assert len(report.attacks) == 2
    found = examine(agreed, tmp_path / "audit", run=tmp_path / "whole", only=["replay", "canaries"])
    assert found.passed
    assert found.replay is not None and found.replay.flipped > 50
    assert weights(tmp_path / "audit" / "replay" / "before", "start/") == weights(tmp_path / "whole", "start/")


def test_records_that_both_runs_have_learned_from_are_released_twice_only_if_asked_for(
    tables: Path, earlier: Path, tmp_path: Path
) -> None:
    parent, privacy = tmp_path / "parent", {"mechanism": "discrete"}
    first = begin(first_days(tables, privacy={"epsilon": 2.0, **privacy}), parent)
    agreed = job(tables, privacy={"epsilon": 0.5, **privacy})
    with pytest.raises(VaultError, match="records were released before under something else"):
        start(agreed, tmp_path / "run", parent)
    setup = RunSetup(agreed, RunFolder(tmp_path / "run"), start=StartingPoint(parent))
    result = train_together(setup, VaultChoice(policy=replace(NO_LIMITS, compose=True)))
    assert result.total_epsilon == pytest.approx(first.total_epsilon + result.epsilon)
    # With the same mechanism noisy labels are used again, and cost nothing.
    again = start(first_days(tables, privacy={"epsilon": 2.0, **privacy}), tmp_path / "again", tmp_path / "run")
    assert again.total_epsilon == pytest.approx(first.total_epsilon + result.epsilon)


@pytest.mark.parametrize(("before", "after"), [(2.0, 0.5), (0.5, 2.0)])
def test_only_new_records_are_released_and_the_total_speaks_of_all(
    tables: Path, earlier: Path, tmp_path: Path, before: float, after: float
) -> None:
    parent, run = tmp_path / "parent", tmp_path / "run"
    first = begin(first_days(tables, privacy={"epsilon": before, "mechanism": "discrete"}), parent)
    agreed = job(tables, since=NEW, privacy={"epsilon": after, "mechanism": "discrete"})
    result = start(agreed, run, parent)
    assert first.total_epsilon == pytest.approx(before, abs=1e-4)
    assert result.epsilon == pytest.approx(after, abs=1e-4)
    assert result.total_epsilon == max(first.total_epsilon, result.epsilon)
    assert RunFolder(run).vault() == parent / "label" / "vault" / "table-bought"
    with Vault.open(parent / "label" / "vault") as vault:
        released = [entry.details["records"] for entry in vault.ledger().entries if entry.kind == "released"]
    assert released == [first.train_records, result.train_records] == [320, 160]
    # Pages read the vault as it is now: a further release of old records is one of labels in these weights.
    assert result_now(RunFolder(run), result)[0].total_epsilon == result.total_epsilon
    with Vault.open(parent / "label" / "vault") as vault:
        ids = load_records(first_days(tables)).label_side.records.training_ids
        vault.release(laplace(4.0), ids=ids, policy=replace(NO_LIMITS, compose=True))
    assert result_now(RunFolder(run), result)[0].total_epsilon == pytest.approx(before + 4.0, abs=1e-3)
    total = read_ledger(RunFolder(run), agreed).total
    assert total is not None and total.epsilon == pytest.approx(before + 4.0, abs=1e-3)
    noted = RunFolder(run).origin("label")
    assert noted is not None and noted.released is not None
    assert (noted.train_records, noted.released.epsilon) == (320, first.total_epsilon)
    assert noted.versions == RunFolder(parent).versions()


def test_a_vault_that_was_moved_is_known_by_its_ledger_and_another_is_refused(
    tables: Path, earlier: Path, tmp_path: Path
) -> None:
    agreed = job(tables, since=NEW)
    shutil.copytree(earlier / "label" / "vault", tmp_path / "moved")
    setup = RunSetup(agreed, RunFolder(tmp_path / "run"), start=StartingPoint(earlier))
    assert train_together(setup, VaultChoice(tmp_path / "moved")).train_records == 160
    Vault.create(tmp_path / "other", apart="others").close()
    setup = RunSetup(agreed, RunFolder(tmp_path / "second"), start=StartingPoint(earlier))
    with pytest.raises(VaultError, match="is another one: new labels go into the same vault"):
        train_together(setup, VaultChoice(tmp_path / "other"))
    with pytest.raises(VaultError, match="which is not there"):
        train_together(setup, VaultChoice(tmp_path / "nowhere"))
    # Nothing was kept in the folder, so another job may have it.
    assert not RunFolder(tmp_path / "second").job_path.exists()


def test_a_wide_part_scores_new_records_and_nothing_is_sent(tables: Path, earlier: Path, tmp_path: Path) -> None:
    wide = {"wide": True}
    begin(first_days(tables, model=wide), tmp_path / "parent")
    start(job(tables, model=wide, since=NEW), tmp_path / "run", tmp_path / "parent", record_steps=ALL_STEPS)
    for party in ("feature", "label"):
        before, now = (load_file(tmp_path / run / party / WIDE) for run in ("parent", "run"))
        assert before.keys() == now.keys()
        assert all(tensor.equal(now[name]) for name, tensor in before.items() if name != "scores")
        assert len(now["scores"]) == 2 * A_DAY
    assert not (tmp_path / "run" / "feature" / "transcript" / "estimates.f32").exists()
    with pytest.raises(RunError, match=r"scores only records that it was not fitted on: set data\.since"):
        start(job(tables, model=wide), tmp_path / "all", tmp_path / "parent")


def test_what_was_pre_trained_stays_for_the_local_head(tables: Path, earlier: Path, tmp_path: Path) -> None:
    extras = {"pretrain": {"method": "masked", "epochs": 1}, "head": "local"}
    begin(first_days(tables, **extras), tmp_path / "parent")
    start(job(tables, since=NEW, **extras, **STANDING_STILL), tmp_path / "run", tmp_path / "parent")
    assert RunFolder(tmp_path / "run").local_head() is not None
    pretrained = [(tmp_path / run / "feature" / "pretrained.safetensors").read_bytes() for run in ("parent", "run")]
    assert pretrained[0] == pretrained[1]
    with pytest.raises(RunError, match="was not pre-trained"):
        start(job(tables, since=NEW, **extras), tmp_path / "other", earlier)


def test_the_first_embeddings_are_those_of_the_earlier_half(tables: Path, earlier: Path, tmp_path: Path) -> None:
    """What a feature party sends in the first step comes from the half that it had, not from the job's seed."""
    for seed in (0, 1):
        agreed = job(tables, since=NEW, seed=seed, batch_size=160)
        start(agreed, tmp_path / str(seed), earlier, record_steps=1)
    first, second = (next(iter(Transcript(tmp_path / seed / "feature" / "transcript"))) for seed in ("0", "1"))
    order = np.argsort(first.rows), np.argsort(second.rows)
    assert np.allclose(first.embeddings[order[0]], second.embeddings[order[1]], atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": {"bottom": [16, 4]}}, r"a run of another network \(model\.bottom: \[8, 4\] against \[16, 4\]\)"),
        ({"own_features": False}, r"another network \(data\.label\.categorical"),
        ({"privacy": {"gradients": "none"}, "head": "local"}, "'none' no half learns"),
    ],
)
def test_a_run_of_another_network_is_refused(
    tables: Path, earlier: Path, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(RunError, match=sentence):
        start(job(tables, since=NEW, **changes), tmp_path / "run", earlier)
    assert not (tmp_path / "run" / "job.yaml").exists()


def test_a_run_that_is_not_finished_or_not_there_is_refused(tables: Path, earlier: Path, tmp_path: Path) -> None:
    shutil.copytree(earlier, tmp_path / "unfinished")
    (tmp_path / "unfinished" / "result.json").unlink()
    with pytest.raises(RunError, match="the part of 'label' in it is not finished"):
        start(job(tables, since=NEW), tmp_path / "run", tmp_path / "unfinished")
    with pytest.raises(RunError, match=r"nowhere: is not a run folder"):
        start(job(tables, since=NEW), tmp_path / "run", tmp_path / "nowhere")


def test_halves_that_do_not_belong_together_are_refused(tables: Path, earlier: Path, tmp_path: Path) -> None:
    shutil.copytree(earlier, tmp_path / "mixed")
    (tmp_path / "mixed" / "feature" / "versions.json").write_text(json.dumps({"feature": "0" * 64}))
    with pytest.raises(RunError, match="the half of 'feature' is not the one that the label party was trained with"):
        start(job(tables, since=NEW), tmp_path / "run", tmp_path / "mixed")


def test_a_run_that_has_begun_keeps_its_beginning(tables: Path, earlier: Path, tmp_path: Path) -> None:
    agreed = job(tables, since=NEW, epochs=2)

    class Killed(Observer):
        def at_step(self, done: int, total: int, records: int) -> None:
            if done == 4:
                raise KeyboardInterrupt

    train(first_days(tables), tmp_path / "other")
    with pytest.raises(KeyboardInterrupt):
        start(agreed, tmp_path / "run", earlier, watching=Watching(Killed()))
    with pytest.raises(RunError, match=r"has begun from .*earlier, not from .*other; choose another --out"):
        start(agreed, tmp_path / "run", tmp_path / "other")
    with pytest.raises(KeyboardInterrupt):
        train(agreed, tmp_path / "cold", watching=Watching(Killed()))
    with pytest.raises(RunError, match=r"has begun with weights of its own, not from .*earlier"):
        start(agreed, tmp_path / "cold", earlier)


def test_a_start_that_was_killed_half_way_is_made_whole(
    tables: Path, earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed, keep_copy = job(tables, since=NEW), StartingPoint.keep_copy

    class Killed(BaseException):
        """As SIGKILL: nobody cleans up."""

    def killed(self: StartingPoint, run: RunFolder, party: str, origin: Origin) -> None:
        if party == "label":
            keep_copy(self, run, party, origin)
            (run.label / "start" / "origin.json").unlink()  # it is written last
            raise Killed
        keep_copy(self, run, party, origin)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(StartingPoint, "keep_copy", killed)
        start(agreed, tmp_path / "killed", earlier)
    with pytest.raises(RunError, match="its start from another run was interrupted"):
        train(agreed, tmp_path / "killed")
    start(agreed, tmp_path / "killed", earlier)
    start(agreed, tmp_path / "whole", earlier)
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")


def test_true_labels_have_no_part_in_what_is_kept(tables: Path, earlier: Path, tmp_path: Path) -> None:
    """The files of the beginning are the earlier run's weights and encoders, and a note."""
    agreed = job(tables, since=NEW)
    start(agreed, tmp_path / "run", earlier)
    kept = {path.name for path in (tmp_path / "run" / "label" / "start").rglob("*") if path.is_file()}
    assert kept == {
        "bottom.safetensors",
        "top.safetensors",
        "origin.json",
        "encoder.json",
    }
    feature = json.loads((tmp_path / "run" / "feature" / "start" / "origin.json").read_text())
    assert feature["released"] is None
    assert len(reveal(load_records(agreed).labels)) == 2 * A_DAY
