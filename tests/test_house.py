"""The drawing of the house shows every room, in the order that the import linter keeps."""

import tomllib
import xml.etree.ElementTree as ET
from collections import Counter
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
BESIDE_THE_HOUSE = "tpsl_research"
"""A package of its own, drawn as `research/`."""


def layers() -> list[list[str]]:
    """Return the rooms from the roof to the ground, those of a layer together."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (rooms,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[room.removeprefix("tpsl.") for room in layer.split(" | ")] for layer in rooms]


def drawn() -> dict[str, float]:
    """Return the words in the drawing, each with how far it stands from the top."""
    texts = ET.parse(ROOT / "docs/images/house.svg").findall(".//{http://www.w3.org/2000/svg}text")
    return {word: float(text.get("y", "0")) for text in texts for word in (text.text or "").split(" · ")}


def test_every_room_is_drawn_and_none_above_one_that_uses_it() -> None:
    heights = drawn()
    assert "research/" in heights
    rooms = [layer for layer in layers() if layer != [BESIDE_THE_HOUSE]]
    assert len(rooms) > 15
    assert [room for layer in rooms for room in layer if room not in heights] == []
    for upper, lower in pairwise(rooms):
        assert max(heights[room] for room in upper) <= min(heights[room] for room in lower), (upper, lower)


def test_every_stage_of_training_is_drawn() -> None:
    stages = {file.stem.replace("_", " ") for file in (ROOT / "src/tpsl/run/stages").glob("[!_]*.py")}
    assert len(stages) > 5
    assert stages <= drawn().keys()


def test_no_two_modules_share_a_name() -> None:
    names = Counter(file.stem for file in (ROOT / "src/tpsl").rglob("*.py") if not file.stem.startswith("__"))
    assert [name for name, count in names.items() if count > 1] == []
