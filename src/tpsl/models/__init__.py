"""The two halves of the network, and how each is updated."""

from tpsl.models.averaging import WeightAverage
from tpsl.models.halves import Bottom, ModelConfig, Top
from tpsl.models.members import BottomMembers, TopMembers, make_bottom, make_top
from tpsl.models.optimizer import HalfOptimizer, OptimizerConfig

__all__ = [
    "Bottom",
    "BottomMembers",
    "HalfOptimizer",
    "ModelConfig",
    "OptimizerConfig",
    "Top",
    "TopMembers",
    "WeightAverage",
    "make_bottom",
    "make_top",
]
