"""The length of drafts: as long as the tokens that they bring are worth the time that they cost.

A step with k draft tokens takes the time 1 + 0.05 k; each token is accepted in 6 of 10 cases if those before it were:

    k                   0      1      2      3      4      5
    tokens of a step    1      1.60   1.96   2.18   2.31   2.38      1 + 0.6 + 0.6^2 + ...
    time of a step      1      1.05   1.10   1.15   1.20   1.25
    tokens per time     1      1.52   1.78   1.89   1.92   1.91      four draft tokens are best

With t(k) the time of a step that verifies k draft tokens, and a_i the odds that the i-th is accepted given that those
before it were, a step of length k brings 1 + a_1 + a_1 a_2 + ... + a_1 ... a_k tokens on average (Leviathan et al.
2023), and the best k maximises that over t(k). k = 0 is a length like any other: guesses that do not pay are not
verified, and a proposer that brings nothing is asked only for a probe now and then.

A guess that goes on from a long match is likelier than one from a short match, so the odds are kept by `Draft.match`:
in a text that copies here and there, long matches pay while single tokens do not.

No text depends on the length of a draft, so acceptance may be learned from all rows together, in any order.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

import numpy as np
import torch

from decodekit.errors import out_of_domain
from decodekit.models.causal_lm import CausalLM
from decodekit.sampling.checks import COUNT
from decodekit.speculation.proposer import Context, Draft, Proposer, asked, is_proposer
from decodekit.speculation.verification import num_equal

DEFAULT_COSTS: Final = tuple(1 + 0.05 * k for k in range(17))
"""Where reading the weights takes most of a step, a token more is cheap; measure where it may not be so."""

FIRST_GUESSES: Final = (0.8, 0.25, 0.6, 0.8, 0.9)
"""Acceptance before there is any experience, by class of match: none told, 1, 2 to 3, 4 to 7, and 8 tokens or more.
High, so that what is new is tried; a single token, which repeats in any text, is tried a few times only."""

PROBE_TOKENS: Final = 4
PROBE_CALLS: Final = 4
MAX_REST: Final = 16
"""A proposer that brings nothing is probed ever more seldom; the longest rest is this times `probe_every`."""

_GUESS_WEIGHT: Final = 1.0
_NEIGHBOUR_WEIGHT: Final = 2.0


def best_length(acceptance: Sequence[float], costs: Sequence[float]) -> int:
    """The k that maximises (1 + sum of the first k products of acceptance) / t(k), the smallest of equals.

    From a_1 ... a_K, the odds of a token given that those before it were accepted, and t(0) ... t(K) in any unit.
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
            K. `decodekit.speculation.measured_costs` measures it.
        decay: what an earlier experience counts for, at every later one at the same position.
        probe_every: after this many calls in vain a proposer is left alone for as many calls, then for twice as many,
            and so on up to `MAX_REST` times as many; so are guesses of a kind that does not pay.

    Raises:
        OptionError: numbers out of range, or `proposer` is none.
    """

    proposer: Proposer
    costs: Sequence[float] = DEFAULT_COSTS
    decay: float = 0.95
    probe_every: int = 64
    _kinds: Sequence[_Kind] = field(init=False, repr=False, compare=False)
    _backoff: _Backoff = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not is_proposer(self.proposer):
            raise out_of_domain("proposer", "a proposer", self.proposer)
        costs = tuple(self.costs)
        if len(costs) < 2 or not all(isinstance(cost, int | float) and 0 < cost < float("inf") for cost in costs):
            raise out_of_domain("costs", "two or more times above 0", costs)
        if not 0 <= self.decay < 1:
            raise out_of_domain("decay", "a number from 0 to below 1", self.decay)
        COUNT.require("probe_every", self.probe_every)
        object.__setattr__(self, "costs", costs)
        kinds = [_Kind(guess, costs, self.decay, self.probe_every) for guess in FIRST_GUESSES]
        object.__setattr__(self, "_kinds", kinds)
        object.__setattr__(self, "_backoff", _Backoff(self.probe_every, self.probe_every))

    @property
    def proposers(self) -> tuple[Proposer, ...]:
        """The proposer inside."""
        return (self.proposer,)

    def acceptance(self, match: int = 0) -> list[float]:
        """The present estimates of a_1 ... a_K for guesses from a match of `match` tokens; 0 where none is told."""
        return self._kind(match).acceptance()

    def num_tokens(self, match: int = 0) -> int:
        """The length that is best by them."""
        return self._kind(match).length

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        """Drafts of the best length; see `Proposer.propose`."""
        for context in contexts:
            offered = context.memory.get(self._backoff)
            if offered is not None and len(context.root.text) != offered.begin:  # else it is part of a longer draft
                del context.memory[self._backoff]
                self._learn(offered, context.root.text)
        if self._backoff.is_over():
            most = max(kind.length for kind in self._kinds) or PROBE_TOKENS
            drafts = asked(self.proposer, contexts, [min(limit, most) for limit in limits])
            return [self._cut(context, draft) for context, draft in zip(contexts, drafts, strict=True)]
        return [Draft()] * len(contexts)

    def _cut(self, context: Context, draft: Draft) -> Draft:
        """As much of a draft as pays; it is remembered, to be compared with the text that comes."""
        if not draft:
            return draft
        kind = self._kind(draft.match)
        length = kind.length
        if length == 0:
            if not kind.backoff.is_over():
                return Draft()
            length = PROBE_TOKENS
        draft = draft.first(length)
        offered = _Offered(len(context.root.text), tuple(context.guessed), draft.tokens, kind)
        context.memory.setdefault(self._backoff, offered)
        return draft

    def _kind(self, match: int) -> _Kind:
        return self._kinds[min(match.bit_length(), len(self._kinds) - 1)]

    def _learn(self, offered: _Offered, text: Sequence[int]) -> None:
        """Compare a draft with the text that came. What was cut off, or taken back since, tells nothing.

        Threads may lose an update to one another, which makes an estimate a little older and no text another.
        """
        begin = offered.begin + len(offered.guessed)
        if list(text[offered.begin : begin]) != list(offered.guessed):
            return
        came = text[begin : begin + len(offered.tokens)]
        num_accepted = num_equal(offered.tokens, came)
        offered.kind.learn(num_accepted, len(came))
        if num_accepted:
            self._backoff.end()


@dataclass(frozen=True, slots=True, eq=False)
class _Offered:
    """A draft, the length of the text that it was for, what was guessed between them, and its kind."""

    begin: int
    guessed: Sequence[int]
    tokens: Sequence[int]
    kind: _Kind


class _Backoff:
    """The pauses of a proposer that brings nothing: after some calls in vain, each longer.

    The first, of `length` calls, after `patience` calls in vain; each later one after at most `PROBE_CALLS` and twice
    as long, up to `MAX_REST` times the first.
    """

    def __init__(self, patience: int, length: int) -> None:
        self._patience = patience
        self._first_length = length
        self.end()

    def end(self) -> None:
        """Something was brought."""
        self._length = self._first_length
        self._num_in_vain = 0
        self._num_left = 0

    def is_over(self) -> bool:
        """Count one more call; whether it should be made."""
        if self._num_left:
            self._num_left -= 1
            return False
        self._num_in_vain += 1
        if self._num_in_vain >= self._patience:
            self._num_left = self._length
            self._length = min(2 * self._length, MAX_REST * self._first_length)
            self._num_in_vain = max(0, self._patience - PROBE_CALLS)
        return True


class _Kind:
    """The counts of tried and accepted draft tokens, by their position, the latest counting most."""

    def __init__(self, first_guess: float, costs: Sequence[float], decay: float, probe_every: int) -> None:
        self._costs = costs
        self._decay = decay
        self._tried = [_GUESS_WEIGHT, *[0.0] * (len(costs) - 2)]  # a guess that is forgotten like any experience
        self._accepted = [_GUESS_WEIGHT * first_guess, *[0.0] * (len(costs) - 2)]
        self.backoff = _Backoff(1, probe_every)
        self._is_proven = False  # until something was accepted, no draft is longer than a probe
        self.length = min(PROBE_TOKENS, best_length(self.acceptance(), costs))

    def learn(self, num_accepted: int, num_came: int) -> None:
        """The first `num_accepted` tokens of a draft came, and `num_came` of them could be compared."""
        for position in range(min(num_accepted + 1, num_came, len(self._tried))):
            self._tried[position] = self._decay * self._tried[position] + 1
            self._accepted[position] = self._decay * self._accepted[position] + (position < num_accepted)
        self._is_proven = self._is_proven or num_accepted > 0
        best = best_length(self.acceptance(), self._costs)
        self.length = best if self._is_proven else min(PROBE_TOKENS, best)
        if self.length:
            self.backoff.end()

    def acceptance(self) -> list[float]:
        """Estimates; where a position was hardly tried, that of the one before it."""
        rate = self._accepted[0] / self._tried[0]
        rates = [rate]
        for tried, accepted in zip(self._tried[1:], self._accepted[1:], strict=True):
            rate = (accepted + _NEIGHBOUR_WEIGHT * rate) / (tried + _NEIGHBOUR_WEIGHT)
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
    num_times: int = 16,
) -> tuple[float, ...]:
    """t(0), ..., t(K) in seconds: the least time of a forward pass over k + 1 tokens of every row.

    Measured at 0 and at powers of two, straight lines between them; never falling.

    Args:
        model: the target, an `LLM.model`.
        max_tokens: K.
        draft: a draft model, one pass of which is added for every draft token.
        num_rows: how many rows decode together.
        num_read: tokens that a row has read before.
        num_times: passes of which the fastest counts; on a CPU the first eleven of a kind are slower.
    """
    points = sorted({0, max_tokens, *(1 << n for n in range(max_tokens.bit_length()))})
    times = [_time(model, k + 1, num_rows, num_read, num_times) for k in points]
    per_token = 0.0 if draft is None else _time(draft, 1, num_rows, num_read, num_times)
    costs = np.interp(range(max_tokens + 1), points, np.maximum.accumulate(times))
    return tuple((costs + per_token * np.arange(max_tokens + 1)).tolist())


def _time(model: CausalLM, num_tokens: int, num_rows: int, num_read: int, num_times: int) -> float:
    """The least seconds of a pass over `num_tokens` tokens of every row."""
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
