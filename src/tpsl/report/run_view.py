"""What a report knows of one run: the frozen view, made once from result, ledger, findings and job.

Every number that is shown, every decision and every sentence about one run is a field here; pages, tables, the
terminal and notebooks show them. What is unknown, or must not be known to the reader's party, is None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from tpsl.metrics import GUESSING
from tpsl.run.evaluation import TestCurves
from tpsl.vault import Ledger


class Interval(NamedTuple):
    """A number with its 95 % confidence interval; without one both ends are the number."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, content: Mapping[str, Any], key: str) -> Interval | None:
        """Return the number of this key, with its ends under `KEY_low` and `KEY_high`; None where there is none."""
        value, low, high = (content.get(f"{key}{end}") for end in ("", "_low", "_high"))
        return None if value is None else cls(value, value if low is None else low, value if high is None else high)

    @classmethod
    def at(cls, value: float) -> Interval:
        """Return a number that is known exactly."""
        return cls(value, value, value)

    def holds(self, value: float) -> bool:
        """Whether a value lies in the interval."""
        return self.low <= value <= self.high

    def less(self, other: Interval) -> Interval:
        """Return the difference; its interval is that of independent numbers, too wide for AUCs of the same records."""
        margin = math.hypot(self.high - self.low, other.high - other.low) / 2
        difference = self.value - other.value
        return Interval(difference, difference - margin, difference + margin)


@dataclass(frozen=True)
class Promise:
    """What was promised about every label, and what that allows an attacker."""

    mechanism: str
    estimator: str
    draws: int
    total_epsilon: float | None
    """What the run's records have spent over all releases of the vault, and of vaults that are gone: the ε that is
    promised. None: infinite."""
    total_delta: float
    total_epsilon_text: str
    total_delta_text: str
    """As they are shown: rounded up. A feature party sees no ledger: its totals are this run's own share."""
    epsilon: float | None
    """The ε of this run's own release over all draws; None without noise, where it is infinite."""
    delta: float
    private: bool
    """False for no noise and for seeded noise, which anybody with the seed can subtract, in any of the releases."""
    seeded: bool
    """Whether this run's own noise came from a seed."""
    large_delta: bool
    """Whether the total δ is above 1/records, as far as their number is known: no such run is simply called private."""
    epsilon_text: str
    delta_text: str
    """ε and δ of this run's own release as they are shown."""
    ceiling: float
    """The bound on the AUC of an attack that scores by what was released alone: what this run's own ε and δ allow."""
    attack: str
    """The attack that `closed_form` is of: on gradients the shortest distance, on handed-over labels their likelihood,
    on a statistic that of an attacker who knows all other labels."""
    closed_form: float | None
    """Its AUC that follows from the mechanism alone; on a statistic, of a record whose vector is as long as may be."""
    worth_words: str
    """How many clean labels the noisy ones are worth at most; or nothing."""

    @property
    def bound_of(self) -> str:
        """The kind of attacker whom `ceiling` is for."""
        return "statistic" if self.attack == "statistic" else "noisy label"


@dataclass(frozen=True)
class Attack:
    """What one attack that was made reached, beside the bound of its own kind of attacker."""

    name: str
    auc: Interval
    kind: str
    """What the attacker scores by: one of `tpsl.attacks.scoring.ScoredBy`."""
    needs: str
    """What the attacker has."""
    bound: Interval | None
    """With ends of its own where it is estimated; None where nothing bounds the attacker."""
    above_bound: bool
    """Whether it lies above a proved bound by more than chance, which is a bug."""
    closed_form: float | None = None
    tpr_0_001: float | None = None
    tpr_0_01: float | None = None
    records: int | None = None
    roc: tuple[Sequence[float], Sequence[float]] | None = None
    """FPR and TPR."""


@dataclass(frozen=True)
class Attacks:
    """The attacks that were made on a run, and why others were not."""

    made: tuple[Attack, ...]
    not_run: Mapping[str, str]
    predicted_from: Sequence[str] = ()
    """What the bounds of attackers with features were estimated from."""

    @classmethod
    def of(cls, content: Mapping[str, Any], *, seeded: bool) -> Attacks:
        """Return what `AttackReport.as_dict` says; where the noise was `seeded`, nothing bounds who has the seed."""
        made = (_attack(name, one, seeded=seeded) for name, one in content["attacks"].items())
        return cls(tuple(filter(None, made)), content.get("not_run", {}), content.get("predicted_from", ()))

    def strongest(self, *, of_features: bool = False) -> Attack | None:
        """Return the attack with the largest AUC of those that use the run, or of those by features alone."""
        found = (attack for attack in self.made if (attack.kind == "features") == of_features)
        return max(found, key=lambda attack: (attack.auc.value, attack.name), default=None)


def _attack(name: str, one: Mapping[str, Any], *, seeded: bool) -> Attack | None:
    reached = Interval.of(one, "auc")
    roc = one.get("roc")
    return reached and Attack(
        name=name,
        auc=reached,
        kind=one.get("scored_by", ""),
        needs=one["needs"].replace("+", " + "),
        bound=None if seeded else Interval.of(one, "ceiling"),
        above_bound=bool(one.get("above_ceiling")),
        closed_form=one.get("closed_form"),
        tpr_0_001=one.get("tpr_at_fpr_0_001"),
        tpr_0_01=one.get("tpr_at_fpr_0_01"),
        records=one.get("records"),
        roc=([0, *roc["fpr"]], [0, *roc["tpr"]]) if roc else None,
    )


