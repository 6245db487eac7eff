"""Logits processors: functions of tensors, and the values that stand for them."""

from decodekit.sampling.processors.pointwise import with_history as with_history
