"""Logits processors: functions of tensors, and the values that stand for them."""
