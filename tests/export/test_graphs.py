"""Graphs of tensors alone compute what the halves of a run do."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file, save_file

from tpsl.data.dataset import load
from tpsl.data.features import Features
from tpsl.export.graphs import BottomGraph, TopGraph
from tpsl.export.half import export_half
from tpsl.models.halves import Top
from tpsl.models.members import Tops
from tpsl.models.model_config import ModelConfig
from tpsl.net.peers import LABEL_PARTY
from tpsl.perturb import cross_entropy
from tpsl.prediction.committee import Committee
from tpsl.prediction.half_loading import TrainedTop
from tpsl.prediction.local_head import load_embedder, load_predictor
from tpsl.prediction.together import predict
from tpsl.training.job import Job, make_job
from tpsl.training.one_process import train
from tpsl.training.stages.collect import STATISTIC_HEAD


@pytest.mark.parametrize("classes", [2, 4])
def test_several_classes_and_members(classes: int) -> None:
    config, generator = ModelConfig(bottom=(5,), top=(6,)), torch.Generator().manual_seed(0)
    members = [Top(10, classes, config, generator) for _ in range(3)]
    top = TrainedTop(Tops(members, classes), cross_entropy(classes), classes, {"a": 15, "b": 15})
    shares = {party: torch.randn(7, 15, generator=generator) for party in top.widths}
    found = TopGraph(top, None)(*shares.values()).detach()
    assert np.array_equal(found, top.probabilities(shares))


@pytest.mark.parametrize("classes", [2, 4])
def test_a_committee_of_several_widths(classes: int) -> None:
    generator, members = torch.Generator().manual_seed(0), []
    for weight, width in ((0.75, 5), (0.25, 3)):
        tops = [Top(2 * width, classes, ModelConfig(bottom=(width,), top=(6,)), generator)]
        widths = {"a": width, LABEL_PARTY: width}
        members.append((weight, TrainedTop(Tops(tops, classes), cross_entropy(classes), classes, widths)))
    committee = Committee(tuple(members))
    assert committee.widths == {"a": 8, LABEL_PARTY: 8}
    shares = {party: torch.randn(7, 8, generator=generator) for party in committee.widths}
    by_hand = sum(
        weight * top.probabilities({party: share[:, cut] for party, share in shares.items()}).astype(np.float64)
        for (weight, top), cut in zip(members, (slice(0, 5), slice(5, 8)), strict=True)
    )
    np.testing.assert_allclose(committee.probabilities(shares), by_hand, rtol=1e-6)
    found = TopGraph(committee, None)(*shares.values()).detach()
    np.testing.assert_allclose(found, committee.probabilities(shares), rtol=1e-6)


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


def test_the_head_of_a_statistic_in_both_formats(job_of_tables: Callable[..., Job], tmp_path: Path) -> None:
    plain = job_of_tables(pretrain={"method": "masked", "epochs": 1}, validation=0.2)
    section = {"share": 0.5, "share_codes": True, "releases": 2}
    job = make_job(plain.model_dump(mode="json", exclude={"method", "statistic"}), {"statistic": section}, "test")
    data = load(job.data)
    train(job, tmp_path / "run", vault=tmp_path / "vault", data=data)
    head = tmp_path / "run" / "label" / STATISTIC_HEAD
    weights = load_file(head)  # these labels are independent of the features: the head is the base rate
    weights["weights"] = torch.randn(weights["weights"].shape, generator=torch.Generator().manual_seed(0))
    save_file(weights, head)
    expected = predict(tmp_path / "run", data, data.test[:20])
    assert expected.std() > 1e-2
    shop, own = data.feature_parties["shop"], data.label_features
    assert isinstance(shop, Features) and isinstance(own, Features)
    tensors = [torch.from_numpy(array) for array in shop.batch(data.test[:20])]
    share = BottomGraph(load_embedder(tmp_path / "run", "shop"))(*tensors).detach()
    card = export_half(tmp_path / "run", LABEL_PARTY, tmp_path / "exported").card
    assert set(card["files"].values()) == {"written"}
    given = {
        "share_shop": share.numpy(),
        **dict(zip(("categorical", "numeric"), own.batch(data.test[:20]), strict=True)),
    }
    inputs = {part["name"]: given[part["name"]] for part in card["inputs"]}
    by_torch = torch.export.load(tmp_path / "exported" / "half.pt2").module()(*map(torch.from_numpy, inputs.values()))
    (by_onnx,) = onnxruntime.InferenceSession(tmp_path / "exported" / "half.onnx").run(None, inputs)
    for found in (by_torch.detach(), by_onnx):
        np.testing.assert_allclose(found, expected, atol=1e-5)
