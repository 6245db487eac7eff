"""What a model takes, and how long a step of it is expected to be: bytes, kernels, and the constants of a GPU."""

from decodekit.costs.prediction import estimate
from decodekit.costs.report import Estimate

__all__ = ["Estimate", "estimate"]
