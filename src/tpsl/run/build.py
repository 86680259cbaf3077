"""Builds the parties of a job: weights from the seed, features from the data, noisy labels from the vault."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor

from tpsl.data.features import Features, Inputs, table_features
from tpsl.data.sides import FeatureSide
from tpsl.heads.pretraining import pretrain
from tpsl.models.halves import Bottom, Bottoms, Top, Tops, make_members, seed_of
from tpsl.models.model_config import OptimizerConfig
from tpsl.models.optimizer import HalfOptimizer
from tpsl.net.messages import LABEL_PARTY
from tpsl.perturb import LogitGradient
from tpsl.progress import Progress, no_progress
from tpsl.registry import ExtensionError
from tpsl.run.job import Job
from tpsl.run.own_parts import OwnParts
from tpsl.split.feature_party import FeatureParty
from tpsl.split.label_party import LabelParty
from tpsl.vault import NoisyLabels
from tpsl.workers import HERE, Placement

LabelPartyBuilder = Callable[
    [Job, Sequence[str], int, NoisyLabels, Features | Inputs | None, OwnParts, Placement], LabelParty
]
"""What makes the label party of a run, at the place that it gets last: `build_label_party`, unless it is replaced."""
NO_PARTS = OwnParts()


def build_feature_party(
    job: Job, party: str, inputs: Features | Inputs, own: OwnParts = NO_PARTS, place: Placement = HERE
) -> FeatureParty:
    """Return a party's inputs and bottom half with its initial weights; the label party may have them, too.

    With a wide part the features include the score.
    """
    bottom = build_bottoms(job, party, inputs, own).to(place.device)
    return FeatureParty(
        bottom,
        HalfOptimizer(bottom, _optimizer(job, party), job.training.averaging, place.workers),
        inputs,
        run_ahead=job.training.staleness > 0 and party != LABEL_PARTY,
    )


def build_label_party(
    job: Job,
    feature_parties: Sequence[str],
    classes: int,
    noisy: NoisyLabels,
    inputs: Features | Inputs | None,
    own: OwnParts = NO_PARTS,
    place: Placement = HERE,
) -> LabelParty:
    """Return the label party with its initial weights; every party's share of the cut has the job's width."""
    shares, own_side = list(feature_parties), None
    if inputs is not None:
        shares, own_side = [*shares, LABEL_PARTY], build_feature_party(job, LABEL_PARTY, inputs, own, place)
    top = build_top(job, shares, classes, own).to(place.device)
    gradient = LogitGradient(noisy.mechanism, job.privacy.estimator, job.training.build_loss(classes))
    optimizer = HalfOptimizer(top, job.training.label_optimizer, job.training.averaging, place.workers)
    return LabelParty(top, optimizer, gradient, noisy, own_side)


def build_top(job: Job, shares: Sequence[str], classes: int, own: OwnParts = NO_PARTS) -> Tops:
    """Return the label party's top half for the shares of these parties, its own last if it has one."""
    cut, seeds = sum(job.model.share_width(party) for party in shares), _weight_seeds(job, "label top")
    if own.top is None:
        return Tops([Top(cut, classes, job.model, _generator(seed)) for seed in seeds], classes)
    if job.model.wide:
        raise ExtensionError(f"the top half {own.top} has no place for the scores of model.wide: set it to false")
    what = f"the top half {own.top}"
    return Tops(
        make_members(partial(own.top.make, "the top half", cut=cut, classes=classes), seeds, what), classes, what
    )


def build_bottoms(job: Job, party: str, inputs: Features | Inputs, own: OwnParts) -> Bottoms:
    """Return a party's bottom half: that of the paper for encoded features, or what the party brings."""
    what, width = f"the bottom half of {party}", job.model.share_width(party)
    seeds = _weight_seeds(job, "label bottom" if party == LABEL_PARTY else party)
    if own.bottom is None:
        if not isinstance(inputs, Features):
            raise ExtensionError(
                f"{party} has inputs of its own, so it needs a bottom half of its own: name its factory"
            )
        widths = *job.model.bottom[:-1], job.model.deep_width(party)
        # An average has no lazy tables, and pre-training uses Adam.
        settings, optimizer = job.training, _optimizer(job, party)
        has_lazy_form = optimizer.is_tested and optimizer.name != "adam"
        is_the_same = has_lazy_form and not settings.averaging and settings.pretrain is None
        is_lazy = job.model.is_lazy(inputs.embedding_rows, is_the_same=is_the_same)
        updates = "lazy" if is_lazy else "dense"
        config = job.model.model_copy(update={"bottom": widths, "embedding_updates": updates})
        shape = inputs.embedding_rows, inputs.categorical.shape[1], inputs.numeric.shape[1]
        return Bottoms([Bottom(*shape, config, _generator(seed)) for seed in seeds], width, what)
    if job.model.wide or (job.training.pretrain is not None and party != LABEL_PARTY):
        key = "model.wide" if job.model.wide else "training.pretrain"
        raise ExtensionError(f"{key} is for the bottom half that comes with tpsl; {party} has its own, {own.bottom}")
    factory = partial(own.bottom.make, what, width=width, inputs=inputs)
    what = f"{what} {own.bottom}"
    return Bottoms(make_members(factory, seeds, what), width, what)


def _optimizer(job: Job, party: str) -> OptimizerConfig:
    return job.training.label_optimizer if party == LABEL_PARTY else job.training.feature_optimizer


def _weight_seeds(job: Job, half: str) -> list[int]:
    """Return a seed for each member; the first member starts as a network without members does."""
    names = [half, *(f"{half} member {number}" for number in range(1, job.model.members))]
    return [seed_of("tpsl weights", job.training.seed, name) for name in names]


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pretrained_weights(
    job: Job, side: FeatureSide, device: torch.device | None = None, progress: Progress = no_progress
) -> dict[str, Tensor]:
    """Return weights of a feature party's half that it has learned from its own features alone, member by member.

    They are those of a half without a wide part, whose score there is only with labels.
    """
    if job.training.pretrain is None:
        raise ValueError("the job has no pre-training")
    bottom = build_feature_party(job.without_wide_part(), side.party, side.features, place=Placement(device)).bottom
    features = table_features(side.features, "training.pretrain")
    for seed, member in enumerate(bottom.members, job.training.seed):
        pretrain(cast(Bottom, member), features, side.train, job.training.pretrain, seed, progress)
    return bottom.state_dict()


def load_pretrained(bottom: Bottoms, weights: Mapping[str, Tensor]) -> None:
    """Put pre-trained weights into a half; where it also reads a score, the score's own weights stay as they are."""
    state = bottom.state_dict()
    for name, weight in weights.items():
        narrower = weight.ndim == 2 and weight.shape[1] < state[name].shape[1]
        state[name] = torch.cat([weight, state[name][:, weight.shape[1] :].cpu()], dim=1) if narrower else weight
    bottom.load_state_dict(state)
