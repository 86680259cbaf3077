"""Numbers and promises in plain words. Whatever bounds a leak (ε, δ, e^ε) is rounded up, never down."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context, Decimal
from typing import TYPE_CHECKING

from tpsl.report.run_view import RunView, VaultFacts

if TYPE_CHECKING:
    from tpsl.handover.learning import LearnResult
    from tpsl.run.result import TrainResult
    from tpsl.select.candidates import TuneResult

MISSING = "–"
"""Shown where there is no number."""
NO_NUMBER = (None, None, None)
"""An interval of nothing."""
LARGE_DELTA_TEXT = "δ is above 1/records: the promise is expected to fail for at least one record."
"""Said of a run that was permitted such a δ."""


def rounded_up(value: float, digits: int) -> str:
    """Return the value with at most `digits` significant digits, never below the value; infinity is `∞`."""
    if math.isinf(value):
        return "∞"
    # From the shortest decimal that names the float: from its exact binary value 0.1 would become 0.1001.
    bound = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(repr(value))).normalize()
    return f"{bound:f}" if value == 0 or value >= 1e-3 else f"{bound:e}".replace("e-0", "e-")


def auc_text(area: float | None) -> str:
    """Return an AUC with four decimals."""
    return MISSING if area is None else f"{area:.4f}"


def measured_text(area: float | None, low: float | None, high: float | None) -> str:
    """Return an AUC followed by its interval, if it has one, in parentheses."""
    interval = interval_text(low, high)
    return f"{auc_text(area)} ({interval})" if interval else auc_text(area)


def bound_text(bound: float | None, low: float | None, high: float | None) -> str:
    """Return what bounds an attack's AUC: rounded up where it is proved, with `≈` and `±` where it is estimated."""
    if bound is None or low is None or high is None or math.isnan(bound):
        return MISSING
    return f"≈ {bound:.3f} ±{(high - low) / 2:.3f}" if low < high else f"{math.ceil(round(bound * 1e4, 5)) / 1e4:.4f}"


def significant(value: float | None) -> str:
    """Return a number with four significant digits, in plain decimals."""
    return MISSING if value is None else f"{float(f'{value:.4g}'):.12g}"


def at_least_text(value: float | None) -> str:
    """Return a lower bound with four decimals, rounded down."""
    return MISSING if value is None else f"{math.floor(value * 1e4 + 1e-7) / 1e4:.4f}"


def signed_text(value: float, digits: int = 3) -> str:
    """Return a difference; below zero it has a minus sign, unless it is shown as zero."""
    text = f"{abs(value):.{digits}f}"
    return f"−{text}" if value < 0 and float(text) else text


def count_text(value: float | None) -> str:
    """Return a whole number with commas."""
    return MISSING if value is None else f"{value:,.0f}"


def time_text(time: str | None) -> str:
    """Return a time as in ISO 8601, without its zone, to the minute."""
    return time[:16].replace("T", " ") if time else MISSING


def duration_text(seconds: float | None) -> str:
    """Return how long something takes, in the unit that suits it."""
    if seconds is None:
        return MISSING
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


KINDS = {
    "noisy label": "noisy label alone",
    "noisy label and features": "noisy label and features",
    "features": "features alone",
    "statistic": "statistic, all other labels known",
}
"""What an attacker scores by (`tpsl.attacks.scoring.ScoredBy`), as it is shown beside the bound of that attacker."""


def spoken(name: str) -> str:
    """Return the name of an attack as it is shown."""
    return name.replace("_", " ")


def interval_text(low: float | None, high: float | None) -> str:
    """Return the interval as `low–high`, or nothing where it has no width or an end is missing."""
    return "" if low is None or high is None or low == high else f"{low:.4f}–{high:.4f}"


def guarantee_text(result: TrainResult | TuneResult) -> str:
    """Return what a run promises about each label: what was spent in all, and its own share where that is less."""
    own, whole = spent_text(result.epsilon, result.delta), spent_text(result.total_epsilon, result.total_delta)
    budget = whole if own == whole else f"{whole} in all (this run's release: {own})"
    return budget if result.private else f"NOT PRIVATE ({budget})"


def spent_text(epsilon: float | str, delta: float) -> str:
    """Return ε (a number, or "inf" as JSON has it) and, where it is not zero, δ, rounded up."""
    return f"ε = {rounded_up(float(epsilon), 6)}" + (f", δ = {rounded_up(delta, 3)}" if delta else "")


def records_text(count: int) -> str:
    """Return a number of records in words: "1 record", "3 records"."""
    return counted(count, "record")


def counted(count: int, noun: str) -> str:
    """Return a number of things in words: "1 step", "1,200 steps"."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


_UNRELIABLE = "; the hold-out cannot tell the model from the shares of the classes: do not rely on it"


def learned_texts(result: LearnResult) -> dict[str, str]:
    """Return what a learner has made of noisy labels: what it is, what noisy labels say of it, what they are worth."""
    judged = result.validation
    area = MISSING
    if math.isfinite(judged.validation_auc):
        area = measured_text(judged.validation_auc, judged.validation_auc_low, judged.validation_auc_high)
    return {
        "learner": f"LightGBM: {result.rounds} rounds of trees",
        "noisy hold-out": f"log loss {judged.validation_loss:.4f} ± {judged.validation_loss_se:.4f}, AUC {area}",
        "records": f"{result.records:,}, of which {result.held_out:,} were held out before they were fitted",
        "worth": f"about {result.effective_labels:,.0f} clean labels{'' if result.reliable else _UNRELIABLE}",
    }


def of_vault(view: RunView) -> list[str]:
    """Return what is to be said of a run's vault, as every page shows it."""
    return vault_texts(view, f"ε = {view.budget}")


def gone_text(total: str, gone: int) -> str:
    """Return the total of labels of which some vaults are gone that runs name, or nothing: others may be unknown."""
    vaults = "vault that runs name is" if gone == 1 else "vaults that runs name are"
    return f"at least {total}: {gone:,} {vaults} gone" if gone else ""


def vault_texts(facts: VaultFacts, total: str) -> list[str]:
    """Return what is to be said of a run's vault: others that are gone, its other labels, why it is a second one.

    `total` is what the run's labels have spent in all.
    """
    found, over_all = [gone_text(total, facts.gone_vaults)], facts.epsilon_all_labels
    if over_all is not None:
        found.append(f"over all labels of the vault: ε = {rounded_up(float(over_all), 4)}")
    if facts.apart is not None:
        found.append(f"This vault is apart from the label party’s other one: {facts.apart}")
    return [text for text in found if text]


def privacy_text(view: RunView) -> str:
    """Return whether the run is private and, if it is not, why."""
    if view.promise.large_delta:
        return f"only up to δ = {view.promise.total_delta_text}"
    if view.promise.private:
        return "yes"
    return "no: no noise" if view.promise.total_epsilon is None else "no: seeded noise"


def odds_factor(epsilon: float) -> str:
    """Return e^ε, the factor by which a release changes the odds of a label at most, rounded up."""
    return rounded_up(math.exp(epsilon), 3) if epsilon < 13 else f"e^{rounded_up(epsilon, 4)}"


FEATURES_STAY_TEXT = "No feature and no embedding crosses the border: the feature party trains alone."
FEATURES_TEXT = (
    "Nothing is proved about features: embeddings of every record cross the border, and nothing bounds what they "
    "reveal of the features behind them."
)
"""Stands beside the promise, which speaks about labels only, on every page."""
