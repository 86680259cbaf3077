import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tpsl.report.html_parts import asset
from tpsl.report.page import told_apart, write_page
from tpsl.report.run_view import RunView


def test_the_page_is_one_small_file_that_names_no_other(page: Path) -> None:
    content = page.read_text(encoding="utf-8")
    assert len(content.encode()) < 400_000
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", content)
    assert "url(" not in content and "@import" not in content and "https://" not in content
    assert [path.name for path in page.parent.iterdir()] == ["report.html"]


def test_no_number_is_made_outside_python() -> None:
    """Scripts switch, sort and hide; whatever is read as a number was written by Python."""
    for name in ("page.js", "runs.js"):
        assert not re.findall(
            r"toFixed|toPrecision|toExponential|toLocaleString|NumberFormat|DateTimeFormat|Date\b|Math\.|parseFloat|parseInt",
            asset(name),
        )


def test_hostile_text_stays_text(page: Path) -> None:
    content = page.read_text(encoding="utf-8")
    assert content.count("<script>") == 1
    assert "alert(1)</script>" not in content
    title = "A report &lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;[bold]$title&lt;b&gt;"
    assert f"<title>{title}</title>" in content


def test_runs_of_one_name_are_told_apart(views: list[RunView]) -> None:
    same = told_apart([views[1], views[2], views[1], views[1]])
    assert [run.name for run in same] == ["laplace", "discrete", "laplace (2)", "laplace (3)"]


def test_a_report_of_no_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a report needs at least one run"):
        write_page(tmp_path / "page.html", [], title="")


def test_a_missing_folder_is_named(views: list[RunView], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*absent"):
        write_page(tmp_path / "absent" / "page.html", views, title="")
    with pytest.raises(IsADirectoryError, match="it is a folder"):
        write_page(tmp_path, views, title="")


WRITES_FOUR_KILOBYTES = """
import resource, signal
from pathlib import Path

from tpsl.report.page import write_page

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
write_page(Path(path), views, title="")
"""


def test_a_failed_write_leaves_the_old_page_and_nothing_else(
    views: list[RunView], tmp_path: Path, fork: Callable[..., Any]
) -> None:
    for place in ("page", "process"):
        (tmp_path / place).mkdir()
    path = tmp_path / "page" / "page.html"
    path.write_text("the old page")
    # A real failure in the middle of the file: the process may not write more than 4096 bytes to any file.
    process = fork(WRITES_FOUR_KILOBYTES, tmp_path / "process", path=str(path), views=views)
    assert process.status(within=60.0) == 1
    assert "File too large" in process.stderr.read_text()
    assert path.read_text() == "the old page"
    assert list(path.parent.iterdir()) == [path]


def test_text_that_is_not_unicode_does_not_cost_the_report(views: list[RunView], tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", views, title="A report", about="caf\udce9.csv")
    assert "caf?.csv" in (tmp_path / "page.html").read_text(encoding="utf-8")
