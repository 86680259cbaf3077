"""What the label party permits: the veto on a release, whatever the job says that both parties share."""

import math
from dataclasses import dataclass

from tpsl.vault.cost import Spent, check_delta
from tpsl.vault.errors import VaultError

DEFAULT_MAX_EPSILON = 10.0


@dataclass(frozen=True)
class ReleasePolicy:
    """What a release may cost at most. The label party's own: no job and no other party sets it.

    `max_epsilon` bounds the ledger's total of each record after the release, all draws and earlier releases counted; in
    a vault that counts people, what anybody can have spent over all alignments.
    `max_delta` bounds their δ in the same way; None: 1/records. `not_private` permits what promises nothing: no noise,
    seeded noise, an infinite ε. `compose` permits a further release of records that were released before under another
    mechanism or ε, as this label or as the same one under another name.
    """

    max_epsilon: float = DEFAULT_MAX_EPSILON
    not_private: bool = False
    compose: bool = False
    max_delta: float | None = None

    def __post_init__(self) -> None:
        if not self.max_epsilon >= 0:
            raise VaultError(f"the largest ε that is permitted is a number from 0 on, not {self.max_epsilon!r}")

    def check(self, after: Spent, records: int) -> None:
        """Raise a `VaultError` unless the records may have spent what they will have spent after the release.

        `records` is how many there are in all, whose number bounds δ.
        """
        if not after.private:
            if not self.not_private:
                raise VaultError(
                    "this release is NOT PRIVATE: labels without noise, or with noise from a seed, can be read; the "
                    "label party permits that only with --not-private (`not_private` in its local file, or in Python)"
                )
        elif after.epsilon > self.max_epsilon:
            raise VaultError(
                f"this release would bring {spent_after(after)}, more than the ε = {self.max_epsilon:g} that the label "
                "party permits; --max-epsilon (`max_epsilon` in its local file, or in Python) permits more"
            )
        else:
            check_delta(after.delta, records, self.max_delta)


def spent_after(after: Spent) -> str:
    """Return whom a release brings to which ε."""
    epsilon = f"{after.epsilon:.9g}" if math.isfinite(after.epsilon) else "∞"
    return f"{'people' if after.who == 'person' else 'the records'} to ε = {epsilon} in all"


NO_LIMITS = ReleasePolicy(max_epsilon=float("inf"), not_private=True)
"""For experiments: any ε, also none; a second release of the same records and a large δ have to be asked for."""
