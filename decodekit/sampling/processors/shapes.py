"""Other shapes of a distribution: dynamic temperature, quadratic smoothing, XTC as its exact marginal.

Logits are float32 [N, V].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor

from decodekit.errors import OptionError, out_of_domain
from decodekit.sampling.checks import NUMBER, POSITIVE, SHARE, Domain, is_number, numbers, require, token_ids
from decodekit.sampling.options.declared import WHOLE, Option, option, within
from decodekit.sampling.pipeline import LogitsProcessor, OrderPreserving, Stage
from decodekit.sampling.processors.history import History
from decodekit.sampling.processors.truncations import entropy
from decodekit.sampling.tolerances import log_total, lowest_kept, widened


@dataclass(frozen=True, repr=False)
class DynamicTemperature(OrderPreserving):
    """A temperature between ``low`` and ``high`` that follows the entropy (llama.cpp, KoboldCpp).

    T = low + (high - low) (H / ln n)^exponent over the n tokens that are left: a sure distribution gets the low
    temperature, a uniform one the high one. With n = 1 the row stays as it is.

    llama.cpp's ``dynatemp_range`` r around the temperature t is low = t - r, high = t + r; a temperature of 0, which
    takes the likeliest token there, is refused here.
    """

    low: float = field(metadata=within(POSITIVE))
    high: float = field(metadata=within(NUMBER))
    exponent: float = field(default=1.0, metadata=within(POSITIVE))
    stage = Stage.TEMPERATURE
    whole = Option(
        "dynamic_temperature",
        Domain("(low, high) or (low, high, exponent)", lambda v: isinstance(v, tuple | list) and len(v) in (2, 3)),
        "A temperature from low to high that follows the entropy, in place of `temperature`.",
        type="tuple[float, float] | tuple[float, float, float]",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require("high", self.high, self.high >= self.low, "a finite number, at least low")

    @classmethod
    def of_options(cls, **given: Any) -> DynamicTemperature:
        """Of its bounds, and perhaps its exponent."""
        name, domain, value = cls.whole.name, cls.whole.domain, given[WHOLE]
        domain.require(name, value)
        try:
            return cls(*value)
        except OptionError as error:
            first = (error.faults or (error,))[0].cause.partition(", got")[0]
            raise out_of_domain(name, f"{domain.text}, where {first}", value) from error

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """z / T(H)."""
        count = (logits > -math.inf).sum(dim=-1, keepdim=True)
        share = (entropy(logits).to(torch.float32) / count.to(torch.float32).log()).clamp(max=1.0)
        temperature = self.low + (self.high - self.low) * share.clamp(min=0.0) ** self.exponent
        return logits / torch.where(count > 1, temperature, 1.0)


@dataclass(frozen=True, repr=False)
class Quadratic(OrderPreserving):
    """Bend the logits, likely tokens nearer to each other, unlikely ones further down.

    max z - f (k d^2 - s d^3) with d = z - max z, k = (3 - curve) / 2, s = (curve - 1) / 2 ("smoothing"). From
    text-generation-webui, also in KoboldCpp and Aphrodite. With a curve from 1 to 3 it keeps the order.

    Args:
        factor: how much; f, above 0.
        curve: how, from 1 to 3; 1 if left out.
    """

    factor: float = field(metadata=option("smoothing_factor", POSITIVE, usual=0.2))
    curve: float = field(
        default=1.0, metadata=option("smoothing_curve", numbers("a number from 1 to 3", lambda value: 1 <= value <= 3))
    )
    stage = Stage.TEMPERATURE

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The bent logits."""
        peak = logits.amax(dim=-1, keepdim=True)
        d = (logits - peak).clamp(min=-1e4)  # no mass there; the cube stays finite
        bent = peak - self.factor * ((3 - self.curve) / 2 * d.square() - (self.curve - 1) / 2 * d.pow(3))
        return torch.where(logits == -math.inf, logits, bent)


_TOP: Final = numbers("a number above 0 and at most 0.5", lambda value: 0 < value <= 0.5).hinting(
    "leaving XTC out: no two tokens can be that likely", lambda value: is_number(value) and value > 0.5
)


