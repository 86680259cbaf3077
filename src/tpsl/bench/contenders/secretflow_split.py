"""Split learning with SecretFlow's SLModel in its simulation, without privacy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import secretflow
import torch
from secretflow.data.ndarray import FedNdarray, PartitionWay
from secretflow_fl.ml.nn import SLModel
from secretflow_fl.ml.nn.callbacks.callback import Callback
from secretflow_fl.ml.nn.core.torch import TorchModel
from torch import Tensor, nn

from tpsl.bench.contenders.plain_network import Bottom, Task, Top
from tpsl.bench.contenders.turns import Turns

FEATURE, LABEL = "feature", "label"
PLACES = 16
"""What Ray takes for processors: a party and each of its tasks want one of their own, or they wait for ever."""


class FeatureHalf(Bottom):
    """The bottom half: SecretFlow hands categories over as floats, and asks how many outputs there are."""

    def forward(self, categorical: Tensor) -> Tensor:
        """Return the embeddings of a batch."""
        return super().forward(categorical.long())

    def output_num(self) -> int:
        """Return that there is one output."""
        return 1


class LabelHalf(Top):
    """The top half: SecretFlow hands a list over."""

    def forward(self, cut: Any) -> Tensor:
        """Return the logits of a batch."""
        return super().forward(cut[0] if isinstance(cut, list | tuple) else cut)


class TakesTurns(Callback):  # type: ignore[misc]
    """Waits after a step until it is the contender's turn; both parties have done their work before time is taken."""

    def on_train_begin(self, logs: object = None) -> None:
        """Meet `tpsl bench`."""
        self.turns = Turns(lambda: secretflow.wait([worker.get_logs() for worker in self._workers.values()]))

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Note the step."""
        self.turns.step_done()


def main() -> None:
    """Train for an epoch, in turns."""
    folder = sys.argv[1]
    task = Task.read(Path(folder))
    shape = task.shape
    secretflow.init([FEATURE, LABEL], address="local", num_cpus=PLACES, log_to_driver=False)
    feature, label = secretflow.PYU(FEATURE), secretflow.PYU(LABEL)

    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=shape["learning_rate"])

    def array(name: str, kind: Any) -> npt.NDArray[Any]:
        values: npt.NDArray[Any] = np.load(Path(folder) / name).astype(kind)
        return values

    model = SLModel(
        base_model_dict={feature: TorchModel(lambda: FeatureHalf(shape, sparse=True), nn.BCEWithLogitsLoss, sgd)},
        device_y=label,
        model_fuse=TorchModel(lambda: LabelHalf(shape), nn.BCEWithLogitsLoss, sgd),
        backend="torch",
    )
    x = FedNdarray({feature: feature(array)("categorical.npy", np.float32)}, PartitionWay.VERTICAL)
    y = FedNdarray({label: label(array)("labels.npy", np.float32)}, PartitionWay.VERTICAL)
    model.fit(x, y, batch_size=shape["batch"], epochs=1, shuffle=False, verbose=0, callbacks=[TakesTurns()])


if __name__ == "__main__":
    main()
