"""Where the weights of a run come from: the earlier run that it started from, as one party knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from tpsl.vault.cost import as_json


@dataclass(frozen=True)
class Ledgered:
    """What the label party knows of the labels that an earlier run has learned from."""

    vault: str
    """Where they were released from."""
    head: str
    """The newest entry of the vault's ledger then: a vault that has it is that one, wherever it lies now."""
    epsilon: float
    """The most that any of them had spent in all."""


@dataclass(frozen=True)
class Origin:
    """The run that a run has started from."""

    run: str
    """Its folder."""
    versions: Mapping[str, str]
    """Of the feature parties' halves (`tpsl.training.versions`), as far as this party knows them."""
    train_records: int
    ledgered: Ledgered | None = None
    """None at a feature party, and in an audit, which releases labels of its own."""

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able data."""
        content = asdict(self)
        if self.ledgered is not None:
            content["ledgered"]["epsilon"] = as_json(self.ledgered.epsilon)
        return content

    @classmethod
    def from_dict(cls, content: Any) -> Origin:
        """Rebuild what `as_dict` wrote."""
        found = content["ledgered"]
        ledgered = found and Ledgered(str(found["vault"]), str(found["head"]), float(found["epsilon"]))
        versions = {str(party): str(version) for party, version in content["versions"].items()}
        return cls(str(content["run"]), versions, int(content["train_records"]), ledgered)

    def without_ledger(self) -> Origin:
        """Return the same for a run with labels of its own."""
        return replace(self, ledgered=None)
