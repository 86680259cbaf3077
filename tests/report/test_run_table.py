import io
import json
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from tpsl.report.run_table import summary, summary_table
from tpsl.report.run_view import RunView
from tpsl.report.words import bound_text


def test_the_table_shows_every_number_at_80_columns(views: list[RunView]) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(summary_table(views[:4]))
    text = console.export_text()
    for view in views[:4]:
        numbers = summary(view)
        for key in ("test_auc", "test_auc_low", "test_auc_high", "attack_auc"):
            assert numbers[key] is None or f"{numbers[key]:.4f}" in text
        assert bound_text(*(numbers[f"bound{end}"] for end in ("", "_low", "_high"))) in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    lines = text.splitlines()
    assert next(line for line in lines if "non-private" in line).split()[1] == "∞"
    assert next(line for line in lines if "laplace" in line).rstrip().endswith("yes")
    assert "no: seeded" in next(line for line in lines if "seeded" in line)


def test_a_name_is_not_read_as_markup(views: list[RunView]) -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(summary_table(views))
    assert views[-1].name in console.export_text()


def test_a_summary_is_json_and_has_null_where_nothing_is_known(views: list[RunView]) -> None:
    stopped = json.loads(json.dumps(summary(views[-1]), allow_nan=False))
    assert stopped["state"] == "unfinished"
    assert stopped["test_auc"] is stopped["samples_per_second"] is None
    assert summary(views[1])["audited_epsilon"] > 0.5


def test_the_attack_is_the_strongest_and_its_bound_that_of_its_kind(runs: Path, views: list[RunView]) -> None:
    laplace = views[1]
    found = json.loads((runs / "laplace" / "label" / "attacks.json").read_text())["attacks"]
    numbers = summary(laplace)
    assert numbers["attack_auc"] == max(one["auc"] for one in found.values() if one["scored_by"] != "features")
    own = found[numbers["attack"]]
    assert (numbers["attack_auc"], numbers["attack_auc_high"]) == (own["auc"], own["auc_high"])
    assert (numbers["bound"], numbers["bound_low"], numbers["bound_of"]) == (
        own["ceiling"],
        own["ceiling_low"],
        own["scored_by"],
    )
    assert numbers["without_run_auc"] == found["no_transcript"]["auc"]


def test_the_bound_of_a_run_that_was_not_attacked_says_whose_it_is(views: list[RunView]) -> None:
    alone = replace(views[1], attacks=None)
    numbers = summary(alone)
    assert (numbers["attack"], numbers["attack_auc"]) == (None, None)
    assert (numbers["bound"], numbers["bound_of"]) == (views[1].promise.ceiling, "noisy label")
    statistic = replace(alone, promise=replace(alone.promise, attack="statistic"))
    assert summary(statistic)["bound_of"] == "statistic"
