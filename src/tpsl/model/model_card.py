"""The model card of an exported half: what it is, what it reads, and what was promised about the labels behind it.

A feature party's card is made from the job and its own folder alone, so nothing in it depends on a label. The label
party's has test metrics, which depend on true labels, and stays with it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

import torch

from tpsl.files import for_json, read_plain
from tpsl.mechanisms import Cost
from tpsl.net.messages import LABEL_PARTY
from tpsl.run.job import Job
from tpsl.run.releases import planned_releases
from tpsl.run.result import NOTHING_RELEASED
from tpsl.run.run_folder import RunError

if TYPE_CHECKING:
    from tpsl.model.trained import TrainedModel

VERSION = 1
"""A new key may come at any time; another meaning of a key that is there is another version."""

Card = dict[str, Any]
Head = Literal["private", "local"]

_PROMISED = ("mechanism", "estimator", "draws", "epsilon", "delta", "total_epsilon", "total_delta", "private")
_ABOUT_BOTTOM = (
    "The bottom half of a split network: it turns the party's own records into embeddings, which the label party's "
    "half turns into probabilities. All that it has learned of labels was released with noise. The ε below is that of "
    "this run's own release; what else was released of the same labels adds to it, and is in the label party's ledger."
)
_ABOUT_TOP = (
    "The label party's half of a split network: it turns the embeddings of all feature parties, and records of its "
    "own where it has features, into probabilities. All that it has learned of labels was released with noise. This "
    "card has test metrics, which depend on true labels: keep it at the label party."
)
_ABOUT_LOCAL_HEAD = (
    "The label party's local head, trained on TRUE labels. It is not differentially private: whoever gets it, or its "
    "scores, gets something of every training label. Keep it, its scores and everything computed from it at the label "
    "party. The ε below is of what has crossed the border in training, not of this head."
)


def facts(model: TrainedModel, party: str, head: Head = "private") -> Card:
    """Return what a party knows of its half.

    A feature party: the job, and its own folder. The label party: metrics, too, which depend on true labels; of its
    local head, that it is not private.
    """
    run, job, path = model.run, model.run.job(), model.path
    common: Card = {
        "card": VERSION,
        "party": party,
        "run": path.resolve().name,
        **({"members": _members(model, party)} if model.is_ensemble else {}),
        "job": job.digest(),
        "records": run.records_digest(party),
        "classes": job.classes,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "trained_by": run.program(party),
        "software": {"tpsl": version("tpsl"), "torch": torch.__version__},
    }
    if party != LABEL_PARTY:
        about = {"title": f"Model card: the half of {party}", "half": "bottom", "summary": _ABOUT_BOTTOM}
        part = run.party_result(party)
        if part is None:
            raise RunError(f"{run.path}: the part of {party!r} in the run is not finished")
        versions = {party: model.version(party)}
        return {
            **about,
            **common,
            "versions": versions,
            "train_records": part.train_records,
            "privacy": _agreed_privacy(job),
        }
    about = {"title": "Model card: the label party's half", "half": "top", "summary": _ABOUT_TOP}
    result, ledger = run.finished_result(), run.noted_ledger()
    content = result.as_dict()
    privacy = {name: content[name] for name in _PROMISED} | {"ledger_head": ledger.head if ledger else None}
    found = json.loads(read_plain(path / "tune.json"))["ensemble"] if model.is_ensemble else content
    metrics = {
        name: value for name, value in found.items() if value is not None and name.startswith(("test_", "validation_"))
    }
    if head == "local":
        about = {"title": "NOT PRIVATE: the local head", "half": "local head", "summary": _ABOUT_LOCAL_HEAD}
        privacy, metrics = privacy | {"private": False}, for_json(run.local_head())
    return {
        **about,
        **common,
        "versions": model.versions(),
        "train_records": result.train_records,
        "privacy": privacy,
        "metrics": metrics,
    }


def _members(model: TrainedModel, party: str) -> list[Card]:
    """Return the networks of an ensemble in the order of their shares; their weights are for the label party."""
    named = [{"run": member.run.path.name, "epoch": member.epoch} for member in model.members]
    if party != LABEL_PARTY:
        return named
    return [{**each, "weight": member.weight} for each, member in zip(named, model.members, strict=True)]


def _agreed_privacy(job: Job) -> Card:
    """Return the promise of the job's own releases, over all draws: each record has a part in one of them."""
    privacy = job.privacy
    planned = planned_releases(job, job.classes)
    costs = [Cost(0.0), *(charge.cost for charge in planned.values())]
    epsilon, delta = max(cost.epsilon for cost in costs), max(cost.delta for cost in costs)
    mechanism = " and ".join(planned) or NOTHING_RELEASED
    facts: Card = {"mechanism": mechanism, "estimator": privacy.estimator, "draws": privacy.draws}
    facts |= {"epsilon": for_json(epsilon), "delta": delta}
    return facts | {"private": math.isfinite(epsilon) and privacy.noise_seed is None}


def as_json(card: Mapping[str, Any]) -> bytes:
    """Return a card as `card.json`."""
    return (json.dumps(card, indent=1, ensure_ascii=False) + "\n").encode()


def as_markdown(card: Mapping[str, Any]) -> bytes:
    """Return a card for people, as `MODEL_CARD.md`."""
    return ("\n".join(_lines(card)) + "\n").encode()


def _lines(card: Mapping[str, Any]) -> Iterator[str]:
    yield f"# {card['title']}"
    yield ""
    yield card["summary"]
    yield from _table("What it is", {name: card[name] for name in ("party", "run", "job", "records", "train_records")})
    if "members" in card:
        members = {f"{each['run']}, epoch {each['epoch']}": each.get("weight") for each in card["members"]}
        yield from _table("Networks of the ensemble", members, "run", "weight")
    yield from _table("Halves that belong together", card["versions"], "party", "version")
    infinite = {name: "∞" for name in ("epsilon", "total_epsilon") if card["privacy"].get(name, 0) is None}
    yield from _table("Privacy of the labels", {**card["privacy"], **infinite})
    if "metrics" in card:
        heading = "Metrics: test_… from true labels, validation_… from noisy ones; for the label party only"
        yield from _table(heading, card["metrics"])
    yield from _table("What it reads", {part["name"]: _shape(part) for part in card["inputs"]}, "input", "values")
    if card["columns"]:
        yield from _table("Columns of the party's table", card["columns"], "column", "kind")
    yield from _table("What it returns", {part["name"]: _shape(part) for part in [card["output"]]}, "output", "values")
    yield from _table("Files", card["files"], "file", "")
    yield from _table("Programs", {"trained by": card["trained_by"], **card["software"], "created": card["created"]})


def _table(heading: str, rows: Mapping[str, Any], first: str = "", second: str = "") -> Iterator[str]:
    yield f"\n## {heading}\n\n| {first} | {second} |\n|---|---|"
    for name, value in rows.items():
        yield f"| {_cell(name)} | {_cell(value)} |"


def _shape(part: Mapping[str, Any]) -> str:
    return f"{part['type']} [{', '.join(map(str, part['shape']))}]"


def _cell(value: Any) -> str:
    """Return a value as code, so that nothing in it is read as Markdown: a column may be called anything."""
    text = " ".join(str(value).split()).replace("`", "'").replace("|", "\\|")
    return "–" if value is None else f"`{text}`"