@dataclass(frozen=True, kw_only=True)
class VaultFacts:
    """What is to be known of a run's vault besides its total."""

    gone_vaults: int = 0
    """How many vaults are gone that runs on the same data name; the total ε counts what was noted of them."""
    epsilon_all_labels: float | str | None = None
    """The most that any record has spent over all labels of the vault ("inf": infinite); None if there is no other."""
    apart: str | None = None
    """Why the labels of a second vault are nobody's in the label party's first one; None if it is that one."""


@dataclass(frozen=True, kw_only=True)
class RunView(VaultFacts):
    """One run as a report shows it, for one party."""

    name: str
    party: str
    """Whose view this is: `label`, or a feature party that then finds nothing here that depends on true labels."""
    promise: Promise
    data: str
    data_group: str
    """Equal for runs on the same data: only those can be compared."""
    classes: int
    feature_parties: tuple[str, ...]
    job: Mapping[str, Any]
    """The agreement, without the places of files."""
    job_digest: str
    changed: Mapping[str, Any]
    """Keys of the job that differ from their defaults."""
    sightings: Sequence[tuple[str, str, str]]
    """Kinds of information, and what the feature party and the label party get to see of each."""
    epochs: int
    """How far the run goes."""
    crossed: int | None
    """Numbers that stand for one record's features and cross the border, of the reader's own; None where none cross."""
    features_words: str
    """What is not promised: a sentence about features, for the same reader as the promise's words."""
    scratch: bool
    """Whether the run is for its owner alone: its vault counts in no total, and nothing of it may leave."""
    version: str = ""
    """Of the feature parties' halves, as far as the reader knows them (`Role.version_of`)."""
    program: str | None = None
    """Which version of tpsl has trained it; None until it is finished."""
    starts_from: str | None = None
    """The run that its weights came from; None for a run whose weights came from the job's seed."""
    origin_words: str | None = None
    state: Literal["finished", "unfinished"] = "unfinished"
    updated: str | None = None
    """When the run last wrote something, in UTC."""
    train_records: int | None = None
    test_records: int | None = None
    step: int = 0
    epoch: int = 0
    kept_epoch: int | None = None
    """The epoch whose weights were kept, if the run could have stopped early."""
    statistic_records: int = 0
    """Labels that left in noisy statistics, on which the private head was fitted."""
    samples_per_second: float | None = None
    seconds: float | None = None
    ledger: Ledger | None = None
    ledger_note: str = ""
    """Why there is no ledger, or nothing."""
    spent_by: Literal["ledger", "note", "run"] = "run"
    """Where the total ε is from: the label party's ledger, the run's note of it, or this run's own release alone."""
    auc: Interval | None = None
    """Of the model on test records."""
    scores: Mapping[str, float | None] | None = None
    """Log loss, accuracy and calibration error on test records; None if the run is not finished."""
    test_curves: TestCurves | None = None
    """Classes, calibration, precision and recall on test records."""
    importance: Sequence[tuple[str, float]] = ()
    """Columns of the reader's own, and how far their effects spread in the additive part, the largest first."""
    local_head_words: str = ""
    """What a local head reaches that was trained on true labels; or nothing."""
    learned: Mapping[str, str] | None = None
    """Of a run in which a learner besides the network was fitted: what it is, and what noisy labels say of it."""
    curves: Sequence[Mapping[str, Any]] = ()
    """The metrics after each epoch, each entry with `epoch`; which other keys there are is up to the training."""
    recorded: bool = False
    """Whether the run can be attacked: a transcript was recorded, or none is needed."""
    attacks: Attacks | None = None
    audited_epsilon: float | None = None
    """The lower bound on ε that an audit has found."""
    audit_words: Sequence[str] = ()
    """What audits found, a sentence each."""

    @property
    def attack(self) -> Attack | None:
        """The strongest attack that uses the run."""
        return self.attacks.strongest() if self.attacks else None

    @property
    def attack_auc(self) -> Interval | None:
        """What the strongest attack reached."""
        return self.attack.auc if self.attack else None

    @property
    def attack_without_run(self) -> Attack | None:
        """The strongest attack by features alone, which uses nothing of the run."""
        return self.attacks.strongest(of_features=True) if self.attacks else None

    @property
    def bound(self) -> Interval | None:
        """The bound that stands beside the attack of a table; of a run that was not attacked, what is proved."""
        return self.attack.bound if self.attack else Interval.at(self.promise.ceiling)

    @property
    def bound_of(self) -> str:
        """The kind of attacker whom `bound` is for."""
        return self.attack.kind if self.attack else self.promise.bound_of

    @property
    def private(self) -> bool:
        """Whether it may simply be called private: secret noise in every release, and no large δ."""
        return self.promise.private and not self.promise.large_delta

    @property
    def guessing(self) -> bool:
        """Whether the interval of its test AUC reaches 0.5."""
        return self.auc is not None and self.auc.low <= GUESSING

    @property
    def own_share(self) -> str:
        """This run's own ε where other releases of the same labels have added to it, or nothing."""
        promise = self.promise
        own, whole = (promise.epsilon, promise.delta), (promise.total_epsilon, promise.total_delta)
        return "" if own == whole else f"this run: {promise.epsilon_text}"

    @property
    def budget(self) -> str:
        """The total `ε` or, where δ is not zero, `ε, δ = …` as it is shown everywhere."""
        promise = self.promise
        return promise.total_epsilon_text + (f", δ = {promise.total_delta_text}" if promise.total_delta else "")
