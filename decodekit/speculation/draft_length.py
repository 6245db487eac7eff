"""How long a draft should be: as long as the tokens that it brings are worth the time that they cost.

With t(k) the time of a step that verifies k draft tokens, and a_i the odds that the i-th is accepted given that those
before it were, a step of length k brings 1 + a_1 + a_1 a_2 + ... + a_1 ... a_k tokens on average (Leviathan et al.
2023), and the best k maximises that over t(k). k = 0 is a length like any other: a proposer that does not pay is not
asked, but for a probe now and then.

The length is the proposer's own affair: no text depends on it, so acceptance may be learned from all rows together, in
whatever order they come.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from decodekit.errors import OptionError
from decodekit.speculation.proposer import Context, Draft, Proposer
from decodekit.speculation.verification import num_equal

if TYPE_CHECKING:
    from decodekit.models.causal_lm import CausalLM

DEFAULT_COSTS: Final = tuple(1 + 0.05 * k for k in range(17))
"""Where reading the weights takes most of a step, a token more is cheap; measure where it may not be so."""

FIRST_GUESS: Final = 0.8
"""Acceptance before there is any experience. High, so that a new proposer is tried."""

_GUESS_WEIGHT: Final = 2.0
_PROBE_TOKENS: Final = 4


def best_length(acceptance: Sequence[float], costs: Sequence[float]) -> int:
    """The k that maximises (1 + sum of the first k products of acceptance) / t(k), the smallest of equals.

    Args:
        acceptance: a_1 ... a_K, the odds of a token given that those before it were accepted.
        costs: t(0) ... t(K), in any unit.
    """
    products = accumulate(acceptance, lambda one, other: one * other, initial=1.0)
    rates = [tokens / cost for tokens, cost in zip(accumulate(products), costs, strict=True)]
    return max(range(len(rates)), key=rates.__getitem__)


@dataclass(frozen=True)
class Adaptive:
    """A proposer whose drafts are as long as pays, and that is left alone where none does.

    Args:
        proposer: whose drafts they are.
        costs: t(0), t(1), ..., t(K), the time of a step with 0 to K draft tokens, in any unit; no draft is longer than
            K. `measured_costs` measures it.
        decay: what an earlier experience counts for, at every later one at the same position.
        probe_every: while the length is 0, one in so many calls asks the proposer all the same.

    Raises:
        OptionError: numbers out of range, or `proposer` is none.
    """

    proposer: Proposer
    costs: Sequence[float] = DEFAULT_COSTS
    decay: float = 0.95
    probe_every: int = 64
    _experience: _Experience = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.proposer, type) or not isinstance(self.proposer, Proposer):
            raise OptionError(f"{self.proposer!r:.60} is no proposer", at="proposer")
        costs = tuple(self.costs)
        if len(costs) < 2 or not all(isinstance(cost, int | float) and 0 < cost < float("inf") for cost in costs):
            raise OptionError(f"costs={costs!r:.60} are not two or more times above 0", at="costs")
        if not 0 <= self.decay < 1:
            raise OptionError(f"decay={self.decay!r} is not in 0 <= decay < 1", at="decay")
        every = self.probe_every
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise OptionError(f"probe_every={every!r} is not an integer from 1 on", at="probe_every")
        object.__setattr__(self, "costs", costs)
        object.__setattr__(self, "_experience", _Experience(len(costs) - 1, self.decay))

    @property
    def proposers(self) -> tuple[Proposer, ...]:
        """The proposer inside."""
        return (self.proposer,)

    @property
    def acceptance(self) -> list[float]:
        """The present estimates of a_1 ... a_K."""
        return self._experience.acceptance()

    @property
    def num_tokens(self) -> int:
        """The length that is best by them."""
        return best_length(self.acceptance, self.costs)

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        """Drafts of the best length; see `Proposer.propose`."""
        experience = self._experience
        for context in contexts:
            text = context.root.text
            offers = context.memory.get(experience, ())
            for offered in offers:
                if offered.begin < len(text):
                    experience.learn(offered, text)
            context.memory[experience] = [offered for offered in offers if offered.begin == len(text)]
        most = self.num_tokens
        if most == 0:
            experience.num_calls_idle += 1
            if experience.num_calls_idle < self.probe_every:
                return [Draft()] * len(contexts)
            most = min(_PROBE_TOKENS, len(self.costs) - 1)
        experience.num_calls_idle = 0
        drafts = self.proposer.propose(contexts, [min(limit, most) for limit in limits])
        for context, draft in zip(contexts, drafts, strict=True):
            if draft:
                context.memory[experience].append(_Offered(len(context.root.text), context.guessed, draft.tokens))
        return drafts


@dataclass(frozen=True, slots=True)
class _Offered:
    """A draft, the length of the text that it was for, and what was guessed between the two."""

    begin: int
    guessed: Sequence[int]
    tokens: Sequence[int]


class _Experience:
    """How often a draft token was tried and accepted, by its position, the latest counting most.

    Threads may lose an update to one another, which makes an estimate a little older and no text another.
    """

    def __init__(self, num_positions: int, decay: float) -> None:
        self.num_calls_idle = 0
        self._decay = decay
        self._tried = [_GUESS_WEIGHT, *[0.0] * (num_positions - 1)]  # a guess that is forgotten like any experience
        self._accepted = [_GUESS_WEIGHT * FIRST_GUESS, *[0.0] * (num_positions - 1)]

    def learn(self, offered: _Offered, text: Sequence[int]) -> None:
        """Compare a draft with the text that came. What was cut off, or taken back since, tells nothing; nor does a
        draft behind a guess that was wrong.
        """
        begin = offered.begin + len(offered.guessed)
        if num_equal(offered.guessed, text[offered.begin : begin]) < len(offered.guessed):
            return
        came = text[begin : begin + len(offered.tokens)]
        num_accepted = num_equal(offered.tokens, came)
        for position in range(min(num_accepted + 1, len(came))):
            self._tried[position] = self._decay * self._tried[position] + 1
            self._accepted[position] = self._decay * self._accepted[position] + (position < num_accepted)

    def acceptance(self) -> list[float]:
        """Estimates; where a position was hardly tried, that of the one before it."""
        rate = self._accepted[0] / self._tried[0]
        rates = [rate]
        for tried, accepted in zip(self._tried[1:], self._accepted[1:], strict=True):
            rate = (accepted + _GUESS_WEIGHT * rate) / (tried + _GUESS_WEIGHT)
            rates.append(rate)
        return rates


@torch.inference_mode()
def measured_costs(
    model: CausalLM,
    max_tokens: int = 16,
    *,
    draft: CausalLM | None = None,
    num_rows: int = 1,
    num_read: int = 256,
    num_times: int = 5,
) -> tuple[float, ...]:
    """t(0), ..., t(K) in seconds: the least time of a forward pass over k + 1 tokens of every row.

    Measured at 0 and at powers of two, straight lines between them; never falling.

    Args:
        model: the target, an `LLM.model`.
        max_tokens: K.
        draft: a draft model, one pass of which is added for every draft token.
        num_rows: how many rows decode together.
        num_read: tokens that a row has read before.
        num_times: passes of which the fastest counts.
    """
    points = sorted({0, max_tokens, *(1 << n for n in range(max_tokens.bit_length()))})
    times = [_time(model, k + 1, num_rows, num_read, num_times) for k in points]
    per_token = 0.0 if draft is None else _time(draft, 1, num_rows, num_read, num_times)
    costs = np.interp(range(max_tokens + 1), points, np.maximum.accumulate(times))
    return tuple((costs + per_token * np.arange(max_tokens + 1)).tolist())


def _time(model: CausalLM, num_tokens: int, num_rows: int, num_read: int, num_times: int) -> float:
    """The least seconds of a pass over so many tokens of every row."""
    cache: Any = model.new_cache(num_rows, num_read + num_tokens)

    def seconds(count: int) -> float:
        tokens = torch.zeros(num_rows, count, dtype=torch.int64, device=model.device)
        begin = time.perf_counter()
        model.forward(tokens, [count] * num_rows, cache, logits=[count] * num_rows)[-1, 0].item()
        return time.perf_counter() - begin

    if num_read:
        seconds(num_read)
    times = []
    for _ in range(num_times):
        times.append(seconds(num_tokens))
        cache.truncate([num_read] * num_rows)
    return min(times)
