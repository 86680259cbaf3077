"""What a party brings itself: where its records come from and its half of the network, as factories in its local file.

    inputs: digits_data:left_half          # or {factory: digits_data:left_half, arguments: {blur: 1}}
    bottom: digits_networks:convolutions

A feature party has `inputs` and `bottom`; the label party has `top` and, with features of its own, `bottom`. The other
side never learns of them: the job fixes only the width of each share of the cut. They are noted in the party's folder
of a run, so that attacks, audits and predictions build the same parts again.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator

from tpsl.registry import ExtensionError, called, imported


class Factory(BaseModel):
    """A callable by its path, and arguments that go to it by name."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    is_value: ClassVar[bool] = True

    factory: str = Field(pattern=r"^[^:\s]+:[^:\s]+$", description="package.module:function")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Passed to it by name.")

    @model_validator(mode="before")
    @classmethod
    def _a_path_alone(cls, value: object) -> object:
        return {"factory": value} if isinstance(value, str) else value

    def make(self, what: str, /, **given: Any) -> Any:
        """Call the factory with what is given and its own arguments; an error says which factory failed and why."""
        return called(f"{what} {self}", imported(self.factory, what), **given, **self.arguments)

    def __str__(self) -> str:
        return self.factory


class GivenObject(BaseModel):
    """A part that came as a Python object: a module, an object with records, or a function that makes one.

    Only the name of its type can be noted, so the object has to be given again to use the run later.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    given: str
    _part: Any = PrivateAttr(None)

    @classmethod
    def of(cls, part: object) -> GivenObject:
        """Return the part of this object."""
        made = cls(given=getattr(part, "__name__", type(part).__name__))
        made._part = part
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GivenObject) and self.given == other.given

    def __str__(self) -> str:
        return self.given

    def make(self, what: str, /, **given: Any) -> Any:
        """Return a copy of a module, what a function returns, or any other object itself."""
        if self._part is None:
            raise ExtensionError(f"{what} was the Python object {self.given} when the run began: give it again")
        from torch import nn

        if isinstance(self._part, nn.Module):
            return deepcopy(self._part)
        return called(f"{what} {self}", self._part, **given) if callable(self._part) else self._part


def _part(value: object) -> object:
    """Let an object stand for itself where a file names a factory."""
    return value if value is None or isinstance(value, str | dict | BaseModel) else GivenObject.of(value)


Part = Annotated[Factory | GivenObject | None, BeforeValidator(_part)]


class OwnParts(BaseModel):
    """What one party brings; None where it takes what comes with this package.

    In Python a part may also be an object: `OwnParts(bottom=MyHalf)`, `OwnParts(bottom=my_module)`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    inputs: Part = None
    bottom: Part = None
    top: Part = None

    def source(self, party: str) -> Callable[[], Any] | None:
        """Return what makes the records of a party, if it brings them."""
        return None if self.inputs is None else partial(self.inputs.make, f"the source of {party}")
