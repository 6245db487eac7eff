"""Stand-ins for other engines: our own behind their protocol, and what goes wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from decodekit.constraints import Constraint, Matcher, compile
from decodekit.constraints.engine.automaton import Int32Array
from decodekit.vocabulary import Vocabulary


@dataclass(frozen=True)
class OwnPeer:
    """Our engine as a peer.

    Args:
        instead: the constraint that is followed in place of the one that is asked for.
        hidden: a token that the masks leave out, although `accept` takes it.
    """

    instead: Constraint | None = None
    hidden: int | None = None
    name: str = "stand-in"

    def compile(self, constraint: Constraint, vocabulary: Vocabulary) -> Callable[[], OwnText]:
        grammar = compile(self.instead or constraint, vocabulary)
        return lambda: OwnText(grammar.matcher(), self.hidden)


class OwnText:
    def __init__(self, matcher: Matcher, hidden: int | None) -> None:
        self.matcher, self.hidden = matcher, hidden
        self.num_masks = 0

    @property
    def is_accepting(self) -> bool:
        return self.matcher.is_accepting

    def fill(self, words: Int32Array) -> None:
        self.num_masks += 1
        self.matcher.fill_bitmask(words[None])
        if self.hidden is not None:
            words[self.hidden >> 5] &= ~(1 << (self.hidden & 31))

    def accept(self, token: int) -> bool:
        return self.matcher.accept(token)

    def rollback(self, num_tokens: int) -> None:
        self.matcher.rollback(num_tokens)

    def fork(self) -> OwnText:
        return OwnText(self.matcher.fork(), self.hidden)

    def forced_text(self) -> bytes:
        return self.matcher.forced_text()
