"""The feature parties' file: half of each image, and a small convolutional network that reads it."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Dataset

COLUMNS = {"left": slice(0, 4), "right": slice(4, 8)}


class HalfImages(Dataset[Tensor]):
    """The left or the right half of 1,797 handwritten digits: one channel, 8 rows of 4 pixels between 0 and 1."""

    def __init__(self, side: str) -> None:
        images = load_digits().images
        self.ids = list(range(len(images)))
        self.pixels = torch.from_numpy(images[:, None, :, COLUMNS[side]]).float() / 16

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, row: int) -> Tensor:
        return self.pixels[row]


def convolutions(width: int, inputs: object, channels: int = 16) -> nn.Module:
    """Return the left party's half: two convolutions, then this party's share of the cut."""
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(channels * 8 * 4, width),
    )


def normalised_convolutions(width: int, inputs: object, channels: int = 16) -> nn.Module:
    """Return the right party's half, with batch normalisation, whose running means are saved with the weights."""
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(channels * 8 * 4, width),
    )
