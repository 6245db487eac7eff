"""A processor, a constraint, a strategy and a proposer of one's own, found by name once this package is installed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import BaseModel
from torch import Tensor

import decodekit as dk
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.network import Frame
from decodekit.decoding.request.settings import NoiseKeys
from decodekit.sampling import Candidates, History, LogitsProcessor, Stage, greedy
from decodekit.sampling.processors.pointwise import with_history
from decodekit.speculation import Context, Draft
from decodekit.speculation.proposer import Speculate

WARM = dk.Temperature(1.5) | dk.TopK(20)


@dataclass(frozen=True, repr=False)
class NoDouble(LogitsProcessor):
    """Lowers the logit of the token that came last."""

    penalty: float = 5.0
    stage = Stage.BIAS
    needs_history = True

    @property
    def can_forbid(self) -> bool:
        return False

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        last = with_history(self, history).last(1)  # [N, 1]; -1 where there is none
        is_last = torch.arange(logits.shape[-1], device=logits.device) == last
        return torch.where(is_last, logits - self.penalty, logits)


@dataclass(frozen=True)
class Plate(Constraint):
    """Number plates, such as ``HB-KX 417``; their value is the tuple of the three parts."""

    def root(self) -> Frame:
        return dk.Regex("[A-Z]{1,3}-[A-Z]{1,2} [1-9][0-9]{0,3}").root()

    def parse(self, text: str) -> object:
        place, _, rest = text.partition("-")
        letters, _, number = rest.partition(" ")
        return place, letters, int(number)


def shades() -> Constraint:
    """Three shades of grey."""
    return dk.Choices(["light", "middle", "dark"])


class Point(BaseModel):
    """A type: its JSON texts are the constraint."""

    x: int
    y: int


@dataclass(frozen=True, repr=False)
class Second(dk.Strategy):
    """The token second in likelihood; the likeliest where it is the only one."""

    name: ClassVar[str] = "second"
    speculate: Speculate = None

    def __post_init__(self) -> None:
        _ = self.proposer  # raises where nobody of that name can guess

    @property
    def pipeline(self) -> dk.Pipeline:
        return dk.Pipeline()

    def select(self, scores: Tensor | Candidates, keys: NoiseKeys, /) -> Tensor:
        scores = scores.dense() if isinstance(scores, Candidates) else scores
        first = greedy(scores)  # raises where there is no token, or NaN
        rest = scores.scatter(1, first[:, None], -torch.inf)
        return torch.where(rest.amax(dim=-1) > -torch.inf, rest.argmax(dim=-1), first)


@dataclass(frozen=True)
class Again:
    """Guesses that the last tokens come again."""

    num_tokens: int = 4

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        return [
            Draft(tuple(context.text[-self.num_tokens :])[:limit])
            for context, limit in zip(contexts, limits, strict=True)
        ]
