"""Where one sequence stands in its constraint: which tokens may follow, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, runtime_checkable

from decodekit.constraints.automaton import Int32Array
from decodekit.constraints.configurations import State, Unfolding
from decodekit.constraints.masks import Masks
from decodekit.vocabulary import Vocabulary

MAX_FORCED: Final = 1024
"""`forced_tokens` returns so many at most; a language may force without end."""


@runtime_checkable
class Matcher(Protocol):
    """The state of one sequence under a constraint. Not shared between threads; `fork` makes another.

    Laws: `accept(t)` succeeds exactly when the mask has bit t. `accept` then `rollback(1)` leaves every mask as it was.
    A fork and its original do not influence each other. Equal texts have equal masks, whatever their tokens. The mask
    has the end-of-sequence tokens (all of them) exactly when `is_accepting`, and is empty once `is_terminated`.
    """

    @property
    def num_tokens(self) -> int:
        """Tokens accepted so far, an end-of-sequence token included."""

    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here."""

    @property
    def is_terminated(self) -> bool:
        """Whether an end-of-sequence token was accepted."""

    @property
    def can_continue(self) -> bool:
        """Whether some token that is no end-of-sequence token is allowed."""

    def fill_bitmask(self, out: Int32Array, row: int = 0) -> None:
        """Write the allowed tokens into ``out[row]``, int32 [rows, words]."""

    def accept(self, token: int) -> bool:
        """Go on with `token` if it is allowed; otherwise False, and nothing changes."""

    def validate(self, tokens: Sequence[int]) -> int:
        """How many of the first `tokens` could be accepted one after the other; changes nothing."""

    def rollback(self, num_tokens: int) -> None:
        """Forget the last tokens.

        Raises:
            ValueError: fewer were accepted, or a negative number.
        """

    def fork(self) -> Matcher:
        """An independent matcher in the same state."""

    def forced_tokens(self) -> list[int]:
        """The run of tokens each of which is the only one allowed; changes nothing.

        No end-of-sequence token is among them, and the run ends where the text may end. At most `MAX_FORCED` tokens.
        """


class GrammarMatcher:
    """The matcher of a compiled grammar. See `Matcher` for what the methods promise."""

    __slots__ = ("_masks", "_path", "_token_bytes", "_unfolding", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary, unfolding: Unfolding, masks: Masks, path: list[State]) -> None:
        self._vocabulary = vocabulary
        self._token_bytes = vocabulary.token_bytes
        self._unfolding = unfolding
        self._masks = masks
        self._path = path  # the state before the first token and after each one; states are immutable

    @property
    def num_tokens(self) -> int:
        """Tokens accepted so far, an end-of-sequence token included."""
        return len(self._path) - 1

    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here; False once it has."""
        return self._path[-1].is_accepting

    @property
    def is_terminated(self) -> bool:
        """Whether an end-of-sequence token was accepted."""
        return self._path[-1] is self._unfolding.ended

    @property
    def can_continue(self) -> bool:
        """Whether some token that is no end-of-sequence token is allowed."""
        state = self._path[-1]
        if not state.configurations:
            return False
        num_eos = len(self._vocabulary.eos_token_ids) if state.is_accepting else 0
        return self._masks.mask(state).num_allowed > num_eos

    def fill_bitmask(self, out: Int32Array, row: int = 0) -> None:
        """Write the allowed tokens into ``out[row]``, int32 [rows, words]."""
        self._masks.mask(self._path[-1]).fill(out[row])

    def accept(self, token: int) -> bool:
        """Go on with `token` if it is allowed; otherwise False, and nothing changes."""
        target = self._after(self._path[-1], token)
        if target is None:
            return False
        self._path.append(target)
        return True

    def validate(self, tokens: Sequence[int]) -> int:
        """How many of the first `tokens` could be accepted one after the other; changes nothing."""
        state: State | None = self._path[-1]
        for count, token in enumerate(tokens):
            assert state is not None
            state = self._after(state, token)
            if state is None:
                return count
        return len(tokens)

    def rollback(self, num_tokens: int) -> None:
        """Forget the last `num_tokens` tokens."""
        if not 0 <= num_tokens < len(self._path):
            raise ValueError(f"cannot roll back {num_tokens} of {self.num_tokens} tokens")
        if num_tokens:
            del self._path[-num_tokens:]

    def fork(self) -> GrammarMatcher:
        """An independent matcher in the same state."""
        return GrammarMatcher(self._vocabulary, self._unfolding, self._masks, self._path.copy())

    def forced_tokens(self) -> list[int]:
        """The run of tokens each of which is the only one allowed; changes nothing."""
        state = self._path[-1]
        forced: list[int] = []
        while not state.is_accepting and len(forced) < MAX_FORCED:
            token = self._masks.mask(state).only_token()
            target = None if token is None else self._after(state, token)
            if token is None or target is None:
                break
            forced.append(token)
            state = target
        return forced

    def _after(self, state: State, token: int) -> State | None:
        if not 0 <= token < len(self._token_bytes):
            return None
        data = self._token_bytes[token]
        if data is None:
            ends = state.is_accepting and token in self._vocabulary.eos_token_ids
            return self._unfolding.ended if ends else None
        return self._unfolding.read(state, data)
