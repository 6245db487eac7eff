"""A module whose entry points are not what they should be."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from decodekit.sampling import History, LogitsProcessor, Stage

TEXT = "no plug-in at all"


def makes_nothing() -> None:
    """Forgets to return what it made."""


class Fails:
    """Cannot be made."""

    def __init__(self) -> None:
        raise ZeroDivisionError("the plug-in divides by zero")


@dataclass(frozen=True, repr=False)
class NeedsOptions(LogitsProcessor):
    """Has an option without a default, so that its name alone does not say enough."""

    bias: float
    stage = Stage.BIAS

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        return logits + self.bias
