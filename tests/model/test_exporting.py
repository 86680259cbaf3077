"""An exported half gives the run's own scores, from raw records and without tpsl."""

import csv
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tpsl.data.party_file import encode_file
from tpsl.model import predict_script
from tpsl.model.exporting import ExportError
from tpsl.model.trained import TrainedModel
from tpsl.registry import ExtensionError
from tpsl.run.job import Job
from tpsl.run.one_process import train
from tpsl.run.own_parts import OwnParts
from tpsl.run.run_folder import RunFolder
from tpsl.run.setup import RunSetup
from tpsl.select.search import tune

from .conftest import shop_records

# Runs exported scripts as a user does, in one process to import PyTorch once; whoever imports tpsl there fails.
WITHOUT_TPSL = """
import json, runpy, sys
sys.modules["tpsl"] = None
for folder, *arguments in json.load(sys.stdin):
    sys.modules.pop("encode", None)
    sys.path.insert(0, folder)
    sys.argv = ["predict.py", *arguments]
    runpy.run_path(f"{folder}/predict.py", run_name="__main__")
    sys.path.pop(0)
assert not [name for name in sys.modules if name.startswith("tpsl.")]
"""


BOTTOM = "parts.0.bottom."


class OwnBottom(nn.Module):
    """Reads the numbers of a table and leaves out its categories."""

    def __init__(self, numbers: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(numbers, width)

    def forward(self, categories: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.linear(numbers)
        return found


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the exported halves of both parties."""
    folder = tmp_path_factory.mktemp("exported")
    for party in ("shop", "label"):
        files = TrainedModel.open(run).export(folder / party, party).card["files"]
        assert set(files.values()) == {"written"}
    return folder


@pytest.fixture(scope="module")
def ensemble(job_of_tables: Callable[..., Job], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a search of two configurations."""
    folder = tmp_path_factory.mktemp("ensemble") / "tuned"
    space = [{"model": {"members": 2, "wide": True}}, {"model": {"bottom": [12]}}]
    tune(RunSetup(job_of_tables(), RunFolder(folder)), space)
    return folder


@pytest.mark.long
def test_both_engines_give_the_scores_of_runs_and_ensembles_from_raw_records(
    run: Path, exported: Path, ensemble: Path, new_records: tuple[Path, Path], tmp_path: Path
) -> None:
    for party in ("shop", "label"):
        assert set(TrainedModel.open(ensemble).export(tmp_path / party, party).card["files"].values()) == {"written"}
    shop, bank = new_records
    calls, results = [], []
    for folder, path in ((exported, run), (tmp_path, ensemble)):
        for engine in ("torch", "onnx"):
            share, scores = (str(tmp_path / f"{name}-{path.name}-{engine}.npy") for name in ("share", "scores"))
            shared = ["--engine", engine, "--out"]
            calls.append([str(folder / "shop"), "--records", str(shop), *shared, share])
            calls.append([str(folder / "label"), "--records", str(bank), "--share", f"shop={share}", *shared, scores])
            results.append((path, share, scores))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", WITHOUT_TPSL]
    subprocess.run(command, input=json.dumps(calls), text=True, check=True, env=environment, cwd=tmp_path)

    ((_, shop_features),) = encode_file(RunFolder(run).encoder("shop"), shop)
    ((_, bank_features),) = encode_file(RunFolder(run).encoder("label"), bank)
    for path, share, scores in results:
        halves = TrainedModel.open(path).halves()
        expected = halves.probabilities({"shop": shop_features, "label": bank_features})
        assert expected.std() > 1e-3  # or anything would do
        np.testing.assert_allclose(np.load(share), halves.bottoms["shop"].embed(shop_features), atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(np.load(scores), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "delimiter", "weights"),
    [
        ("new.csv", ",", ["1234.5", "1,234.5", "", "-0.25"]),
        ("new.csv.gz", ";", ["1234,5", "1.234,5", "", "-0,25"]),
        ("new.CSV", "|", ["1234.5", "1,234.5", "", "-0.25"]),
        ("new.tsv", "\t", ["1234.5", "1,234.5", "", "-0.25"]),
    ],
)
def test_the_script_reads_files_as_tpsl_does(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, delimiter: str, weights: list[str]
) -> None:
    records = [record | {"weight": weight} for record, weight in zip(shop_records(4, 5), weights, strict=True)]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(records[0]), delimiter=delimiter, quoting=csv.QUOTE_NONNUMERIC)
    writer.writeheader()
    writer.writerows(records)
    pack = gzip.compress if name.endswith(".gz") else bytes
    (tmp_path / name).write_bytes(pack(text.getvalue().encode("utf-8-sig")))
    (tmp_path / "encoder.json").write_text(json.dumps(RunFolder(run).encoder("shop").plain()))
    monkeypatch.setattr(predict_script, "HERE", tmp_path)
    found = predict_script.read_records(tmp_path / name)
    ((_, expected),) = encode_file(RunFolder(run).encoder("shop"), tmp_path / name)
    np.testing.assert_array_equal(found["categorical"], expected.categorical)
    np.testing.assert_array_equal(found["numeric"], expected.numeric)
    assert found["numeric"][0, 0] == found["numeric"][1, 0] > 0 > found["numeric"][3, 0]


def test_the_script_refuses_a_number_that_could_be_either(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [
        record | {"weight": weight} for record, weight in zip(shop_records(2, 5), ["2.345,5", "1.234"], strict=True)
    ]
    with (tmp_path / "new.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(records[0]), delimiter=";")
        writer.writeheader()
        writer.writerows(records)
    (tmp_path / "encoder.json").write_text(json.dumps(RunFolder(run).encoder("shop").plain()))
    monkeypatch.setattr(predict_script, "HERE", tmp_path)
    with pytest.raises(ValueError, match=r"^record 2: column 'weight': '1\.234' is written differently"):
        predict_script.read_records(tmp_path / "new.csv")


def test_the_cards_of_an_ensemble_name_its_members(ensemble: Path) -> None:
    model, tuned = TrainedModel.open(ensemble), json.loads((ensemble / "tune.json").read_text())
    shop, label = model.card("shop"), model.card()
    assert shop["versions"] == label["versions"] == model.versions()
    assert label["metrics"]["test_auc"] == tuned["ensemble"]["test_auc"]
    assert [member["weight"] for member in label["members"]] == [row["weight"] for row in tuned["candidates"]]
    assert [member["epoch"] for member in label["members"]] == [1, 1]
    assert [set(member) for member in shop["members"]] == [{"run", "epoch"}] * 2, "weights are the label party's"


@pytest.mark.parametrize("party", ["shop", "label"])
def test_a_batch_may_be_empty(exported: Path, party: str) -> None:
    card = json.loads((exported / party / "card.json").read_text())
    inputs = {part["name"]: np.zeros((0, *part["shape"][1:]), part["type"]) for part in card["inputs"]}
    (found,) = onnxruntime.InferenceSession(exported / party / "half.onnx").run(None, inputs)
    half = torch.export.load(exported / party / "half.pt2").module()
    assert found.shape == half(*map(torch.from_numpy, inputs.values())).shape == (0, *card["output"]["shape"][1:])


def test_weights_are_those_of_the_run(run: Path, exported: Path) -> None:
    weights, trained = load_file(exported / "shop" / "half.safetensors"), load_file(run / "shop" / "bottom.safetensors")
    kept = {name.removeprefix(BOTTOM): tensor for name, tensor in weights.items() if name.startswith(BOTTOM)}
    assert kept.keys() == trained.keys()
    assert all(kept[name].equal(tensor) for name, tensor in trained.items())


def test_files_are_for_their_owner_only(exported: Path) -> None:
    for folder in (exported / "shop", exported / "label"):
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}


def test_the_label_partys_card_says_what_was_promised_and_reached(run: Path, exported: Path) -> None:
    card = json.loads((exported / "label" / "card.json").read_text())
    result, ledger = RunFolder(run).result(), RunFolder(run).noted_ledger()
    assert result is not None and ledger is not None
    assert card["metrics"]["test_auc"] == result.test_auc
    assert None not in card["metrics"].values()  # the job has no validation
    assert card["privacy"]["total_epsilon"] == result.total_epsilon
    assert card["privacy"]["ledger_head"] == ledger.head
    assert card["versions"] == {"shop": RunFolder(run).version("shop")}
    assert card["columns"] == {"branch": "category"}
    text = (exported / "label" / "MODEL_CARD.md").read_text()
    assert f"`{result.test_auc}`" in text and ledger.head in text


def test_a_feature_partys_card_knows_nothing_of_labels(run: Path, exported: Path, tmp_path: Path) -> None:
    card = json.loads((exported / "shop" / "card.json").read_text())
    assert "metrics" not in card
    assert card["privacy"] == {
        "mechanism": "discrete",
        "estimator": "posterior",
        "draws": 1,
        "epsilon": 4.0,
        "delta": 0.0,
        "private": True,
    }
    alone = tmp_path / "run"
    shutil.copytree(run, alone)
    shutil.rmtree(alone / "label")
    (alone / "result.json").unlink()
    facts = TrainedModel.open(alone).card("shop")
    assert {name: card[name] for name in facts if name != "created"} == {
        name: value for name, value in facts.items() if name != "created"
    }
    both = [json.loads((exported / party / "card.json").read_text()) for party in ("shop", "label")]
    for same in ("job", "records", "versions", "trained_by"):
        assert both[0][same] == both[1][same]
    assert card["trained_by"] == f"tpsl {version('tpsl')}"
    assert f"| `trained by` | `{card['trained_by']}` |" in (exported / "shop" / "MODEL_CARD.md").read_text()


def test_a_half_that_was_an_object_is_exported_if_it_is_given_again(
    job_of_tables: Callable[..., Job], tmp_path: Path
) -> None:
    own = OwnParts(bottom=lambda width, inputs: OwnBottom(inputs.numeric.shape[1], width))
    train(job_of_tables({"wide": False}), tmp_path / "run", vault=tmp_path / "vault", own={"shop": own})
    with pytest.raises(ExtensionError, match="was the Python object <lambda> when the run began: give it again"):
        TrainedModel.open(tmp_path / "run").export(tmp_path / "out", "shop")
    files = TrainedModel.open(tmp_path / "run", {"shop": own}).export(tmp_path / "out", "shop").card["files"]
    assert set(files.values()) == {"written"}
    exported = list(load_file(tmp_path / "out" / "half.safetensors").values())
    for trained in load_file(tmp_path / "run" / "shop" / "bottom.safetensors").values():
        assert any(torch.equal(trained, tensor) for tensor in exported)


def test_what_cannot_be_exported_is_one_sentence(
    run: Path, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ExportError, match="there is no party 'shoe' in the job; the parties are shop, label"):
        TrainedModel.open(run).export(tmp_path / "out", "shoe")
    with pytest.raises(ExportError, match="is there already, and is not an empty folder"):
        TrainedModel.open(run).export(exported / "shop", "shop")
    unfinished = tmp_path / "run"
    shutil.copytree(run, unfinished)
    (unfinished / "result.json").unlink()
    (unfinished / "shop" / "result.json").unlink()
    for party in ("shop", "label"):
        with pytest.raises(ValueError, match="is not finished"):
            TrainedModel.open(unfinished).export(tmp_path / "out", party)
    monkeypatch.setattr("tpsl.model.exporting.find_spec", lambda name: None)
    with pytest.raises(ExportError, match=r"ONNX is not installed: `pip install 'tpsl\[export\]'` gets it"):
        TrainedModel.open(run).export(tmp_path / "out", "shop")
    assert not (tmp_path / "out").exists()
