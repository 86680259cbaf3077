"""The feature party's file: paragraphs as sequences of word numbers, and a recurrent network that reads them."""

from collections import Counter

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from library import paragraphs

WORDS = 2000
"""The most frequent words have numbers from 1; all others, and the space after a short paragraph, are 0."""
LENGTH = 48
"""Later words of a paragraph are not read."""


class Sequences:
    """The words of each paragraph as numbers, and how many words there are."""

    def __init__(self) -> None:
        found = paragraphs()
        frequent = Counter(word for paragraph in found for word in paragraph.words).most_common(WORDS)
        numbers = {word: number for number, (word, _) in enumerate(frequent, start=1)}
        self.ids = [paragraph.id for paragraph in found]
        self.lengths = torch.tensor([min(len(paragraph.words), LENGTH) for paragraph in found])
        self.tokens = torch.zeros(len(found), LENGTH, dtype=torch.int64)
        for row, paragraph in enumerate(found):
            known = [numbers.get(word, 0) for word in paragraph.words[:LENGTH]]
            self.tokens[row, : len(known)] = torch.tensor(known)

    def batch(self, rows: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return the tokens of these rows, and their lengths."""
        return self.tokens[rows], self.lengths[rows]


class Recurrent(nn.Module):
    """An embedding of words, a gated recurrent unit, and the largest of its states in each direction of the space."""

    def __init__(self, width: int, inputs: object, size: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS + 1, size)
        self.unit = nn.GRU(size, size, batch_first=True)
        self.out = nn.Linear(size, width)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Return this party's share of the cut."""
        states, _ = self.unit(self.embedding(tokens))
        after_the_end = torch.arange(LENGTH, device=tokens.device) >= lengths[:, None]
        share: Tensor = self.out(states.masked_fill(after_the_end[:, :, None], -1.0).amax(dim=1))
        return share
