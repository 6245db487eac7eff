"""What a model takes and how fast it can be: bytes, operations, and the least time of a device for them."""

from decodekit.costs.device_speed import DeviceSpeed as DeviceSpeed
from decodekit.costs.device_speed import device_speed as device_speed
from decodekit.costs.predicting import estimate as estimate
from decodekit.costs.report import Estimate as Estimate
