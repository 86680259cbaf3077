"""Parts by name: registered by code, by a module that is imported, or by an installed package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tpsl.attacks import ATTACKS, Attack
from tpsl.mechanisms import MECHANISMS, build_mechanism
from tpsl.registry import ExtensionError, Registry, UnknownName, called, imported, use
from tpsl.run.loggers import LOGGERS

INSTALLED = """
from tpsl.attacks import Attack
from tpsl.mechanisms import integer_weights

def leaning(epsilon, classes):
    return integer_weights([[0.6, 0.4], [0.4, 0.6]], epsilon)

loudest = Attack("transcript", lambda run: lambda seen: (seen.gradients ** 2).sum(axis=1))

def paper(run, argument):
    raise RuntimeError("out of paper")
"""
ENTRY_POINTS = """
[tpsl.mechanisms]
leaning = installed_parts:leaning

[tpsl.attacks]
loudest = installed_parts:loudest

[tpsl.loggers]
paper = installed_parts:paper
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that modules and packages are found in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for registry in (MECHANISMS, ATTACKS, LOGGERS):
        monkeypatch.setattr(registry, "_asked_packages", False)
    return tmp_path


def install(folder: Path, entry_points: str = ENTRY_POINTS) -> None:
    """Make what `pip install` leaves behind: a module, and beside it what the distribution declares."""
    (folder / "installed_parts.py").write_text(INSTALLED)
    about = folder / "installed_parts-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: installed-parts\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(entry_points)


def test_an_installed_package_brings_its_parts(folder: Path) -> None:
    install(folder)
    mechanism, _ = build_mechanism("leaning", 2, epsilon=1.0)
    assert (mechanism.name, mechanism.epsilon <= 1.0) == ("leaning", True)
    assert isinstance(ATTACKS.get("loudest"), Attack)
    assert "paper" in LOGGERS
    assert MECHANISMS.names()[0] == "auto" and MECHANISMS.names()[-1] == "leaning"


def test_a_package_whose_part_cannot_be_loaded_is_named(folder: Path) -> None:
    install(folder, "[tpsl.mechanisms]\nabsent = installed_parts:absent\n")
    for _ in range(2):
        with pytest.raises(
            ExtensionError, match=r"the mechanism 'absent' of installed_parts:absent cannot be imported"
        ):
            MECHANISMS.names()
    assert MECHANISMS.get("laplace") is not None  # a name that is known asks no package


def test_a_module_in_the_current_folder_registers_its_parts(folder: Path) -> None:
    (folder / "ours.py").write_text("import tpsl.attacks as a\na.ATTACKS.register('ours', a.Attack('', id))")
    use(["ours"])
    assert ATTACKS.get("ours").prepare is id


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("nothing", r"'nothing' is not of the form package.module:name"),
        (
            "absent_module:part",
            r"the half absent_module:part cannot be imported \(ModuleNotFoundError: .*\); modules are found in the c",
        ),
        ("broken_module:part", r"cannot be imported \(ZeroDivisionError: division by zero\)"),
        ("math:tau_and_pi", r"the half math:tau_and_pi: the module math has no tau_and_pi"),
    ],
)
def test_what_cannot_be_imported_is_said_in_a_sentence(folder: Path, path: str, complaint: str) -> None:
    (folder / "broken_module.py").write_text("1 / 0")
    with pytest.raises(ExtensionError, match=complaint):
        imported(path, "the half")


def test_a_name_stands_for_one_part() -> None:
    registry: Registry[Any] = Registry("colour")
    assert registry.register("red", len) is registry.register("red", len)
    with pytest.raises(ExtensionError, match="the colour 'red' is registered already"):
        registry.register("red", id)
    with pytest.raises(UnknownName, match="unknown colour 'blue'; known are red"):
        registry.get("blue")
    assert "red" in registry and "blue" not in registry and list(registry) == ["red"]


def test_a_part_that_fails_is_named_and_one_that_explains_itself_is_not_interrupted() -> None:
    assert called("the part", int, "7") == 7
    with pytest.raises(ExtensionError, match=r"^the part fails \(KeyError: 'x'\)$"):
        called("the part", {}.__getitem__, "x")
    with pytest.raises(UnknownName, match=r"^unknown attack 'seven'"):
        called("the part", ATTACKS.get, "seven")
