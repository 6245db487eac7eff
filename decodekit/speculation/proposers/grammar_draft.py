"""The scaffolding of a constraint as a draft: keys, quotes and commas cost no forward pass of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from decodekit.errors import DecodekitError
from decodekit.sampling.checks import COUNT
from decodekit.speculation.proposer import Context, Draft

_WHITESPACE: Final = b" \n\t\r"


@dataclass(frozen=True)
class GrammarDraft:
    """Offers the bytes that the constraint leaves no choice about, in the tokens of the tokenizer's own division.

    A constraint forces bytes, and the bytes may be written in several ways as tokens, so the tokens are not forced:
    taking them unseen would change the distribution. As a draft they are verified, and nothing moves.

    Since a wrong guess costs nothing, one spelling is guessed where there are several: a gap is written as the text
    wrote the last gap after the same byte, without whitespace if there was none; nothing is escaped without need.

    Args:
        max_tokens: most tokens of a draft.

    Raises:
        OptionError: the number is out of range.
    """

    max_tokens: int = 16

    def __post_init__(self) -> None:
        COUNT.require("max_tokens", self.max_tokens)

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        """The scaffolding that follows; see `Proposer.propose`."""
        return [self._draft(context, limit) for context, limit in zip(contexts, limits, strict=True)]

    def _draft(self, context: Context, limit: int) -> Draft:
        limit = min(limit, self.max_tokens)
        if limit < 1 or context.matcher is None or context.canonical is None:
            return Draft()
        try:
            text = context.matcher.forced_text(_gaps_of(context).after)
        except DecodekitError:  # the row will meet the error by itself
            return Draft()
        tokens = context.canonical.after(context.text, text) or context.canonical.after((), text)
        return Draft(tokens[:limit])


@dataclass(slots=True)
class _Gaps:
    """The whitespace that a text wrote last after each other byte; a guess, wrong after a text was taken back."""

    num_tokens: int = 0
    after: dict[int, bytes] = field(default_factory=dict)
    _last: int = -1
    _whitespace: bytes = b""

    def extend(self, context: Context) -> None:
        assert context.canonical is not None
        for token in context.text[self.num_tokens :]:
            for byte in context.canonical.token_bytes[token] or b"":
                if byte in _WHITESPACE:
                    self._whitespace += bytes((byte,))
                    continue
                if self._last >= 0:
                    self.after[self._last] = self._whitespace
                self._last, self._whitespace = byte, b""
        self.num_tokens = len(context.text)


def _gaps_of(context: Context) -> _Gaps:
    """Those of the row's own text are kept for the next call, those of a guess are not."""
    if context.ahead_of is not None:
        own = _gaps_of(context.root)
        gaps = replace(own, after=dict(own.after))
    else:
        gaps = context.memory.setdefault(GrammarDraft, _Gaps())
        if gaps.num_tokens > len(context.text):
            gaps = context.memory[GrammarDraft] = _Gaps()
    gaps.extend(context)
    return gaps
