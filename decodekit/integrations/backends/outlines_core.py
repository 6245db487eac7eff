"""outlines-core (https://github.com/dottxt-ai/outlines-core), read with version 0.2.14: a pattern as an automaton over
tokens, made in advance.

Its state is a number and its index a table, so a text is the list of its states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from decodekit.constraints.constraint import Constraint
from decodekit.constraints.engine.automaton import Int32Array
from decodekit.constraints.engine.bitmask import bitmask_from_ids
from decodekit.integrations.backends.peer import PeerText, form_of, load, refused, token_ids_by_bytes
from decodekit.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class OutlinesCore:
    """outlines-core as a `Peer`.

    Args:
        whitespace_pattern: what may stand between the tokens of JSON; None is its own.
        max_recursion_depth: how often a reference to itself is unfolded.
    """

    whitespace_pattern: str | None = None
    max_recursion_depth: int = 3
    name: ClassVar[str] = "outlines-core"

    def compile(self, constraint: Constraint, vocabulary: Vocabulary) -> Callable[[], OutlinesText]:
        """Its index; raises what `Peer.compile` raises."""
        lib = load("outlines_core", self.name)
        form = form_of(constraint, self.name, ("schema", "pattern"))
        try:
            pattern = form.text
            if form.kind == "schema":
                build = load("outlines_core.json_schema", self.name).build_regex_from_schema
                pattern = build(form.text, self.whitespace_pattern, self.max_recursion_depth)
            index = lib.Index(pattern, tokens_of(vocabulary))
        except Exception as error:  # ValueError of patterns; errors of schemas are of several kinds
            raise refused(self.name, error) from error
        masks: dict[int, Int32Array] = {}
        return lambda: OutlinesText(index, vocabulary.size, masks, [index.get_initial_state()])


@lru_cache(maxsize=4)
def tokens_of(vocabulary: Vocabulary) -> Any:
    """The vocabulary as outlines-core has it. It knows one end of the text; without any, an id that no token has."""
    eos = min(vocabulary.eos_token_ids, default=vocabulary.size)
    return load("outlines_core", "outlines-core").Vocabulary(eos, token_ids_by_bytes(vocabulary)[0])


class OutlinesText(PeerText):
    """A text in outlines-core: its index, and the state before the first token and after each one."""

    __slots__ = ("_index", "_masks", "_path", "_size")

    def __init__(self, index: Any, size: int, masks: dict[int, Int32Array], path: list[int]) -> None:
        self._index, self._size, self._masks, self._path = index, size, masks, path

    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here."""
        return bool(self._index.is_final_state(self._path[-1]))

    def fill(self, words: Int32Array) -> None:
        """The allowed tokens; the mask of a state is made once."""
        state = self._path[-1]
        if state not in self._masks:
            allowed = self._index.get_allowed_tokens(state) or ()
            self._masks[state] = bitmask_from_ids([token for token in allowed if token < self._size], self._size)
        words[:] = self._masks[state]

    def accept(self, token: int) -> bool:
        """Go on with a token."""
        target = self._index.get_next_state(self._path[-1], token)
        if target is None:
            return False
        self._path.append(target)
        return True

    def rollback(self, num_tokens: int) -> None:
        """Forget the last tokens."""
        if num_tokens:
            del self._path[-num_tokens:]

    def fork(self) -> OutlinesText:
        """A copy of the path."""
        return OutlinesText(self._index, self._size, self._masks, self._path.copy())
