"""Figures and tables for papers: what is drawn and written are the numbers of the runs."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tpsl.report.run_table import summary
from tpsl.report.run_view import Attacks, RunView
from tpsl.report.words import bound_text
from tpsl_research.drawing import FORMATS
from tpsl_research.run_figures import attack_figure, curves_figure, epsilon_figure, roc_figure, write_figures
from tpsl_research.run_tables import attacks_table, runs_table, write_tables
from tpsl_research.text_table import latex_text


def points_of(figure: Any) -> set[tuple[float, float]]:
    """The places of all markers: the runs."""
    (panel,) = figure.axes
    return {
        (float(x), float(y))
        for line in panel.get_lines()
        if line.get_linestyle() == "None"
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    }


def test_points_stand_where_the_numbers_are(views: list[RunView]) -> None:
    numbers = [summary(view) for view in views]
    finished = [row for row in numbers if row["test_auc"] is not None]
    drawn = points_of(epsilon_figure(views))
    assert drawn >= {(row["epsilon"], row["test_auc"]) for row in finished if row["epsilon"] is not None}
    assert points_of(attack_figure(views)) >= {
        (row["attack_auc"], row["test_auc"]) for row in finished if row["attack_auc"] is not None
    }
    (panel,) = epsilon_figure(views).axes  # type: ignore[union-attr]
    assert panel.get_xscale() == "log"
    (reference,) = [line for line in panel.get_lines() if str(line.get_label()).startswith("without noise")]
    assert set(reference.get_ydata()) == {numbers[0]["test_auc"]}


def test_bars_are_the_intervals(views: list[RunView]) -> None:
    (panel,) = epsilon_figure(views).axes  # type: ignore[union-attr]
    ends = {
        (round(float(end[0]), 9), round(float(end[1]), 9))
        for bars in panel.collections
        for segment in bars.get_segments()
        for end in segment
    }
    for row in map(summary, views[1:4]):
        for side in ("test_auc_low", "test_auc_high"):
            assert (round(row["epsilon"], 9), round(row[side], 9)) in ends


def test_lines_join_means_of_runs_that_promise_the_same(views: list[RunView]) -> None:
    assert views[1].auc is not None
    twin = replace(views[1], auc=views[1].auc._replace(value=views[1].auc.value + 0.02))
    (panel,) = epsilon_figure([views[1], twin]).axes  # type: ignore[union-attr]
    lines = [line for line in panel.get_lines() if line.get_linestyle() == "-" and len(line.get_xdata()) == 1]
    assert [float(line.get_ydata()[0]) for line in lines] == [pytest.approx(views[1].auc.value + 0.01)]


def test_curves_are_the_epochs(views: list[RunView]) -> None:
    figure = curves_figure(views)
    assert figure is not None
    (panel,) = figure.axes
    lines = {str(line.get_label()): list(line.get_ydata()) for line in panel.get_lines()}
    for view in views[:4]:
        assert lines[view.name] == [entry["test_auc"] for entry in view.curves]


def test_roc_curves_are_those_of_the_attacks(views: list[RunView]) -> None:
    figure = roc_figure(views[1])
    assert figure is not None
    (panel,) = figure.axes
    curves = {str(line.get_label()): (list(line.get_xdata()), list(line.get_ydata())) for line in panel.get_lines()}
    assert views[1].attacks is not None
    for attack in views[1].attacks.made:
        if attack.roc and attack.kind == "noisy label":
            assert curves[f"{attack.name.replace('_', ' ')} ({attack.auc.value:.3f})"] == attack.roc
    # What ε allows: a straight line to its corner, and one on.
    assert curves["bound, by ε"][1][-1] == 1


def test_files_are_of_their_kind_and_the_same_every_time(views: list[RunView], tmp_path: Path) -> None:
    names = ["_$\\frac{$ ../&{}%\n", "_$\\frac{$ ..&{}%\n"]
    assert views[2].attacks is not None
    few = Attacks(tuple(attack for attack in views[2].attacks.made if "_" in attack.name), {})
    hostile = [replace(views[2], name=name, attacks=few) for name in names]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a name that matplotlib does not understand would warn
        written, left_out = write_figures(hostile, tmp_path)
    assert left_out == {}
    stems = ["epsilon", "attack", "curves", "roc-frac", "roc-frac-2"]
    assert [path.name for path in written] == [f"{stem}.{kind}" for stem in stems for kind in FORMATS]
    assert {path.parent for path in written} == {tmp_path}
    for path in written:
        content = path.read_bytes()
        assert content.startswith({".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}[path.suffix])
        if path.suffix == ".pdf":
            assert b"/Subtype /Type3" not in content and b"/FontFile2" in content
    before = {path.name: path.read_bytes() for path in written if path.stem == "curves"}
    write_figures([replace(view, attacks=None, auc=None) for view in hostile], tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_what_cannot_be_drawn_is_said(views: list[RunView], tmp_path: Path) -> None:
    bare = replace(views[3], attacks=None, curves=[], auc=None)
    written, left_out = write_figures([bare], tmp_path)
    assert written == [] and list(tmp_path.iterdir()) == []
    assert left_out.keys() == {"epsilon", "attack", "curves", "roc"}
    assert epsilon_figure([views[0], views[1]]) is None  # no noise has no place on an axis of ε


def test_runs_on_other_data_have_a_panel_of_their_own(views: list[RunView]) -> None:
    others = [replace(view, data_group="other", data="other") for view in views]
    figure = epsilon_figure([*views, *others])
    assert figure is not None
    assert [panel.get_title(loc="left").split(",")[0] for panel in figure.axes] == ["synthetic", "other"]


def cells_of(markdown: str) -> list[list[str]]:
    rows = [line for line in markdown.splitlines() if line.startswith("|") and "---" not in line]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def test_tables_hold_the_numbers_of_the_runs(views: list[RunView], tmp_path: Path) -> None:
    table = runs_table(views)
    head, *body = table.rows
    for view, row in zip(views, body, strict=True):
        cells, numbers = dict(zip(head, row, strict=True)), summary(view)
        assert cells["Run"] == view.name and cells["Mechanism"] == view.promise.mechanism
        assert cells["Test AUC"].split()[0] == ("–" if numbers["test_auc"] is None else f"{numbers['test_auc']:.4f}")
        assert cells["Bound"] == bound_text(*(numbers[f"bound{end}"] for end in ("", "_low", "_high")))
        assert cells["Strongest attack"] == (numbers["attack"] or "–").replace("_", " ")
    cells = dict(zip(head, body[3], strict=True))
    assert cells["ε"].endswith(" (seeded)") and cells["δ"] == "1e-6"
    assert "∞" in dict(zip(head, body[0], strict=True))["ε"]
    audited = float(dict(zip(head, body[1], strict=True))["Audited ε ≥"])
    assert 0 <= (views[1].audited_epsilon or 0) - audited < 1e-4
    attacks = attacks_table(views)
    assert attacks is not None
    assert views[1].attacks is not None
    found = {attack.name: attack for attack in views[1].attacks.made}
    column = {row[0]: row[2] for row in attacks.rows[1:]}
    assert {
        name.replace("_", " "): f"{attack.auc.value:.4f}" for name, attack in found.items()
    }.items() <= column.items()
    of_norm, of_likelihood = found["norm"].bound, found["likelihood"].bound
    assert of_norm is not None and of_likelihood is not None
    assert column["bound: noisy label"] == f"{of_likelihood.value:.4f}"
    assert column["bound: noisy label and features"].startswith(f"≈ {of_norm.value:.3f} ±")
    assert "noisy label and features: norm, spectral" in attacks.title
    assert {path.name for path in write_tables(views, tmp_path)} == {"runs.tex", "runs.md", "attacks.tex", "attacks.md"}
    assert len({len(row) for row in cells_of((tmp_path / "runs.md").read_text())}) == 1


def test_no_name_of_a_run_breaks_out_of_a_table(views: list[RunView]) -> None:
    name = r"a|b & c_1 \input{x} 100% #1 $x^2$ ~ {<b>"
    table = runs_table([replace(views[1], name=name)])
    (row,) = [line for line in table.latex("runs").splitlines() if line.startswith("a")]
    assert len(re.findall(r"(?<!\\)&", row)) == len(table.rows[0]) - 1
    assert not re.search(r"(?<!\\)[%#_~]", row) and r"\input" not in row
    assert len(re.findall(r"(?<!\\){", row)) == len(re.findall(r"(?<!\\)}", row))
    assert len(re.findall(r"(?<!\\)\$", row)) % 2 == 0
    for character in "[*":  # of the command \\ before them
        starred = runs_table([replace(views[1], name=f"{character}1em]")]).latex("runs")
        assert not re.search(rf"\\\\\s*\{character}", starred)
    assert latex_text("ε ≥ 1–2") == r"$\varepsilon$ $\ge$ 1--2"
    (_, cells) = cells_of(table.markdown())
    assert len(cells) == len(table.rows[0])
    assert "<b>" not in cells[0].replace(r"\<", "")


def test_columns_without_anything_are_left_out(views: list[RunView]) -> None:
    (head, _) = runs_table([replace(views[2], audited_epsilon=None)]).rows
    assert "Audited ε ≥" not in head and "δ" not in head
    assert attacks_table([replace(views[2], attacks=None)]) is None
