from typing import Any

from tpsl.report.promises import promise_of
from tpsl.report.sightings import sightings
from tpsl.run.job import make_job


def rows(privacy: dict[str, Any], **training: Any) -> dict[str, tuple[str, str]]:
    job = make_job({"privacy": privacy, "training": training}, {}, "test")
    return {what: (feature, label) for what, feature, label in sightings(job, promise_of(job, 2))}


def test_the_feature_party_sees_no_true_label_and_gradients_within_the_budget() -> None:
    shown = rows({"epsilon": 0.5})
    assert shown["True labels"][0] == "never"
    assert shown["Test metrics, losses, predictions"][0] == "never"
    assert "at most what ε = 0.5 allows" in shown["Gradients at the cut"][0]


def test_gradients_without_secret_noise_show_the_labels() -> None:
    assert "they show the labels" in rows({"mechanism": "none"})["Gradients at the cut"][0]
    assert "they show the labels" in rows({"epsilon": 0.5, "noise_seed": 1})["Gradients at the cut"][0]


def test_a_local_head_stays() -> None:
    assert rows({"epsilon": 1.0}, head="local")["The local head, trained on true labels"] == (
        "never",
        "yes; it must not leave",
    )


def test_with_a_wide_part_the_noisy_labels_cross() -> None:
    job = make_job({"model": {"wide": True}}, {}, "test")
    shown = {what: feature for what, feature, _ in sightings(job, promise_of(job, 2))}
    assert shown["Noisy labels"].startswith("yes, as estimates")
    assert rows({"epsilon": 1.0})["Noisy labels"][0].startswith("not sent")


def test_a_statistic_is_seen_by_the_label_party_alone_and_codes_by_both() -> None:
    job = make_job({"privacy": {"epsilon": 0.5}, "statistic": {"share_codes": True}}, {}, "test")
    promised = promise_of(job, 2)
    shown = {what: (feature, label) for what, feature, label in sightings(job, promised)}
    assert promised.delta == 1e-6
    assert shown["Noisy statistics of the labels"][0] == "never"
    assert shown["Category codes and bins of numbers"][0] == "its own, and sends them"
    assert shown["Noisy labels, gradients"][0].startswith("never")
    assert shown["Noisy labels, gradients"][1] == "there are none"
    assert "Gradients at the cut" not in shown
    held_out = make_job({"method": "statistic", "training": {"validation": 0.1}}, {}, "test")
    judged = {what: label for what, _, label in sightings(held_out, promise_of(held_out, 2))}
    assert judged["Noisy labels, gradients"] == "noisy labels of held-out records, to evaluate by"


def test_where_labels_are_handed_over_no_embedding_is_seen() -> None:
    shown = rows({"epsilon": 0.5}, exchange="labels")
    assert "at most what ε = 0.5 allows" in shown["Noisy labels"][0]
    assert shown["Features, embeddings"] == ("its own, and sends none", "never")
    assert shown["Weights"] == ("of both halves", "never") and "Gradients at the cut" not in shown
    assert "they show the labels" in rows({"mechanism": "none"}, exchange="labels")["Noisy labels"][0]
