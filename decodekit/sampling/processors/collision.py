"""p-less sampling: a truncation without a setting, at the probability that two draws are the same token.

    p          0.5    0.25   0.15   0.1
    sum p^2    0.345: 0.25 + 0.0625 + 0.0225 + 0.01
    kept       0.5

A sure row keeps its likeliest token alone, a uniform one all.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from decodekit.sampling.certificates import Flags, RankStatistics
from decodekit.sampling.checks import FLAG
from decodekit.sampling.options.declared import Option
from decodekit.sampling.pipeline import LogitsProcessor, Stage
from decodekit.sampling.processors.history import History
from decodekit.sampling.processors.truncations import at_least
from decodekit.sampling.tolerances import log_total


def apply_p_less(logits: Tensor) -> Tensor:
    """Keep p >= sum p^2 (p-less sampling, Tan et al. 2025). The largest p never is below the sum.

    ln sum p^2 = ln sum e^(2 z) - 2 ln sum e^z, each sum over e^(z - max z).
    """
    return at_least(logits, log_total(2 * logits) - 2 * log_total(logits))


@dataclass(frozen=True, repr=False)
class PLess(LogitsProcessor):
    """Keep tokens at least as likely as two draws are the same token (Tan et al. 2025); see ``apply_p_less``."""

    stage = Stage.TRUNCATION
    whole = Option("p_less", FLAG, type="bool", idle=False)

    def keeps(self, standing: RankStatistics) -> Flags:
        """It is the likeliest: beside one that is likelier, and nothing else, it would go."""
        flags: Flags = standing.largest == 0
        return flags

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The tokens with p >= sum p^2."""
        return apply_p_less(logits)
