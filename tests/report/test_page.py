import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tpsl.report.page import SCRIPTS, asset, page_data, write_page
from tpsl.report.run_view import RunView


def test_the_page_is_one_file_of_a_few_megabytes_that_names_no_other(page: Path) -> None:
    content = page.read_text(encoding="utf-8")
    assert len(content.encode()) < 2_000_000
    ours = content.replace(asset("plotly-basic.min.js"), "")
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", ours)
    assert "url(" not in ours and "@import" not in ours and "https://" not in ours
    assert [path.name for path in page.parent.iterdir()] == ["report.html"]


def test_the_licence_of_the_charts_goes_with_them() -> None:
    assert "Copyright" in asset("plotly-LICENSE.txt")
    assert "v4.1.1" in asset("plotly-basic.min.js")[:200]


def test_hostile_text_stays_text(page: Path, views: list[RunView]) -> None:
    content = page.read_text(encoding="utf-8")
    assert content.count("<script>") == len(SCRIPTS)
    assert "alert(1)</script>" not in content
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', content, re.DOTALL)
    assert data is not None
    assert [
        {key: run[key] for key in run if key not in ("shown", "of_vault")} for run in json.loads(data[1])["runs"]
    ] == views
    assert (
        "<title>A report &lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;[bold]$title&lt;b&gt;</title>" in content
    )


def test_runs_of_one_name_are_told_apart(views: list[RunView]) -> None:
    same = page_data([views[1], views[2], views[1], views[1]], title="")
    assert [run["name"] for run in same["runs"]] == ["laplace", "discrete", "laplace (2)", "laplace (3)"]


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
