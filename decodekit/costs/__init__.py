"""What a model takes, and how long a step of it is expected to be: bytes, kernels, and the constants of a GPU."""

from decodekit.costs.estimate_report import Estimate
from decodekit.costs.prediction import estimate

__all__ = ["Estimate", "estimate"]
