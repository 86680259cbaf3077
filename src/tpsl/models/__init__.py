"""The two halves of the network, and how each is updated."""

from tpsl.models.averaging import WeightAverage
from tpsl.models.halves import Bottom, ModelConfig, Top
from tpsl.models.making import make_members
from tpsl.models.members import Bottoms, Tops
from tpsl.models.optimizer import HalfOptimizer, OptimizerConfig

__all__ = [
    "Bottom",
    "Bottoms",
    "HalfOptimizer",
    "ModelConfig",
    "OptimizerConfig",
    "Top",
    "Tops",
    "WeightAverage",
    "make_members",
]
