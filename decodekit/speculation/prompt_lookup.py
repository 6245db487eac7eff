"""Prompt lookup: the text goes on as it did the last time its latest tokens came, in the prompt or in itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from decodekit.errors import OptionError
from decodekit.speculation.proposer import Context, Draft


@dataclass(frozen=True)
class PromptLookup:
    """Copies what followed the latest occurrence of the last n tokens, the longest n that occurred first.

    Costs no model and no memory but an index of the row's own tokens. It pays where texts quote their prompt:
    extraction, summaries, edits of code (Saxena 2023, `prompt_lookup_num_tokens` of transformers; here the most
    recent match counts, and lengths from `max_ngram` down to `min_ngram` are tried).

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
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise OptionError(f"{name}={value!r} is not an integer from 1 on", at=name)
        if self.min_ngram > self.max_ngram:
            raise OptionError(f"min_ngram={self.min_ngram} is above max_ngram={self.max_ngram}", at="min_ngram")

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        """What followed the latest occurrence; see `Proposer.propose`."""
        return [self._draft(context, limit) for context, limit in zip(contexts, limits, strict=True)]

    def _draft(self, context: Context, limit: int) -> Draft:
        limit = min(limit, self.num_tokens)
        if limit < 1:
            return Draft()
        text = context.root.text  # what is guessed behind it is looked up and not indexed
        index = context.memory.get(self)
        if index is None or not index.goes_on(text):
            index = context.memory[self] = _Index(self.min_ngram, self.max_ngram, list(context.prompt))
        index.extend(text)
        tokens, match = index.continuation(context.guessed, limit)
        return Draft(tokens, match=match)


@dataclass(slots=True, eq=False)
class _Index:
    """Where each run of min to max tokens ended last, among the tokens that another one follows."""

    min_ngram: int
    max_ngram: int
    tokens: list[int]
    num_prompt_tokens: int = field(init=False)
    num_indexed: int = 0
    ends: dict[tuple[int, ...], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.tokens)

    def goes_on(self, text: Sequence[int]) -> bool:
        """Whether `text` begins with the text that is indexed."""
        known = self.tokens[self.num_prompt_tokens :]
        return list(text[: len(known)]) == known

    def extend(self, text: Sequence[int]) -> None:
        self.tokens += text[len(self.tokens) - self.num_prompt_tokens :]
        for end in range(self.num_indexed + 1, len(self.tokens)):  # the last token has nothing after it yet
            for length in range(self.min_ngram, min(self.max_ngram, end) + 1):
                self.ends[tuple(self.tokens[end - length : end])] = end
            self.num_indexed = end

    def continuation(self, guessed: Sequence[int], num_tokens: int) -> tuple[tuple[int, ...], int]:
        """What followed the longest match, and its length."""
        latest = (*self.tokens[-self.max_ngram :], *guessed)
        for length in range(min(self.max_ngram, len(latest)), self.min_ngram - 1, -1):
            end = self.ends.get(latest[-length:])
            if end is not None:
                return tuple(self.tokens[end : end + num_tokens]), length
        return (), 0
