"""What a party brings itself: where its records come from and its half of the network, as factories in its local file.

    inputs: digits_data:left_half          # or {factory: digits_data:left_half, arguments: {blur: 1}}
    bottom: digits_networks:convolutions

A feature party has `inputs` and `bottom`; the label party has `top` and, with features of its own, `bottom`. The other
side never learns of them: the job fixes only the width of each share of the cut. They are noted in the party's folder
of a run, so that attacks, audits and predictions build the same parts again.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tpsl.registry import ExtensionError, imported


class Factory(BaseModel):
    """A callable by its path, and arguments that go to it by name."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    factory: str = Field(pattern=r"^[^:\s]+:[^:\s]+$", description="package.module:function")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Passed to it by name.")

    @model_validator(mode="before")
    @classmethod
    def _a_path_alone(cls, value: object) -> object:
        return {"factory": value} if isinstance(value, str) else value

    def make(self, what: str, /, **given: Any) -> Any:
        """Call the factory with what is given and its own arguments; an error says which factory failed and why."""
        function = imported(self.factory, what)
        try:
            return function(**given, **self.arguments)
        except Exception as error:
            reason = " ".join(str(error).split()) or "no reason given"
            raise ExtensionError(f"{what} {self.factory} fails ({type(error).__name__}: {reason})") from error


class OwnParts(BaseModel):
    """The factories of one party; None where the party takes what comes with this package."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    inputs: Factory | None = None
    bottom: Factory | None = None
    top: Factory | None = None
