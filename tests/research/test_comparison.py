"""What changes of a job are worth, over seeds."""

import json
import sys
from pathlib import Path

import pytest

from tpsl.run.job import make_job
from tpsl_research.comparison import compare, comparison_table, main, read_settings


def test_settings_share_their_seeds_and_are_compared_with_the_first() -> None:
    content = {
        "data": {"source": "synthetic", "rows": 1200, "numeric_fields": 3, "categorical_fields": 2, "signal": 2.0},
        "model": {"embedding_dim": 2, "bottom": [8], "top": [8]},
        "training": {"epochs": 1, "batch_size": 100, "patience": 0},
    }
    base = make_job(content, {}, "a test")
    none = {"mechanism": "none", "estimator": "linear"}
    settings = {"plain": {"privacy": none}, "again": {"privacy": none}, "noisy": {"privacy": {"epsilon": 0.1}}}
    plain, again, noisy = found = compare(base, settings, range(2), "test_auc")
    assert plain.values == again.values
    assert plain.values[0] != plain.values[1]
    assert plain.change is None
    assert again.change is not None and (again.change.value, again.change.low, again.change.high) == (0.0, 0.0, 0.0)
    differences = [a - b for a, b in zip(noisy.values, plain.values, strict=True)]
    assert noisy.change is not None and noisy.change.value == pytest.approx(sum(differences) / 2)
    table = comparison_table(found, "test_auc").rows
    assert [row[0] for row in table] == ["", "plain", "again", "noisy"]
    assert table[2][3] == "+0.00000"


def test_the_program_reads_a_job_and_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").write_text("data: {source: synthetic, rows: 600}\ntraining: {epochs: 1, patience: 0}\n")
    (tmp_path / "settings.yaml").write_text("plain: {}\nslow: {training: {averaging: 0.9}}\n")
    files = [str(tmp_path / "job.yaml"), str(tmp_path / "settings.yaml")]
    command = ["comparison", *files, "--seeds", "1", "--metric", "test_log_loss"]
    monkeypatch.setattr(sys, "argv", [*command, "--json"])
    main()
    plain, slow = json.loads(capsys.readouterr().out)["settings"]
    assert (plain["setting"], plain["change"]) == ("plain", None)
    assert slow["change"]["value"] == slow["values"][0] - plain["values"][0]
    assert slow["change"]["low"] is None, "one seed has no interval"
    (tmp_path / "job.yaml").write_text("data: {source: criteo, path: train.txt}\n")
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit):
        main()
    assert "NOT PRIVATE" in capsys.readouterr().err


def test_settings_are_a_map(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("- averaging\n")
    with pytest.raises(ValueError, match=r"settings\.yaml"):
        read_settings(tmp_path / "settings.yaml")
