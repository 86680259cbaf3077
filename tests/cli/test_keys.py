"""The keys that the command line and the documentation know are those of the schemas, all of them described."""

from __future__ import annotations

from typing import Any

import pytest

from tpsl.cli.flags import UnknownKey, all_keys, key_above, settable_keys
from tpsl.training.job import Job
from tpsl.training.local import Local

MOST_KEYS = 120
"""Of the job and the local file together; one that several data sources have counts once."""


def leaves(content: dict[str, object], prefix: str = "") -> list[str]:
    """The dotted names of all that a mapping holds."""
    below = [leaves(value, f"{prefix}{key}.") for key, value in content.items() if isinstance(value, dict)]
    return [*(prefix + key for key in content), *(name for names in below for name in names)]


def test_every_key_of_job_and_local_file_is_known() -> None:
    names = settable_keys().keys()
    values = {"training.loss.name", "training.loss.arguments"}  # of one key that is written as a mapping
    assert set(leaves(Job().model_dump(mode="json"))) - values <= names
    assert set(leaves({"local": Local().model_dump(mode="json")})) - {"local"} <= names
    assert all(key_above(name).name == "training.loss" for name in values)
    assert {"data.label.unit", "data.path", "training.pretrain.method"} <= names


def test_keys_are_few() -> None:
    assert len({key.name for key in all_keys()}) <= MOST_KEYS


def test_every_key_has_a_description() -> None:
    assert [key.name for key in all_keys() if not key.description] == []


def test_a_key_says_what_it_takes() -> None:
    assert key_above("training.epochs").values == "integer"
    assert key_above("privacy.estimator").choices == ("linear", "unbiased", "posterior")
    assert key_above("model.bottom").default == "[128, 128]"
    assert (key_above("local.wait").values, key_above("local.wait").default) == ("number", "3600.0")
    assert (key_above("model.wide").values, key_above("model.wide").default) == ("true or false", "false")
    rows = {key.source: key.description for key in all_keys() if key.name == "data.rows"}
    assert rows["criteo"].startswith("Use only the first n records")
    assert rows["flights"].endswith("chosen at random, for quick tries.")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("training.epoch", "training.epochs"),
        ("epochs", "training.epochs, training.pretrain.epochs"),
        ("privacy.epsilonn", "privacy.epsilon"),
        ("local.wiat", "local.wait"),
        ("data.features[].path", "data.label.path, data.path"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UnknownKey, match=f"there is no key .*; near are {near}"):
        key_above(name)


def test_a_key_like_no_other() -> None:
    with pytest.raises(UnknownKey, match="`tpsl help keys` lists them"):
        key_above("zzz")


def test_keys_are_listed_with_what_they_mean(tpsl: Any) -> None:
    found = tpsl("help", "keys", "--json").json()["keys"]
    assert [(entry["name"], entry["source"]) for entry in found] == [(key.name, key.source) for key in all_keys()]
    shown = tpsl("help", "keys", "patience", "local.wa").stdout.splitlines()
    assert shown[0::2] == [
        "training.patience: integer; default 2",
        "local.wait: number; default 3600.0",
    ]
    assert all(line.startswith("    ") and line.endswith(".") for line in shown[1::2])
    assert tpsl("help", "keys", "nothing").error() == "error: no key has nothing in its name"
