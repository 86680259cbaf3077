"""Graphs of tensors alone compute what the halves of a run do."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from tpsl.data.dataset import load
from tpsl.data.features import Features
from tpsl.export.graphs import BottomGraph, TopGraph
from tpsl.prediction.local_head import load_embedder, load_predictor
from tpsl.training.job import Job
from tpsl.training.one_process import train
from tpsl.transport.peers import LABEL_PARTY


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
