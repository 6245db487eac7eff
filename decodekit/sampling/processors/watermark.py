"""A watermark: some tokens, chosen by a key and the tokens before, become likelier; and the test that finds it.

Kirchenbauer et al. 2023: the green list of a row is a share gamma of the vocabulary, pseudo-random in the last tokens
of its prefix; green tokens get z + delta. Who knows the key counts the green tokens of a text: T tokens without a
watermark have gamma T on average.

Here a token is green if a hash of (key, last tokens, token) lies below gamma 2^64, as in ``noise``: the same on every
device, one pass over the row, and a share gamma only on average. (transformers takes the first gamma V of a random
permutation, from a generator whose numbers depend on the device.) ``context_width`` = 1 is the paper's scheme.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from decodekit.sampling.checks import COUNT, INSIDE, NUMBER, SEED, Domain
from decodekit.sampling.noise import SIGNED_GOLDEN, mix_int64
from decodekit.sampling.options.declared import WHOLE, Option, within
from decodekit.sampling.pipeline import LogitsProcessor, Stage
from decodekit.sampling.processors.history import History
from decodekit.sampling.processors.pointwise import with_history


def green_lists(contexts: Tensor, vocab_size: int, ratio: float, key: int) -> Tensor:
    """The green tokens after each context of h tokens, int64 [N, h]; bool [N, vocab_size]."""
    states = _context_states(contexts, key)
    counters = torch.arange(1, vocab_size + 1, device=contexts.device) * SIGNED_GOLDEN
    return _is_green(states.unsqueeze(1) + counters, ratio)


def _context_states(contexts: Tensor, key: int) -> Tensor:
    """[N] int64: the key mixed with the tokens of each context in their order."""
    states = torch.full((len(contexts),), key, dtype=torch.int64, device=contexts.device)
    for column in contexts.unbind(dim=1):  # h of them
        states = mix_int64(states + (column + 1) * SIGNED_GOLDEN)
    return states


def _is_green(counters: Tensor, ratio: float) -> Tensor:
    """Whether the upper 63 bits of the hash are below gamma 2^63; overwrites its argument."""
    bits = (mix_int64(counters) >> 1) & ((1 << 63) - 1)
    return bits < int(ratio * 2.0**63)


def watermark_score(
    token_ids: Sequence[int], *, ratio: float, key: int, context_width: int = 1, prompt: Sequence[int] = ()
) -> float:
    """The number of green tokens in standard deviations above chance: (g - gamma T) / sqrt(T gamma (1 - gamma)).

    Repeats of the same token after the same context are counted once (as the paper advises), so that repeated text is
    no evidence. A z of 4 comes by chance once in 30,000 texts.

    Args:
        token_ids: the text.
        ratio, key, context_width: those of the watermark; an `OptionError` where there can be none.
        prompt: the tokens before the text; without it, the text's first ``context_width`` tokens are not counted.
    """
    Watermark(ratio=ratio, key=key, context_width=context_width)
    tokens = [*prompt, *token_ids]
    first = max(len(prompt), context_width)
    spans = {tuple(tokens[place - context_width : place + 1]) for place in range(first, len(tokens))}
    if not spans:
        return 0.0
    grams = torch.tensor(sorted(spans), dtype=torch.int64)
    states = _context_states(grams[:, :-1], key)
    num_green = int(_is_green(states + (grams[:, -1] + 1) * SIGNED_GOLDEN, ratio).sum())
    return (num_green - ratio * len(grams)) / math.sqrt(len(grams) * ratio * (1 - ratio))


@dataclass(frozen=True, repr=False)
class Watermark(LogitsProcessor):
    """Make the tokens of a keyed green list likelier, after everything else; see the module.

    Args:
        delta: what green tokens get.
        ratio: gamma, the share of green tokens.
        key: who knows it can find the watermark.
        context_width: how many of the last tokens choose the green list; a shorter prefix has none.
    """

    delta: float = field(default=2.0, metadata=within(NUMBER))
    ratio: float = field(default=0.25, metadata=within(INSIDE))
    key: int = field(default=15485863, metadata=within(SEED))
    context_width: int = field(default=1, metadata=within(COUNT))
    stage = Stage.LAST
    needs_history = True

    whole = Option(
        "watermark",
        Domain("a Watermark", lambda value: isinstance(value, Watermark)).hinting("Watermark(key=...)"),
        "Make the tokens of a keyed green list likelier, after everything else.",
        type="Watermark",
    )

    @classmethod
    def of_options(cls, **given: Any) -> Watermark:
        """The value of the option."""
        cls.whole.domain.require(cls.whole.name, given[WHOLE])
        watermark: Watermark = given[WHOLE]
        return watermark

    def __call__(self, logits: Tensor, history: History | None) -> Tensor:
        """Green tokens, likelier."""
        history = with_history(self, history)
        green = green_lists(history.last(self.context_width), logits.shape[-1], self.ratio, self.key)
        green &= (history.lengths >= self.context_width).unsqueeze(1)
        return torch.where(green, logits + self.delta, logits)
