"""`tpsl export`: a half as files, and a local head only where it may be."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tpsl.model.trained import TrainedModel


@pytest.fixture
def run(tpsl: Any, small_job: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    options = (
        "--set=data.rows=1000",
        "--vault",
        tmp_path / "vault",
        "--set=training.head=local",
        "--out",
        folder,
        "--json",
    )
    assert tpsl("train", small_job, *options).status == 0
    return folder


def test_the_local_head_is_written_apart_and_marked(
    tpsl: Any, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    shown = tpsl("export", run, "--party", "label", "--head", "local", "--out", out, "--json")
    card = shown.json()["card"]
    assert "warning: a local head is trained on true labels and is NOT PRIVATE" in shown.stderr
    assert [entry.name for entry in out.iterdir()] == ["NOT-PRIVATE"]
    assert shown.json()["folder"] == str(out / "NOT-PRIVATE")
    assert (out / "NOT-PRIVATE" / "MODEL_CARD.md").read_text().startswith("# NOT PRIVATE")
    assert card["title"].startswith("NOT PRIVATE") and not card["privacy"]["private"]
    assert set(card["files"].values()) == {"written"}
    (share,) = (part["shape"][1] for part in card["inputs"])
    shares = torch.from_numpy(np.random.default_rng(0).normal(size=(5, share)).astype(np.float32))
    expected = TrainedModel.open(run).predictor(local_head=True).probabilities({"feature": shares})
    assert expected.std() > 1e-3
    np.save(tmp_path / "share.npy", shares)
    options = ["--share", f"feature={tmp_path / 'share.npy'}", "--out", str(tmp_path / "scores.npy")]
    monkeypatch.setattr(sys, "argv", ["predict.py", *options])
    runpy.run_path(str(out / "NOT-PRIVATE" / "predict.py"), run_name="__main__")
    np.testing.assert_allclose(np.load(tmp_path / "scores.npy"), expected, atol=1e-5)


def test_refusals_leave_nothing_behind(tpsl: Any, run: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "out")
    refused = tpsl("export", run, "--party", "feature", "--head", "local", *out).error()
    assert "a local head is trained on true labels and stays with the label party: feature has none" in refused
    assert "the parties are feature, label" in tpsl("export", run, "--party", "shop", *out).error()
    (run / "label" / "NOT-PRIVATE" / "result.json").unlink()
    assert "the run has no local head" in tpsl("export", run, "--party", "label", "--head", "local", *out).error()
    assert "is not a run folder" in tpsl("export", tmp_path, "--party", "label", *out).error()
    assert not (tmp_path / "out").exists()
