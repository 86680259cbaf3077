"""Split learning with SecretFlow's SLModel in its simulation, without privacy.

It is installed without its own pins, which pip cannot satisfy:

    pip install --no-deps secretflow==1.11.0b1
    pip install torch
    pip install --no-deps secretflow-rayfed==0.2.1a2 spu==0.9.3b0 sf-heu==0.5.2b0 interconnection==0.2.0.dev0 \\
        kuscia==0.0.3b0 secretflow-serving-lib==0.8.0b0 secretflow-dataproxy==0.3.0b0
    pip install numpy==1.24.3 pandas==1.5.3 protobuf==4.25.9 pyarrow==14.0.2 'ray[tune]==2.9.3' jax==0.4.26 \\
        jaxlib==0.4.26 scipy==1.12.0 scikit-learn==1.3.2 torchmetrics==1.3.2 duckdb==1.0.0 sqlglot==25.5.1 \\
        validator.py==1.3.0 grpcio networkx tqdm sparse cloudpickle cachetools multiprocess s3fs requests aiohttp \\
        cryptography click
    pip install tensorflow-cpu==2.12.1
    pip install --no-deps setuptools==69.5.1 typing_extensions==4.16.0
"""

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

from contenders.plain_network import Bottom, Task, Top
from contenders.turns import Turns

FEATURE, LABEL = "feature", "label"
PLACES = 16
"""What Ray takes for processors: a party and each of its tasks want one of their own, or they wait for ever."""


class FeatureHalf(Bottom):
    """The bottom half: SecretFlow hands categories over as floats, and asks how many outputs there are."""

    def forward(self, categorical: Tensor, numeric: Tensor | None = None) -> Tensor:
        """Return the embeddings of a batch."""
        return super().forward(categorical.long(), numeric)

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
        """Meet `race.py`."""
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
