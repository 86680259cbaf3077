import io
import json

from rich.console import Console

from tpsl.report.run_table import summary, summary_table
from tpsl.report.run_view import RunView
from tpsl.report.words import lead


def test_the_table_shows_every_number_at_80_columns(views: list[RunView]) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(summary_table(views[:4]))
    text = console.export_text()
    for view in views[:4]:
        numbers = summary(view)
        for key in ("test_auc", "test_auc_low", "test_auc_high", "attack_auc", "ceiling"):
            assert numbers[key] is None or f"{numbers[key]:.4f}" in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    lines = text.splitlines()
    assert next(line for line in lines if "non-private" in line).split()[1] == "∞"
    assert next(line for line in lines if "laplace" in line).rstrip().endswith("yes")
    assert "no: seeded" in next(line for line in lines if "seeded" in line)


def test_a_name_is_not_read_as_markup(views: list[RunView]) -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(summary_table(views))
    assert views[-1]["name"] in console.export_text()


def test_a_summary_is_json_and_has_null_where_nothing_is_known(views: list[RunView]) -> None:
    stopped = json.loads(json.dumps(summary(views[-1]), allow_nan=False))
    assert stopped["state"] == "unfinished"
    assert stopped["test_auc"] is stopped["samples_per_second"] is None
    assert summary(views[1])["audited_epsilon"] > 0.5


def test_the_attack_is_the_one_that_the_closed_form_is_of(views: list[RunView]) -> None:
    """Where labels were handed over, or left in a statistic, nobody measures distances of gradients."""
    laplace = views[1]
    found = (laplace["attacks"] or {})["attacks"]
    assert summary(laplace)["attack_auc"] == found["shortest_distance"]["auc"]
    handed: RunView = {**laplace, "promise": {**laplace["promise"], "attack": "likelihood"}}
    assert summary(handed)["attack_auc"] == found["likelihood"]["auc"] != found["shortest_distance"]["auc"]
    assert "The likelihood of its noisy labels reaches 0." in lead([handed])
    statistic: RunView = {**laplace, "promise": {**laplace["promise"], "attack": "statistic"}}
    assert summary(statistic)["attack_auc"] is None
    assert "attack" not in lead([statistic])
