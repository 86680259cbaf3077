"""Every message that crosses the border in a running job; `docs/wire.md` says what each can reveal.

A step is `Embeddings` forward and `Gradients` back, in `micro_batches` parts. `Rewind`, `Position` and `Start` agree on
the step to go on from; `TestEmbeddings` let the label party predict held-out and test records, `HeadEmbeddings` train
its local head; `Estimates` let feature parties fit the wide part of the model on noisy labels; `Verdict` says what
noisy labels think of an epoch; `Finished` and `Bye` end a job, `Stop` breaks it.
Nothing here can carry a loss, a metric or a count that depends on true labels.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Embeddings:
    """Feature party → label party: `e_i = f(x_i)` for one part of a step's batch."""

    step: int
    part: int
    tensor: Tensor


@dataclass(frozen=True)
class Gradients:
    """Label party → feature party: the perturbed `g̃_i` for one part of a step's batch."""

    step: int
    part: int
    tensor: Tensor


@dataclass(frozen=True)
class Estimates:
    """Label party → feature party, before the first step (so `step` is 0): what noisy labels say of some labels.

    For one part of the trained records an unbiased estimate of each label, `[rows, 1]`: post-processing of the release.
    """

    step: int
    part: int
    tensor: Tensor


@dataclass(frozen=True)
class TestEmbeddings:
    """Feature party → label party: embeddings of one part of the held-out and test records after so many steps."""

    __test__ = False

    step: int
    part: int
    tensor: Tensor


@dataclass(frozen=True)
class HeadEmbeddings:
    """Feature party → label party: embeddings of training and test records for the local head; nothing comes back."""

    step: int
    part: int
    tensor: Tensor


@dataclass(frozen=True)
class Rewind:
    """Label party → feature party: stop what you do and say which steps you can go on from."""

    round: int


@dataclass(frozen=True)
class Position:
    """Feature party → label party: the steps it has checkpoints of (0, the beginning, needs none)."""

    round: int
    checkpoints: tuple[int, ...]


@dataclass(frozen=True)
class Start:
    """Label party → feature party: go on after so many steps."""

    round: int
    step: int


@dataclass(frozen=True)
class Verdict:
    """Label party → feature party, after an epoch: what noisy labels of held-out records say of its weights."""

    step: int
    best: bool
    """They are the best so far: keep them."""
    stop: bool
    """Training ends here; the best weights are the result."""


@dataclass(frozen=True)
class Finished:
    """Feature party → label party: all steps are done and the last checkpoint is on disk."""

    step: int


@dataclass(frozen=True)
class Bye:
    """Label party → feature party → label party → feature party: I have finished, and know that you have."""


@dataclass(frozen=True)
class Stop:
    """Either way: the job cannot go on, with a reason that does not depend on labels."""

    reason: str


TensorMessage = Embeddings | Gradients | Estimates | TestEmbeddings | HeadEmbeddings
Message = TensorMessage | Rewind | Position | Start | Verdict | Finished | Bye | Stop
