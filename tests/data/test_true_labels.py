import copy
import pickle
from typing import Any

import numpy as np
import pytest

from tpsl.data.true_labels import TrueLabels, reveal

LABELS = np.array([0, 1, 1, 0, 1, 1, 1, 1])


@pytest.fixture
def handle() -> TrueLabels:
    return TrueLabels(LABELS, ("no", "yes"))


def test_number_and_classes_are_all_it_tells(handle: TrueLabels) -> None:
    assert len(handle) == 8
    assert handle.classes == 2
    assert repr(handle) == str(handle) == "<8 true labels of 2 classes>"
    assert not [name for name in dir(handle) if not name.startswith("_") and name not in ("classes", "class_names")]


@pytest.mark.parametrize(
    "look",
    [
        lambda labels: labels[0],
        iter,
        lambda labels: labels.__array__(),
        lambda labels: labels == 1 or 1 / 0,
        lambda labels: labels + 0,
        lambda labels: 1 in labels,
        vars,
        copy.copy,
        copy.deepcopy,
        pickle.dumps,
        memoryview,
    ],
)
def test_labels_cannot_be_looked_at(handle: TrueLabels, look: Any) -> None:
    with pytest.raises((TypeError, AttributeError, ZeroDivisionError)):
        look(handle)


def test_an_array_made_of_it_holds_the_handle_alone(handle: TrueLabels) -> None:
    assert np.asarray(handle).dtype == object
    assert np.asarray(handle).shape == ()


def test_one_function_opens_the_handle(handle: TrueLabels) -> None:
    assert reveal(handle) is LABELS
