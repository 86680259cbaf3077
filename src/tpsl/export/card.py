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
from typing import Any

import torch

from tpsl.files import for_json, read_plain
from tpsl.mechanisms import Cost
from tpsl.net.peers import LABEL_PARTY
from tpsl.prediction.model import TUNE, TrainedModel
from tpsl.training.job import Job
from tpsl.training.releases import planned_releases
from tpsl.training.result import NOTHING_RELEASED
from tpsl.training.run_folder import RunError

VERSION = 1
"""A new key may come at any time; another meaning of a key that is there is another version."""

Card = dict[str, Any]


def feature_facts(model: TrainedModel, party: str) -> Card:
    """Return what a feature party knows of its half: the job, and its own folder."""
    run, job = model.run, model.run.job()
    result = run.party_result(party)
    if result is None:
        raise RunError(f"{run.path}: the part of {party!r} in the run is not finished")
    return {
        **_common(model, job, party),
        "versions": {party: model.version(party)},
        "train_records": result.train_records,
        "privacy": _agreed_privacy(job),
    }


def label_facts(model: TrainedModel) -> Card:
    """Return what the label party knows of its half; the metrics depend on true labels."""
    run, job = model.run, model.run.job()
    result, ledger = run.result(), run.noted_ledger()
    if result is None:
        raise RunError(f"{run.path}: the run is not finished")
    content = result.as_dict()
    promised = ("mechanism", "estimator", "draws", "epsilon", "delta", "total_epsilon", "total_delta", "private")
    found = json.loads(read_plain(model.path / TUNE))["ensemble"] if model.is_committee else content
    measured = {name: value for name, value in found.items() if value is not None}
    return {
        **_common(model, job, LABEL_PARTY),
        "versions": model.versions(),
        "train_records": result.train_records,
        "privacy": {name: content[name] for name in promised} | {"ledger_head": ledger.head if ledger else None},
        "metrics": {name: measured[name] for name in measured if name.startswith(("test_", "validation_"))},
    }


def local_head_facts(model: TrainedModel) -> Card:
    """Return what the label party knows of its local head: how good it is, and that it is not private."""
    facts = label_facts(model)
    return facts | {"privacy": facts["privacy"] | {"private": False}, "metrics": for_json(model.run.local_head())}


def _common(model: TrainedModel, job: Job, party: str) -> Card:
    """Return the facts of either side; the job of a committee is that of its first member."""
    return {
        "card": VERSION,
        "party": party,
        "run": model.path.resolve().name,
        **({"members": _members(model, party)} if model.is_committee else {}),
        "job": job.digest(),
        "records": model.run.records_digest(party),
        "classes": job.classes,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "trained_by": model.run.program(party),
        "software": {"tpsl": version("tpsl"), "torch": torch.__version__},
    }


def _members(model: TrainedModel, party: str) -> list[Card]:
    """Return the networks of a committee in the order of their shares; their weights are for the label party."""
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
        yield from _table("Networks of the committee", members, "run", "weight")
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
