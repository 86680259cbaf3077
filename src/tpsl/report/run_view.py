"""What a report knows of one run: plain data, ready for JSON, for the page, for a live page and for tables."""

from __future__ import annotations

from typing import Any, Literal, TypedDict


class Promise(TypedDict):
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
    large_delta: bool
    """Whether the total δ is above 1/records, as far as their number is known: no such run is simply called private."""
    epsilon_text: str
    delta_text: str
    """ε and δ of this run's own release as they are shown."""
    words: str
    """The promise for a reader who knows no mathematics; it speaks of the total where that is known."""
    ceiling: float
    """The bound on the AUC of an attack that scores by what was released alone: what this run's own ε and δ allow."""
    attack: str
    """The attack that `closed_form` is of: on gradients the shortest distance, on handed-over labels their likelihood,
    on a statistic that of an attacker who knows all other labels."""
    closed_form: float | None
    """Its AUC that follows from the mechanism alone; on a statistic, of a record whose vector is as long as may be."""
    closed_form_best: float | None
    """The AUC of the best attack on what was released."""
    closed_form_roc: list[list[float]] | None
    """Its ROC curve, as lists of FPR and TPR; None for more than two classes."""
    worth_words: str
    """How many clean labels the noisy ones are worth at most; or nothing."""


class ShownAttack(TypedDict):
    """What one attack reached, beside the bound of its own kind of attacker."""

    name: str
    auc: float
    auc_low: float | None
    auc_high: float | None
    kind: str
    """What the attacker scores by: one of `tpsl.attacks.scoring.ScoredBy`."""
    bound: float | None
    bound_low: float | None
    bound_high: float | None
    """The ends of the 95 % interval of an estimated bound; both are the bound where it is proved."""
    above_bound: bool
    """Whether it lies above a proved bound by more than chance, which is a bug."""


class Sighting(TypedDict):
    """One kind of information, and what each side gets to see of it."""

    what: str
    feature: str
    label: str


class StatementView(TypedDict):
    """A signed statement about the vault; who has signed it was not traced to an authority."""

    file: str
    party: str
    time: str
    spent_text: str
    """The most that any record had spent by then."""
    entries_since: int | None
    """Entries of the ledger that are newer; None for a reader who sees no ledger."""


class OriginView(TypedDict):
    """The run that a run has started from."""

    run: str
    versions: dict[str, str]
    train_records: int
    total_epsilon_text: str | None
    """What its records had spent in all; None where a feature party reads."""


class VaultFacts(TypedDict):
    """What is to be known of a run's vault besides its total."""

    gone_vaults: int
    """How many vaults are gone that runs on the same data name; the total ε counts what was noted of them."""
    epsilon_all_labels: float | str | None
    """The most that any record has spent over all labels of the vault ("inf": infinite); None if there is no other."""
    apart: str | None
    """Why the labels of a second vault are nobody's in the label party's first one; None if it is that one."""


class RunView(VaultFacts):
    """One run as a report shows it. What is unknown, or must not be known to the reader's party, is None."""

    name: str
    party: str
    """Whose view this is: `label`, or a feature party that then finds nothing here that depends on true labels."""
    state: Literal["finished", "unfinished"]
    updated: str | None
    """When the run last wrote something, in UTC."""
    data: str
    data_group: str
    """Equal for runs on the same data: only those can be compared."""
    classes: int
    train_records: int | None
    test_records: int | None
    step: int
    epoch: int
    epochs: int
    """How far the run is, and how far it goes."""
    kept_epoch: int | None
    """The epoch whose weights were kept, if the run could have stopped early."""
    statistic_records: int
    """Labels that left in noisy statistics, on which the private head was fitted."""
    samples_per_second: float | None
    seconds: float | None
    feature_parties: list[str]
    crossed: int | None
    """Numbers that stand for one record's features and cross the border, of the reader's own; None where none cross."""
    versions: dict[str, str]
    """Of the feature parties' halves, as far as the reader knows them (`Role.version_of`)."""
    program: str | None
    """Which version of tpsl has trained it; None until it is finished."""
    origin: OriginView | None
    """None for a run whose weights came from the job's seed."""
    promise: Promise
    features_words: str
    """What is not promised: a sentence about features, for the same reader as the promise's words."""
    sightings: list[Sighting]
    job: dict[str, Any]
    """The agreement, without the places of files."""
    job_digest: str
    changed: dict[str, Any]
    """Keys of the job that differ from their defaults."""
    ledger: dict[str, Any] | None
    ledger_note: str
    """Why there is no ledger, or nothing."""
    spent_by: Literal["ledger", "note", "run"]
    """Where the total ε is from: the label party's ledger, the run's note of it, or this run's own release alone."""
    statement: StatementView | None
    scratch: bool
    """Whether the run is for its owner alone: its vault counts in no total, and nothing of it may leave."""
    test: dict[str, float | None] | None
    learned: dict[str, str]
    """Of a run in which a learner besides the network was fitted: what it is, and what noisy labels say of it."""
    local_head: dict[str, float | None] | None
    curves: list[dict[str, Any]]
    """The metrics after each epoch, each entry with `epoch`; which other keys there are is up to the training."""
    recorded: bool
    """Whether the run can be attacked: a transcript was recorded, or none is needed."""
    attacks: dict[str, Any] | None
    audit: dict[str, Any] | None
    replay: dict[str, Any] | None
    examination: dict[str, Any] | None
