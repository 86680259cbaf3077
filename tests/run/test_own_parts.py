"""What a party brings: named in its file, or given in Python; noted in the run, and never lost without a word."""

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from tpsl.registry import ExtensionError
from tpsl.run.own_parts import OwnParts


def test_a_factory_is_a_path_with_or_without_arguments() -> None:
    short, long = (
        OwnParts.model_validate({"bottom": written})
        for written in ("torch.nn:Linear", {"factory": "torch.nn:Linear", "arguments": {"bias": False}})
    )
    for parts, bias in ((short, True), (long, False)):
        assert parts.bottom is not None
        made = parts.bottom.make("the bottom half", in_features=2, out_features=3)
        assert (type(made), made.bias is not None) == (nn.Linear, bias)
        assert OwnParts.model_validate_json(parts.model_dump_json()) == parts
    assert short != long


@pytest.mark.parametrize("written", ["torch.nn", "torch.nn:", ":Linear", 7, {"factory": "a:b", "argument": {}}])
def test_what_names_no_factory_is_refused(written: object) -> None:
    with pytest.raises((ValidationError, ExtensionError)):
        parts = OwnParts.model_validate_json(OwnParts.model_validate({"bottom": written}).model_dump_json())
        assert parts.bottom is not None
        parts.bottom.make("the bottom half")


def test_a_factory_that_fails_says_which_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "networks_of_this_test.py").write_text("def half(width): raise RuntimeError('no such\\nfile')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for factory, reason in (
        ("networks_of_this_test:half", r" fails \(RuntimeError: no such file\)"),
        ("networks_of_this_test:other", ": the module networks_of_this_test has no other"),
        ("networks_of_no_test:half", " cannot be imported"),
    ):
        parts = OwnParts.model_validate({"bottom": factory})
        assert parts.bottom is not None
        with pytest.raises(ExtensionError, match=f"^the bottom half {factory}{reason}"):
            parts.bottom.make("the bottom half", width=2)


def test_objects_stand_for_themselves_and_are_noted_by_name() -> None:
    module, records = nn.Linear(2, 3), [1, 2, 3]
    parts = OwnParts(inputs=records, bottom=module, top=nn.Linear)
    assert parts.inputs is not None and parts.bottom is not None and parts.top is not None
    assert parts.inputs.make("the inputs") is records
    copy = parts.bottom.make("the bottom half", width=3)
    assert copy is not module
    assert torch.equal(copy.weight, module.weight)
    assert isinstance(parts.top.make("the top half", in_features=2, out_features=3), nn.Linear)
    noted = OwnParts.model_validate_json(parts.model_dump_json())
    assert noted == parts
    assert noted.bottom is not None
    with pytest.raises(ExtensionError, match="the bottom half was the Python object Linear when the run began"):
        noted.bottom.make("the bottom half", width=3)