@dataclass(frozen=True, repr=False)
class XTC(LogitsProcessor):
    """The distribution of "exclude top choices": (1 - rho) p + rho cut(p) with the `probability` rho.

    With probability rho, XTC removes all tokens with p >= threshold but the least likely of them (p-e-w, 2024; in
    text-generation-webui, llama.cpp, mlx-lm). Over both outcomes of that coin the token has one fixed distribution:
    with K the mass that the cut leaves, a removed token gets z + ln(1 - rho), another z + ln(1 - rho + rho / K). There
    is no coin here, and a draft is verified as with any other processor. With rho = 0.5 and a threshold of 0.1:

        p                0.50   0.30   0.15   0.05      the first two are removed: 0.15 is the least likely top choice
        cut(p)           0      0      0.75   0.25
        result           0.25   0.15   0.45   0.15

    Equals of the least likely one stay with it, as in mlx-lm (there the threshold itself is out: p > threshold).

    A processor after XTC acts on either outcome of XTC's coin. The mixture of its two results is not its result for the
    mixture. So where XTC is not last (llama.cpp: temperature; mlx-lm: top-k, temperature), the
    processors after it are given as ``then``, and the distribution is (1 - rho) then(p) + rho then(cut(p)).

    Args:
        probability: how often the top choices are excluded, from 0 to 1.
        threshold: from which probability on a token is a top choice, 0.1 if left out. Above 0.5 no two tokens could
            have it.
        spared: token ids that are never removed, such as the end of text.
        then: what follows.
    """

    probability: float = field(
        metadata=option(
            "xtc_probability", SHARE, "How often all of the top choices but the last are left out.", usual=0.5
        )
    )
    threshold: float = field(default=0.1, metadata=option("xtc_threshold", _TOP))
    spared: tuple[int, ...] = ()
    then: tuple[LogitsProcessor, ...] = ()
    stage = Stage.TRUNCATION

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "spared", token_ids("spared", self.spared, may_be_empty=True))
        require("then", self.then, isinstance(self.then, list | tuple), "processors in a list or tuple")
        object.__setattr__(self, "then", tuple(self.then))
        for processor in self.then:
            if not isinstance(processor, LogitsProcessor) or processor.needs_history:
                raise OptionError(f"{processor!r} cannot follow XTC", at="then", hint="truncations and temperatures")

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """The mixture of the distribution without and with its top choices."""
        rho = self.probability
        if rho == 0.0:
            return self._rest(logits)
        down = math.log1p(-rho) if rho < 1 else -math.inf
        removed = self._top_choices(logits)
        whole = self._rest(logits)
        if self.then:
            cut = self._rest(logits.masked_fill(removed, -math.inf))
            mixed = torch.logaddexp(whole.log_softmax(-1) + down, cut.log_softmax(-1) + math.log(rho))
        else:
            kept_mass = torch.where(removed, 0.0, logits.softmax(dim=-1)).sum(dim=-1, keepdim=True)
            mixed = logits + torch.where(removed, down, torch.log(1 - rho + rho / kept_mass))
        return torch.where(removed.any(dim=-1, keepdim=True), mixed, whole)

    def _top_choices(self, logits: Tensor) -> Tensor:
        """The tokens that the coin removes, bool [N, V]. NaN removes nothing."""
        # The likeliest token counts even below the threshold: alone, it is the least likely of them.
        is_top = logits >= lowest_kept(logits, widened(-log_total(logits) - math.log(self.threshold)))
        least = torch.where(is_top, logits, math.inf).amin(dim=-1, keepdim=True)
        removed = is_top & (logits > least)
        removed[..., [token for token in self.spared if token < logits.shape[-1]]] = False
        return removed

    def followed_by(self, rest: Sequence[LogitsProcessor]) -> XTC:
        """The processors after it act on either outcome of the coin."""
        return replace(self, then=(*self.then, *rest))

    def _rest(self, logits: Tensor) -> Tensor:
        for processor in self.then:
            logits = processor.applied(logits, None)
        return logits
