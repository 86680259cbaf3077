"""The space that `tpsl tune` searches: a list of changes to a job, the jobs that they make, and names for these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tpsl.files import read_yaml
from tpsl.run.job import Job, dotted, make_job
from tpsl.run.job_sections import HELD_OUT
from tpsl.run.local import Local

_OPTIMIZERS = "feature_optimizer", "label_optimizer"
_MASKED = {"method": "masked"}


def configuration(
    learning_rate: float, *, weight_decay: float = 0.0, features: float = 1.0, **training: Any
) -> dict[str, Any]:
    """Return a configuration with this learning rate and weight decay at both parties.

    The feature parties' rate is `features` times the label party's. `training` are further fields of that part.
    """
    rates = zip(_OPTIMIZERS, (features * learning_rate, learning_rate), strict=True)
    optimizers = {name: {"learning_rate": rate, "weight_decay": weight_decay} for name, rate in rates}
    return {"training": {**optimizers, **training}}


RECOMMENDED_SPACE: tuple[dict[str, Any], ...] = (
    {**configuration(1e-3, averaging=0.995), "model": {"members": 8, "wide": True}},
    {**configuration(3e-4, averaging=0.995), "model": {"members": 2, "wide": True}},
    {**configuration(3e-3, averaging=0.995, weight_decay=1e-4), "model": {"members": 4, "wide": False}},
)
"""For two classes. The deep part learns what the wide one leaves over, at one of two rates; or there is no wide one."""

MANY_CLASSES_SPACE: tuple[dict[str, Any], ...] = tuple(
    configuration(learning_rate, weight_decay=1e-4, averaging=0.995, **start)
    for start in ({"pretrain": None}, {"pretrain": _MASKED}, {"pretrain": _MASKED, "features": 0.1})
    for learning_rate in (1e-3, 3e-3)
)
"""For more classes. The feature parties' halves start from nowhere, from pre-training, or from there and learn ten
times slower than the label party's; each with two learning rates."""

OWN_NETWORKS_SPACE: tuple[dict[str, Any], ...] = tuple(
    configuration(learning_rate, averaging=0.995) for learning_rate in (3e-4, 1e-3, 3e-3, 1e-2)
)
"""For networks that parties bring themselves: pre-training and the wide part are for those that come with tpsl."""


def default_space(classes: int, own_networks: bool) -> tuple[dict[str, Any], ...]:
    """Return what to try for this number of classes, with networks of the parties' own or with ours."""
    if own_networks:
        return OWN_NETWORKS_SPACE
    return RECOMMENDED_SPACE if classes == 2 else MANY_CLASSES_SPACE


def changed(job: Job, changes: Mapping[str, Mapping[str, Any]], origin: str) -> Job:
    """Return a job with single fields of its parts changed; an error names the origin and the field."""
    return make_job(job.content(), {part: dict(fields) for part, fields in changes.items()}, origin)


def load_space(path: Path) -> list[Any]:
    """Read a space: a YAML list, each entry the parts and fields of the job that a configuration changes."""
    content = read_yaml(path, ValueError)
    if not isinstance(content, list) or not content:
        raise ValueError(f"{path}: a space is a list, each entry the fields of a job that a configuration changes")
    return content


def refuse_start(local: Local) -> None:
    """Raise if a party says that training starts from an earlier run."""
    if local.start_from is not None:
        raise ValueError("every configuration is trained from the job's seed: tuning takes no local.start_from")


def jobs_of(base: Job, space: Sequence[Mapping[str, Any]]) -> list[Job]:
    """Return the job of each configuration; one that needs another release or hold-out is an error.

    Of a job with `method: auto` networks are tried, as of one with `method: network`: what `auto` would add to it is
    for the space to say.
    """
    if not space:
        raise ValueError("there is nothing to choose from: the space has no configuration")
    if not base.releases:
        raise ValueError("with privacy.gradients 'none' there are no noisy labels to choose by")
    if base.method == "auto" and base.statistic is None:
        base = make_job(base.content() | {"method": "network"}, {}, "the job")
    if base.method != "network":
        raise ValueError(
            "method 'statistic' has nothing to tune, and every try would be a release of its own: train it with "
            "`tpsl train`, or tune method 'network'"
        )
    common = {"patience": 0, "head": "private", "validation": base.training.validation or HELD_OUT}
    reference = changed(base, {"training": common}, "the job")
    jobs: list[Job] = []
    for number, changes in enumerate(space, 1):
        origin = f"configuration {number} of the space"
        if not isinstance(changes, Mapping) or not all(isinstance(part, Mapping) for part in changes.values()):
            raise ValueError(f"{origin}: is no mapping of parts of a job to the fields that change")
        job = changed(reference, changes, origin)
        own, shared = _shared(job), _shared(reference)
        for name, value in own.items():
            if value != shared[name]:
                raise ValueError(f"{origin}: {name} must stay as in the job: all share one release and one hold-out")
        if job in jobs:
            raise ValueError(f"{origin}: is the same as configuration {jobs.index(job) + 1}")
        jobs.append(job)
    return jobs


def _shared(job: Job) -> dict[str, Any]:
    """Return what a configuration cannot change: what decides the release and the hold-out."""
    return {
        "data": job.data,
        **{f"privacy.{name}": value for name, value in job.privacy if name != "estimator"},
        **{f"training.{name}": getattr(job.training, name) for name in ("seed", "validation", "patience", "head")},
    }


def describe(jobs: Sequence[Job]) -> list[str]:
    """Return a name for each of several different jobs: the fields in which they differ."""
    every = [_in_words(job) for job in jobs]
    names = dict.fromkeys(name for fields in every for name in fields)
    varying = [name for name in names if len({fields[name] for fields in every if name in fields}) > 1]
    found = (", ".join(f"{name} {fields.get(name, 'none')}" for name in varying) for fields in every)
    return [name or "the job as it is" for name in found]


def _in_words(job: Job) -> dict[str, str]:
    """Return all fields of a job; one that both optimisers have with both values, or once if they agree."""
    found: dict[str, str] = {}
    for key, value in dotted(job.model_dump(mode="json")).items():
        name = key.partition(".")[2].replace("pretrain.method", "pretrain")
        for optimizer in _OPTIMIZERS:
            name = name.removeprefix(f"{optimizer}.")
        name, text = name.replace("_", " "), _text(value)
        found[name] = text if found.get(name, text) == text else f"{found[name]} and {text}"
    return found if "pretrain" in found else found | {"pretrain": "none"}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
