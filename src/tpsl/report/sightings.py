"""Who saw what: the border in words, for one job."""

from __future__ import annotations

from tpsl.report.run_view import Promise
from tpsl.run.job import Job


def sightings(job: Job, promise: Promise, *, learned: bool = False) -> list[tuple[str, str, str]]:
    """Return what each side gets to see in this job; it follows from the agreement alone.

    Where labels are handed over, another model than the network may be `learned` from them.
    """
    if promise.epsilon is None or promise.seeded:
        bound = "yes, and they show the labels"
    else:
        bound = f"yes; all of them together say about a label at most what ε = {promise.epsilon_text} allows"
    rows = [
        ("True labels", "never", "yes, in its vault"),
        ("Noisy labels", "not sent, but they can be read off the gradients", "yes, drawn once for each record"),
        ("Gradients at the cut", bound, "yes, it computes them"),
        ("Features", "its own", "its own, if it has any"),
        (
            "Embeddings of the records",
            "its own, and sends them",
            "yes; nothing bounds what they reveal of the features",
        ),
        ("Test metrics, losses, predictions", "never", "yes"),
        ("Weights", "of its own half", "of its own half"),
        ("Step numbers, checkpoints, the job", "yes", "yes"),
    ]
    if job.model.wide:
        sent = "yes, as estimates of the labels; the gradients are computed from them too"
        rows[1] = ("Noisy labels", sent, "yes, drawn once for each record")
    if job.hands_over:
        return _of_a_hand_over(bound, learned)
    if job.privacy.gradients == "none":
        rows[1:3] = [("Noisy labels, gradients", "never: there are none", "there are none")]
    if job.method == "statistic":
        held_out = "noisy labels of held-out records, to evaluate by" if job.training.validation else "there are none"
        rows[1:3] = [("Noisy labels, gradients", "never: none are sent", held_out)]
    if job.statistic is not None:
        rows.append(("Noisy statistics of the labels", "never", "yes, drawn once; the private head is fitted on them"))
        if job.statistic.share_codes:
            rows.append(
                ("Category codes and bins of numbers", "its own, and sends them", "yes, but no names of values")
            )
    if job.training.patience:
        rows.append(("When training stops early", "yes; decided on noisy labels", "yes"))
    if job.training.head == "local":
        rows.append(("The local head, trained on true labels", "never", "yes; it must not leave"))
    return rows


def _of_a_hand_over(bound: str, learned: bool) -> list[tuple[str, str, str]]:
    """Return what each side sees where the noisy labels cross, once, and the feature party trains alone."""
    network = [
        ("Gradients", "its own: both halves are in its process", "there are none"),
        ("Weights", "of both halves", "never"),
    ]
    return [
        ("True labels", "never", "yes, in its vault"),
        ("Noisy labels", bound, "yes, drawn once for each record"),
        ("Features, embeddings", "its own, and sends none", "never"),
        ("Test metrics", "never", "never, unless it is given predictions"),
        ("Losses from noisy labels, predictions", "yes", "never"),
        *([("The model", "yes: it has fitted it alone", "never")] if learned else network),
        ("The job", "yes", "yes"),
    ]
