"""The noisy labels cross, once, instead of gradients in every step (`training.exchange: labels`).

Everything that a label party without features sends in split training is a function of its noisy labels, and a feature
party reads these off the first gradients. So it may as well be given them: what it learns about the labels is the same,
no embedding crosses, and it trains both halves by itself (`tpsl.run.alone`).

A draw crosses as bits, as many for each outcome as the mechanism's number of outcomes needs: one for randomised
response with two classes. Both sides build the mechanism from the job, and compare its digest at the handshake.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import save
from torch import Tensor

from tpsl.files import write_atomically
from tpsl.mechanisms import Mechanism
from tpsl.net.asking import Due, Script
from tpsl.net.failures import BadMessage
from tpsl.net.messages import Message
from tpsl.net.rounding import checked_tensor
from tpsl.run.checkpoint import read_weights
from tpsl.run.job import Job
from tpsl.run.role import FeatureRun, LabelRole
from tpsl.run.run_folder import RunError
from tpsl.vault import NoisyLabels, VaultError
from tpsl.vault.received import received_labels

NOISY_LABELS = "NoisyLabels"
"""Feature party → label party, after each start. Answer: the outcomes of one part of the training records, a
row for each draw."""
FILE = "noisy_labels.safetensors"


def label(role: LabelRole) -> Script:
    """Answer with the noisy labels of all training records, which the vault has stored before anybody sees them."""
    noisy = role.noisy()
    for part, positions in enumerate(role.schedule.train_parts()):
        rows = np.stack([packed(noisy.mechanism, draw[positions]) for draw in noisy.draws])
        question = yield Due(NOISY_LABELS, 0, part)
        question.answer_all(Message(tensor=torch.from_numpy(rows)))


def feature(run: FeatureRun) -> None:
    """Receive the noisy labels and keep them; those that come again after a restart must be the same."""
    (role,) = run.roles
    mechanism, draws, parts = role.job.mechanism, role.job.privacy.draws, []
    for part, positions in enumerate(role.schedule.train_parts()):
        answer = run.ask(NOISY_LABELS, part, step=0)[role.name]
        width = packed_bytes(mechanism, len(positions))
        rows = checked_tensor(answer, "the label party: noisy labels", draws, width)
        parts.append([unpacked(mechanism, row, len(positions)) for row in rows])
    received = save({f"draw {number}": np.concatenate(draw) for number, draw in enumerate(zip(*parts, strict=True), 1)})
    path = role.folder / FILE
    if path.exists() and path.read_bytes() != received:
        raise BadMessage("the label party sent other noisy labels than before")
    write_atomically(path, received)


def handed_over(job: Job, folder: Path) -> NoisyLabels:
    """Return the noisy labels that a feature party has received into its folder."""
    draws, mechanism, privacy = read_weights(folder / FILE, RunError), job.mechanism, job.privacy
    try:
        found = [draws[f"draw {number}"].numpy() for number in range(1, privacy.draws + 1)]
        return received_labels(mechanism, found, privacy.noise_seed is None and math.isfinite(mechanism.epsilon))
    except (VaultError, KeyError) as error:
        raise RunError(f"{folder / FILE}: is damaged ({error})") from error


def packed_bytes(mechanism: Mechanism, records: int) -> int:
    """Return how many bytes the outcomes of one draw for n records take."""
    return -(-records * math.prod(mechanism.outcome_shape) * _bits(mechanism) // 8)


def packed(mechanism: Mechanism, outcomes: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the outcomes of one draw as bits, the most significant bit of the first outcome first."""
    bits = outcomes.reshape(-1, 1) >> np.arange(_bits(mechanism) - 1, -1, -1, dtype=outcomes.dtype) & 1
    return np.packbits(bits.astype(np.uint8))


def unpacked(mechanism: Mechanism, row: Tensor, records: int) -> npt.NDArray[Any]:
    """Return the outcomes of one draw from the label party, all of which the mechanism must have."""
    count, width = records * math.prod(mechanism.outcome_shape), _bits(mechanism)
    bits = np.unpackbits(row.numpy())
    if bits[count * width :].any():
        raise BadMessage("the label party sent noisy labels with bits after the last one")
    outcomes = bits[: count * width].reshape(count, width) @ (1 << np.arange(width - 1, -1, -1, dtype=np.int64))
    if count and int(outcomes.max()) >= mechanism.outcomes:
        raise BadMessage(f"the label party sent a noisy label that {mechanism} does not have")
    return outcomes.astype(mechanism.outcome_dtype).reshape(records, *mechanism.outcome_shape)


def _bits(mechanism: Mechanism) -> int:
    return (mechanism.outcomes - 1).bit_length()
