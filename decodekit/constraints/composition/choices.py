"""One of several given texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from decodekit.constraints.constraint import Constraint, set_fields
from decodekit.constraints.language.node import Node
from decodekit.constraints.language.words import words
from decodekit.constraints.network import Frame, Lexeme
from decodekit.errors import InvalidConstraintError


@dataclass(frozen=True, slots=True)
class Choices(Constraint):
    """Exactly one of `texts`. Their order does not matter to the constraint, but is kept; 100,000 texts are fine.

    Raises:
        InvalidConstraintError: no texts, a text twice, or something that is not a text.
    """

    texts: tuple[str, ...]

    def __init__(self, texts: Iterable[str]) -> None:
        if isinstance(texts, str):
            raise InvalidConstraintError("Choices takes several texts, not one", hint=f"Choices([{texts!r}])")
        if isinstance(texts, type) or not isinstance(texts, Iterable):
            raise InvalidConstraintError(f"{texts!r:.60} are no texts", hint='Choices(["yes", "no"])')
        given = tuple(texts)
        for text in given:
            if not isinstance(text, str):
                raise InvalidConstraintError(f"a choice must be a str, not {type(text).__name__}", at=f"{text!r:.60}")
        if not given:
            raise InvalidConstraintError("no choices were given", hint="at least one text")
        if len(set(given)) < len(given):
            twice = [text for text, count in Counter(given).items() if count > 1]
            shown = ", ".join(f"{text!r:.60}" for text in twice[:3])
            raise InvalidConstraintError(
                f"{len(twice)} of the choices occur more than once: {shown}", hint="each text once"
            )
        for text in given:
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise InvalidConstraintError(
                    f"a choice holds the surrogate {text[error.start]!r}, which has no UTF-8 form", at=f"{text!r:.60}"
                ) from None
        set_fields(self, texts=given)

    @property
    def num_bytes(self) -> int:
        """About how much memory the texts and their prefixes take."""
        return sum(_BYTES_PER_TEXT + _BYTES_PER_CHARACTER * len(text) for text in self.texts)

    def root(self) -> Frame:
        """One lexeme over the shared prefixes of the texts."""
        return Lexeme(_node(self.texts))

    def parse(self, text: str) -> str:
        """The text itself."""
        if text not in _members(self.texts):
            raise ValueError(f"{text!r} is none of the choices")
        return text


_BYTES_PER_TEXT: Final = 100
_BYTES_PER_CHARACTER: Final = 8  # measured with tracemalloc on random words


@lru_cache(maxsize=16)
def _node(texts: tuple[str, ...]) -> Node:
    return words(dict.fromkeys(text.encode() for text in texts))


@lru_cache(maxsize=16)
def _members(texts: tuple[str, ...]) -> frozenset[str]:
    return frozenset(texts)
