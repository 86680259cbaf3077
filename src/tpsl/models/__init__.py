"""The two halves of the network, and how each is updated."""

from tpsl.models.halves import Bottom, ModelConfig, Top
from tpsl.models.optimizer import HalfOptimizer, OptimizerConfig

__all__ = ["Bottom", "HalfOptimizer", "ModelConfig", "OptimizerConfig", "Top"]
