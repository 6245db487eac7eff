"""What a model takes and how fast it can be: bytes, operations, and the least time of a device for them."""

from decodekit.costs.device_speed import DeviceSpeed, device_speed
from decodekit.costs.predicting import estimate
from decodekit.costs.report import Estimate

__all__ = ["DeviceSpeed", "Estimate", "device_speed", "estimate"]
