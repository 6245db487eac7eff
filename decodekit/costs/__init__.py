"""The memory of a model and the expected time of its step: bytes, kernels, and the constants of a GPU."""

from decodekit.costs.estimate_report import Estimate
from decodekit.costs.prediction import estimate

__all__ = ["Estimate", "estimate"]
