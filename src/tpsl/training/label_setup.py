"""The label party of a run, set up in the same way whether peers are in this process or on a network."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from tpsl.data.sides import LabelSide
from tpsl.training.after_training import AfterTraining
from tpsl.training.arrivals import arrivals_for
from tpsl.training.build import LabelPartyBuilder, build_label_party
from tpsl.training.role import LabelRole
from tpsl.training.setup import RunSetup
from tpsl.training.vaults import RunVault, VaultChoice, choose_vault


class LabelSetup:
    """Where true labels part: into the vault and into what is computed when training is over. The role gets none."""

    def __init__(
        self,
        setup: RunSetup,
        side: LabelSide,
        choice: VaultChoice,
        make_party: LabelPartyBuilder = build_label_party,
    ) -> None:
        self._setup, self._side, self._choice, self._make_party = setup, side, choice, make_party
        self.arrivals = arrivals_for(setup, side, choice)
        self.after = AfterTraining(setup, side, self.arrivals)

    @cached_property
    def vault(self) -> RunVault:
        """The run's vault, checked against what the label party permits; nothing is stored or drawn yet."""
        return self.arrivals.vault if self.arrivals else choose_vault(self._setup, self._side, self._choice)

    def role(self, after_epoch: Callable[[], None] = lambda: None) -> LabelRole:
        """Return the role, which is given no true labels."""
        return LabelRole(
            self._setup,
            self._side.records,
            self.vault,
            arrivals=self.arrivals,
            make_party=self._make_party,
            after_epoch=after_epoch,
        )
