"""lm-format-enforcer (https://github.com/noamgat/lm-format-enforcer), read with version 0.11: a parser of
characters that walks a tree of the tokens.

It reads characters, not bytes: a token that is not a whole text in UTF-8 is not given to it, so what is not ASCII can
be written only with tokens of whole characters. It keeps a state for every text that it has met, until the matcher
goes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from decodekit.constraints.constraint import Constraint
from decodekit.constraints.engine.automaton import Int32Array
from decodekit.constraints.engine.bitmask import bitmask_from_ids
from decodekit.integrations.backends.peer import PeerText, form_of, load, refused
from decodekit.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class LMFormatEnforcer:
    """lm-format-enforcer as a `Peer`; it has no options here, but variables of the environment of its own."""

    name: ClassVar[str] = "lm-format-enforcer"

    def compile(self, constraint: Constraint, vocabulary: Vocabulary) -> Callable[[], EnforcerText]:
        """Its parser and its tree of the tokens; raises what `Peer.compile` raises."""
        lib = load("lmformatenforcer", self.name)
        form = form_of(constraint, self.name, ("schema", "pattern"))
        data = tokens_of(vocabulary)

        def enforcer() -> Any:
            is_schema = form.kind == "schema"
            parser = lib.JsonSchemaParser(json.loads(form.text)) if is_schema else lib.RegexParser(form.text)
            return lib.TokenEnforcer(data, parser)

        try:
            enforcer()
        except Exception as error:  # Pydantic's for schemas, interegular's for patterns, its own
            raise refused(self.name, error) from error
        return lambda: EnforcerText(enforcer(), vocabulary, ())


@lru_cache(maxsize=4)
def tokens_of(vocabulary: Vocabulary) -> Any:
    """The tokens that are whole texts in UTF-8, as characters."""
    rows = []
    for token, data in enumerate(vocabulary.token_bytes):
        try:
            text = (data or b"").decode()
        except UnicodeDecodeError:
            continue
        if text:
            rows.append((token, text, False))

    def decode(tokens: list[int]) -> str:
        return vocabulary.decode(tokens).decode(errors="replace")

    eos = sorted(vocabulary.eos_token_ids) or [vocabulary.size]
    data = load("lmformatenforcer", "lm-format-enforcer").TokenEnforcerTokenizerData
    return data(rows, decode, eos, False, vocabulary.size)


class EnforcerText(PeerText):
    """A text in lm-format-enforcer: all of its tokens."""

    __slots__ = ("_enforcer", "_ids", "_tokens", "_vocabulary")

    def __init__(self, enforcer: Any, vocabulary: Vocabulary, tokens: tuple[int, ...]) -> None:
        self._enforcer, self._vocabulary, self._tokens = enforcer, vocabulary, tokens
        self._ids: frozenset[int] | None = None  # what may follow

    def _allowed(self) -> frozenset[int]:
        if self._ids is None:
            # It finds a state by the text one token shorter, which it has met: a token is taken by its mask.
            self._ids = frozenset(self._enforcer.get_allowed_tokens(list(self._tokens)).allowed_tokens)
        return self._ids

    @property
    def is_accepting(self) -> bool:
        """Whether an end of the text is among what may follow."""
        eos = self._vocabulary.eos_token_ids or {self._vocabulary.size}
        return not eos.isdisjoint(self._allowed())

    def fill(self, words: Int32Array) -> None:
        """The allowed tokens."""
        size = self._vocabulary.size
        words |= bitmask_from_ids([one for one in self._allowed() if one < size], size)

    def accept(self, token: int) -> bool:
        """Go on with a token of the mask: it has no other answer."""
        if token not in self._allowed():
            return False
        self._tokens, self._ids = (*self._tokens, token), None
        return True

    def rollback(self, num_tokens: int) -> None:
        """Forget the last tokens."""
        if num_tokens:
            self._tokens, self._ids = self._tokens[:-num_tokens], None

    def fork(self) -> EnforcerText:
        """The same tokens; states are found by them."""
        return EnforcerText(self._enforcer, self._vocabulary, self._tokens)
