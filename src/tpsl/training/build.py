"""Builds the parties of a job: weights from the seed, features from the data, noisy labels from the vault."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from tpsl.data.features import Features
from tpsl.data.sides import FeatureSide
from tpsl.models import Bottom, BottomMembers, HalfOptimizer, make_bottom, make_top
from tpsl.party import FeatureParty, LabelParty
from tpsl.party.pretraining import pretrain
from tpsl.perturb import LogitGradient
from tpsl.progress import Progress, no_progress
from tpsl.training.job import Job
from tpsl.vault import NoisyLabels

LabelPartyBuilder = Callable[[Job, int, int, NoisyLabels, Features | None, torch.device | None], LabelParty]
"""What makes the label party of a run, on the device it gets last: `build_label_party`, unless it is replaced."""


def weight_generator(seed: int, half: str) -> torch.Generator:
    """Return the generator of one half's initial weights: each half can be built without the others."""
    digest = hashlib.sha256(f"tpsl weights\x1f{seed}\x1f{half}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def build_feature_party(job: Job, name: str, features: Features, device: torch.device | None = None) -> FeatureParty:
    """Return a feature party with its initial weights; with a wide part the features include the score."""
    bottom = _bottom(job, name, features).to(device)
    optimizer = HalfOptimizer(bottom, job.training.feature_optimizer, job.training.averaging)
    return FeatureParty(bottom, optimizer, features, run_ahead=job.training.staleness > 0)


def pretrained_weights(
    job: Job, side: FeatureSide, device: torch.device | None = None, progress: Progress = no_progress
) -> dict[str, Tensor]:
    """Return weights of a feature party's half that it has learned from its own features alone, member by member.

    They are those of a half without a wide part, whose score there is only with labels.
    """
    if job.training.pretrain is None:
        raise ValueError("the job has no pre-training")
    bottom = build_feature_party(job.without_wide_part(), side.party, side.features, device).bottom
    members = list(bottom.members) if isinstance(bottom, BottomMembers) else [bottom]
    for number, member in enumerate(members):
        seed = job.training.seed + number
        pretrain(member, side.features, side.train, job.training.pretrain, seed, progress)  # type: ignore[arg-type]
    return bottom.state_dict()


def load_pretrained(bottom: Bottom | BottomMembers, weights: Mapping[str, Tensor]) -> None:
    """Put pre-trained weights into a half; where it also reads a score, the score's own weights stay as they are."""
    state = bottom.state_dict()
    for name, weight in weights.items():
        narrower = weight.ndim == 2 and weight.shape[1] < state[name].shape[1]
        state[name] = torch.cat([weight, state[name][:, weight.shape[1] :].cpu()], dim=1) if narrower else weight
    bottom.load_state_dict(state)


def build_label_party(
    job: Job,
    feature_parties: int,
    classes: int,
    noisy: NoisyLabels,
    features: Features | None,
    device: torch.device | None = None,
) -> LabelParty:
    """Return the label party with its initial weights; every party's share of the cut has the job's width."""
    own = None
    shares = feature_parties
    if features is not None:
        bottom = _bottom(job, "label bottom", features).to(device)
        own = (bottom, HalfOptimizer(bottom, job.training.label_optimizer, job.training.averaging), features)
        shares += 1
    top = make_top(shares, classes, job.model, _weight_generators(job, "label top")).to(device)
    gradient = LogitGradient(noisy.mechanism, job.privacy.estimator)
    optimizer = HalfOptimizer(top, job.training.label_optimizer, job.training.averaging)
    return LabelParty(top, optimizer, gradient, noisy, own)


def _bottom(job: Job, name: str, features: Features) -> Bottom | BottomMembers:
    return make_bottom(
        features.embedding_rows,
        features.categorical.shape[1],
        features.numeric.shape[1],
        job.model,
        _weight_generators(job, name),
    )


def _weight_generators(job: Job, half: str) -> list[torch.Generator]:
    """Return a generator for each member; the first member starts as a network without members does."""
    names = [half, *(f"{half} member {number}" for number in range(1, job.model.members))]
    return [weight_generator(job.training.seed, name) for name in names]
