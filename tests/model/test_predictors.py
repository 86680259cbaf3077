"""Predictors are modules: what is exported computes what predicts."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file, save_file

from tpsl.data.dataset import load
from tpsl.data.features import Features
from tpsl.model.predictors import Ensemble, LabelHalf, PrivateHead, mixture
from tpsl.model.trained import TrainedModel
from tpsl.models.halves import Top, Tops
from tpsl.models.model_config import ModelConfig
from tpsl.net.messages import LABEL_PARTY
from tpsl.perturb import cross_entropy
from tpsl.run.job import Job, make_job
from tpsl.run.one_process import train
from tpsl.run.stages.collect import STATISTIC_HEAD


@pytest.mark.parametrize("classes", [2, 4])
def test_several_classes_and_members(classes: int) -> None:
    config, generator = ModelConfig(bottom=(5,), top=(6,)), torch.Generator().manual_seed(0)
    members = [Top(10, classes, config, generator) for _ in range(3)]
    top = PrivateHead(Tops(members, classes), cross_entropy(classes), {"a": 15, "b": 15})
    shares = {party: torch.randn(7, 15, generator=generator) for party in top.widths}
    found = LabelHalf(top, None)(*shares.values()).detach()
    assert np.array_equal(found, top.probabilities(shares))


@pytest.mark.parametrize("classes", [2, 4])
def test_an_ensemble_of_several_widths(classes: int) -> None:
    generator, members = torch.Generator().manual_seed(0), []
    for weight, width in ((0.75, 5), (0.25, 3)):
        tops = [Top(2 * width, classes, ModelConfig(bottom=(width,), top=(6,)), generator)]
        widths = {"a": width, LABEL_PARTY: width}
        members.append((weight, PrivateHead(Tops(tops, classes), cross_entropy(classes), widths)))
    ensemble = Ensemble(tuple(members))
    assert ensemble.widths == {"a": 8, LABEL_PARTY: 8}
    shares = {party: torch.randn(7, 8, generator=generator) for party in ensemble.widths}
    by_hand = sum(
        weight * top.probabilities({party: share[:, cut] for party, share in shares.items()}).astype(np.float64)
        for (weight, top), cut in zip(members, (slice(0, 5), slice(5, 8)), strict=True)
    )
    np.testing.assert_allclose(ensemble.probabilities(shares), by_hand, rtol=1e-6)
    found = LabelHalf(ensemble, None)(*shares.values()).detach()
    np.testing.assert_allclose(found, ensemble.probabilities(shares), rtol=1e-6)


def test_shares_that_begin_with_a_frozen_embedding(job_of_tables: Callable[..., Job], tmp_path: Path) -> None:
    job = job_of_tables(head="local", pretrain={"method": "masked", "epochs": 1}, validation=0.2)
    data = load(job.data)
    train(job, tmp_path / "run", data=data)
    inputs = {"shop": data.feature_parties["shop"], LABEL_PARTY: data.label_features}
    halves = {party: TrainedModel.open(tmp_path / "run").embedder(party) for party in inputs}
    tensors, shares, rows = {}, {}, data.test[:20]
    for party, features in inputs.items():
        assert isinstance(features, Features)
        tensors[party] = [torch.from_numpy(array) for array in features.batch(rows)]
        shares[party] = halves[party].embed(features, rows)
    assert halves["shop"].width == 2 * halves[LABEL_PARTY].width
    assert torch.equal(halves["shop"](*tensors["shop"]), shares["shop"])
    for local_head in (False, True):
        predictor = TrainedModel.open(tmp_path / "run").predictor(local_head=local_head)
        graph = LabelHalf(predictor, halves[LABEL_PARTY]).eval()
        found = graph(shares["shop"], *tensors[LABEL_PARTY]).detach()
        np.testing.assert_allclose(found, predictor.probabilities(shares), atol=1e-6)


def test_the_head_of_a_statistic_in_both_formats(job_of_tables: Callable[..., Job], tmp_path: Path) -> None:
    plain = job_of_tables(pretrain={"method": "masked", "epochs": 1}, validation=0.2)
    section = {"share_codes": True, "releases": 2}
    job = make_job(plain.model_dump(mode="json", exclude={"method", "statistic"}), {"statistic": section}, "test")
    data = load(job.data)
    train(job, tmp_path / "run", vault=tmp_path / "vault", data=data)
    head = tmp_path / "run" / "label" / STATISTIC_HEAD
    weights = load_file(head)  # these labels are independent of the features: the head is the base rate
    weights["weights"] = torch.randn(weights["weights"].shape, generator=torch.Generator().manual_seed(0))
    save_file(weights, head)
    expected = TrainedModel.open(tmp_path / "run").predict_rows(data, data.test[:20])
    assert expected.std() > 1e-2
    shop, own = data.feature_parties["shop"], data.label_features
    assert isinstance(shop, Features) and isinstance(own, Features)
    tensors = [torch.from_numpy(array) for array in shop.batch(data.test[:20])]
    share = TrainedModel.open(tmp_path / "run").embedder("shop")(*tensors).detach()
    card = TrainedModel.open(tmp_path / "run").export(tmp_path / "exported", LABEL_PARTY).card
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


def test_a_mixture_is_by_weight() -> None:
    members = ((0.75, 0.8), (0.25, 0.2))
    two = mixture((weight, np.array([p, 1.0], dtype=np.float32)) for weight, p in members)
    many = mixture((weight, np.array([[p, 1 - p, 0.0]])) for weight, p in members)
    assert two == pytest.approx([0.65, 1.0])
    assert many == pytest.approx(np.array([[0.65, 0.35, 0.0]]))
    with pytest.raises(ValueError, match="without members"):
        mixture([])
