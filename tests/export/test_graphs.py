"""Graphs of tensors alone compute what the halves of a run do."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tpsl.data.dataset import load
from tpsl.data.features import Features
from tpsl.export.graphs import BottomGraph, TopGraph
from tpsl.models.config import ModelConfig
from tpsl.models.halves import Top
from tpsl.models.members import Tops
from tpsl.perturb import cross_entropy
from tpsl.prediction.halves import TrainedTop
from tpsl.prediction.local_head import load_embedder, load_predictor
from tpsl.training.job import Job
from tpsl.training.one_process import train
from tpsl.transport.peers import LABEL_PARTY


@pytest.mark.parametrize("classes", [2, 4])
def test_several_classes_and_members(classes: int) -> None:
    config, generator = ModelConfig(bottom=(5,), top=(6,)), torch.Generator().manual_seed(0)
    members = [Top(10, classes, config, generator) for _ in range(3)]
    top = TrainedTop(Tops(members, classes), cross_entropy(classes), classes, {"a": 15, "b": 15})
    shares = {party: torch.randn(7, 15, generator=generator) for party in top.widths}
    found = TopGraph(top, None)(*shares.values()).detach()
    assert np.array_equal(found, top.probabilities(shares))


def test_shares_that_begin_with_a_frozen_embedding(job_of_tables: Callable[..., Job], tmp_path: Path) -> None:
    job = job_of_tables(head="local", pretrain={"method": "masked", "epochs": 1}, validation=0.2)
    data = load(job.data)
    train(job, tmp_path / "run", data=data)
    inputs = {"shop": data.feature_parties["shop"], LABEL_PARTY: data.label_features}
    halves = {party: load_embedder(tmp_path / "run", party) for party in inputs}
    tensors, shares, rows = {}, {}, data.test[:20]
    for party, features in inputs.items():
        assert isinstance(features, Features)
        tensors[party] = [torch.from_numpy(array) for array in features.batch(rows)]
        shares[party] = halves[party].embed(features, rows)
    assert halves["shop"].width == 2 * halves[LABEL_PARTY].width
    assert torch.equal(BottomGraph(halves["shop"])(*tensors["shop"]), shares["shop"])
    for local_head in (False, True):
        predictor = load_predictor(tmp_path / "run", local_head=local_head)
        graph = TopGraph(predictor, halves[LABEL_PARTY]).eval()
        found = graph(shares["shop"], *tensors[LABEL_PARTY]).detach()
        np.testing.assert_allclose(found, predictor.probabilities(shares), atol=1e-6)
