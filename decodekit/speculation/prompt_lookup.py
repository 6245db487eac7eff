"""Prompt lookup: the text goes on as it did the last time its latest tokens came, in the prompt or in itself.

prompt          The  cat  sat  on  the  mat  .
text            The  cat  sat
looked up       The  cat  sat                       the last 3 tokens; they came before, at the start of the prompt
draft           on  the  mat  .  The  cat  sat      what followed there, at most `num_tokens`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from decodekit.errors import OptionError
from decodekit.sampling.checks import require_integer
from decodekit.speculation.proposer import Context, Draft
from decodekit.speculation.suffix import RowTokens, longest_match


@dataclass(frozen=True)
class PromptLookup:
    """Copies what followed the latest occurrence of the last n tokens, the longest n that occurred first.

    Costs no model and no memory but an array of the row's own tokens. It pays where texts quote their prompt:
    extraction, summaries, edits of code (Saxena 2023, `prompt_lookup_num_tokens` of transformers; here the most
    recent match counts, and lengths from `max_ngram` down to `min_ngram` are tried). `Suffix` finds its matches in the
    same way, and chooses among all of them by their counts.

    Args:
        max_ngram: the longest run of tokens that is looked up.
        num_tokens: most tokens of a draft.
        min_ngram: the shortest run.

    Raises:
        OptionError: a number is out of range.
    """

    max_ngram: int = 3
    num_tokens: int = 10
    min_ngram: int = 1

    def __post_init__(self) -> None:
        for name in ("max_ngram", "num_tokens", "min_ngram"):
            require_integer(name, getattr(self, name))
        if self.min_ngram > self.max_ngram:
            raise OptionError(f"min_ngram={self.min_ngram} is above max_ngram={self.max_ngram}", at="min_ngram")

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        """What followed the latest occurrence; see `Proposer.propose`."""
        return [self._draft(context, limit) for context, limit in zip(contexts, limits, strict=True)]

    def _draft(self, context: Context, limit: int) -> Draft:
        limit = min(limit, self.num_tokens)
        if limit < 1:
            return Draft()
        row = context.memory.get(self)
        if row is None:
            row = context.memory[self] = RowTokens(context)
        tokens = row.update(context.root.text)
        latest = tokens
        if context.guessed:  # guessed tokens are part of what is looked up, never of what is copied
            latest = np.append(tokens[-self.max_ngram :], np.asarray(context.guessed, np.int32))
        places, length = longest_match(tokens, latest, self.max_ngram)
        if length < self.min_ngram:
            return Draft()
        place = places[-1]
        return Draft(tuple(tokens[place : place + limit].tolist()), match=length)
