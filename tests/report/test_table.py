import io
from math import isnan

from rich.console import Console

from tpsl.report import RunSummary, summary_table


def test_the_table_shows_every_number_at_80_columns(rows: list[RunSummary]) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(summary_table(rows[:4]))
    text = console.export_text()
    for row in rows[:4]:
        for area in (row.test_auc, row.test_auc_low, row.test_auc_high, row.attack_auc, row.attack_closed_form):
            assert isnan(area) or f"{area:.4f}" in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    lines = text.splitlines()
    assert next(line for line in lines if "non-private" in line).split()[1] == "∞"
    assert next(line for line in lines if "Laplace" in line).rstrip().endswith("yes")
    assert "no: seeded" in next(line for line in lines if "2.001" in line)


def test_a_name_is_not_read_as_markup(rows: list[RunSummary]) -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(summary_table(rows))
    assert rows[-1].name in console.export_text()
