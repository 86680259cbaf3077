"""Real text: the paragraphs of scikit-learn's docstrings, and the shelf of the library on which each one stands.

It takes the place of two databases. The feature party keeps the words of a paragraph, the label party its shelf.
"""

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

import sklearn

SHELVES = {
    "prediction": "ensemble gaussian_process linear_model naive_bayes neighbors neural_network svm tree",
    "structure": "cluster covariance decomposition manifold mixture",
    "data": "datasets feature_extraction impute preprocessing",
    "evaluation": "metrics model_selection",
}
SHORTEST = 10
"""A paragraph of fewer words is left out."""


class Paragraph(NamedTuple):
    """A paragraph: its id says nothing about the shelf."""

    id: str
    words: list[str]
    shelf: str


def paragraphs() -> list[Paragraph]:
    """Return all paragraphs that stand on one shelf only."""
    shelves: dict[str, set[str]] = {}
    for shelf, packages in SHELVES.items():
        for package in packages.split():
            for text in _docstrings(Path(sklearn.__file__).parent / package):
                for paragraph in re.split(r"\n\s*\n", text):
                    words = re.findall(r"[a-z]+", paragraph.lower())
                    if len(words) >= SHORTEST:
                        shelves.setdefault(" ".join(words), set()).add(shelf)
    unique = ((text, found.pop()) for text, found in shelves.items() if len(found) == 1)
    return [Paragraph(hashlib.sha256(text.encode()).hexdigest()[:16], text.split(), shelf) for text, shelf in unique]


def _docstrings(package: Path) -> list[str]:
    """Return what stands between triple quotes in the source of a package; nothing of it is imported."""
    sources = [path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py")) if "tests" not in path.parts]
    return [text for source in sources for text in re.findall(r'"""(.*?)"""', source, flags=re.DOTALL)]
