import pickle
import re
import subprocess
import sys
from dataclasses import replace
from math import nan
from pathlib import Path

import pytest

from tpsl.report import RunSummary, write_page


def text_of(rows: list[RunSummary], folder: Path) -> str:
    write_page(folder / "page.html", rows, title="A report", facts={})
    return (folder / "page.html").read_text(encoding="utf-8")


def lead_of(rows: list[RunSummary], folder: Path) -> str:
    header = text_of(rows, folder).split("</h1>")[1].split("</header>")[0]
    return re.sub(r"<[^>]+>", "", header).strip()


def test_the_page_is_one_small_file_that_names_no_other(page: Path) -> None:
    content = page.read_text(encoding="utf-8")
    assert len(content.encode()) < 1_000_000
    assert not re.search(r"""(src|href)=["'](?!data:)""", content)
    assert "url(" not in content and "@import" not in content
    assert [path.name for path in page.parent.iterdir()] == ["report.html"]


def test_hostile_text_stays_text(page: Path, rows: list[RunSummary]) -> None:
    content = page.read_text(encoding="utf-8")
    assert content.count("<script>") == 1
    assert "alert(1)</script>" not in content
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;[bold]$title" in content


def test_the_lead_says_what_is_private_what_it_reaches_and_what_leaks(rows: list[RunSummary], tmp_path: Path) -> None:
    assert lead_of(rows[:3], tmp_path) == (
        "2 of these 3 runs are private. The best of them, Discrete, posterior (ours), promises ε = 1 and has a test "
        "AUC of 0.7371 (0.7702 without privacy). The shortest-distance attack on its transcript reaches 0.7315 "
        "(0.7295–0.7335), where 0.5 is guessing and 0.7311 is the most that ε allows any attack on average."
    )
    assert lead_of(rows[:2], tmp_path).startswith("One of these 2 runs is private. It promises ε = 1 and has")
    unattacked = replace(rows[1], attack_auc=nan, attack_auc_low=nan, attack_auc_high=nan)
    assert lead_of([unattacked], tmp_path) == "This run is private. It promises ε = 1 and has a test AUC of 0.7291."


def test_runs_that_are_not_private_are_called_so(rows: list[RunSummary], tmp_path: Path) -> None:
    assert lead_of([rows[0], rows[3]], tmp_path) == "None of these runs is private."
    assert lead_of([rows[3]], tmp_path) == "This run is not private."
    content = text_of([rows[0], rows[3]], tmp_path)
    assert content.count('<span class="badge no">not private</span>') == 2
    assert "badge yes" not in content.split("<main>")[1]


def test_parts_without_content_are_left_out(rows: list[RunSummary], tmp_path: Path) -> None:
    headings = re.findall("<h2>(.*?)</h2>", text_of([rows[3]], tmp_path))
    assert headings == ["What was promised", "What it costs", "What an attacker got", "All numbers"]
    assert 'id="by-epoch"' not in text_of([rows[3]], tmp_path)


def test_one_epoch_is_a_number_and_not_a_curve(rows: list[RunSummary], tmp_path: Path) -> None:
    content = text_of([replace(rows[1], epochs=1, auc_by_epoch=(0.7291007,))], tmp_path)
    assert "<h2>Training</h2>" not in content
    assert 'data-value="0.7291007">0.7291</td>' in content.split('id="by-epoch"')[1]


def test_a_report_of_no_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a report needs at least one run"):
        write_page(tmp_path / "page.html", [], title="", facts={})


def test_a_missing_folder_is_named(rows: list[RunSummary], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*absent"):
        write_page(tmp_path / "absent" / "page.html", rows, title="", facts={})


def test_a_failed_write_leaves_the_old_page_and_nothing_else(rows: list[RunSummary], tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("the old page")
    # A real failure in the middle of the file: the process may not write more than 4096 bytes to any file.
    script = (
        "import pickle, resource, signal, sys; from pathlib import Path; from tpsl.report import write_page\n"
        "rows = pickle.load(sys.stdin.buffer); signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "write_page(Path(sys.argv[1]), rows, title='', facts={})\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], input=pickle.dumps(rows), capture_output=True)
    assert b"File too large" in done.stderr
    assert path.read_text() == "the old page"
    assert list(tmp_path.iterdir()) == [path]


def test_text_that_is_not_unicode_does_not_cost_the_report(rows: list[RunSummary], tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", rows, title="A report", facts={"File": "caf\udce9.csv"})
    assert "caf?.csv" in (tmp_path / "page.html").read_text(encoding="utf-8")
