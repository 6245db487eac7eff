"""Matchers that answer by another one; one of them with a bound on the work of a constraint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from decodekit.constraints.constraint import Refusal
from decodekit.constraints.engine.automaton import Int32Array
from decodekit.constraints.engine.division import NONE
from decodekit.constraints.explain.explanation import Explanation
from decodekit.constraints.matching.matcher import Matcher
from decodekit.constraints.work_budget import WorkBudget


class WrappedMatcher:
    """A matcher that answers as another one does. See `Matcher` for what the methods promise."""

    __slots__ = ()

    _work: AbstractContextManager[object] = nullcontext()
    """Around all that makes the other one work."""

    @property
    def inner(self) -> Matcher:
        """The other one."""
        raise NotImplementedError

    @property
    def has_guard(self) -> bool:
        """Whether tokens of an inexact mask may be refused."""
        return self.inner.has_guard

    @property
    def token_texts(self) -> Sequence[bytes | None]:
        """As in `Matcher`."""
        return self.inner.token_texts

    @property
    def num_tokens(self) -> int:
        """Tokens accepted so far, an end-of-sequence token included."""
        return self.inner.num_tokens

    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here."""
        with self._work:
            return self.inner.is_accepting

    @property
    def is_complete(self) -> bool:
        """Whether the text is whole and nothing can follow; a guard is asked last."""
        inner = self.inner
        with self._work:
            if isinstance(inner, WrappedMatcher):
                return inner.is_complete
            return inner.is_accepting and not inner.can_continue

    @property
    def is_terminated(self) -> bool:
        """Whether an end-of-sequence token was accepted."""
        return self.inner.is_terminated

    @property
    def can_continue(self) -> bool:
        """Whether some token that is not an end-of-sequence token is allowed."""
        with self._work:
            return self.inner.can_continue

    def fill_bitmask(self, out: Int32Array, row: int = 0, exact: bool = True) -> None:
        """Write the allowed tokens into ``out[row]``, int32 [rows, words]."""
        with self._work:
            self.inner.fill_bitmask(out, row, exact)

    def refusal(self, token: int) -> Refusal | None:
        """The guard's refusal of the text that `token` ends, or of all that begin with it."""
        with self._work:
            return self.inner.refusal(token)

    def refusals(self, is_early: bool = True) -> dict[int, Refusal]:
        """All tokens of the inexact mask that the guard refuses, with the reason."""
        with self._work:
            return self.inner.refusals(is_early)

    def ending_tokens(self) -> list[int]:
        """The tokens that the language allows and with which the text ends, if a guard is asked about them."""
        with self._work:
            return self.inner.ending_tokens() if isinstance(self.inner, WrappedMatcher) else []

    def completion(self, left_out: frozenset[int] = NONE) -> tuple[int, ...]:
        """Few tokens with which the text becomes whole."""
        with self._work:
            return self.inner.completion(left_out)

    def can_end_within(self, num_tokens: int, token: int, left_out: frozenset[int] = NONE) -> bool:
        """Whether `token` is allowed and the `completion` of the text after it has at most so many tokens."""
        with self._work:
            return self.inner.can_end_within(num_tokens, token, left_out)

    def fill_ending(self, out: Int32Array, num_tokens: int, left_out: frozenset[int] = NONE) -> None:
        """Write the tokens for which `can_end_within` holds into ``out``, int32 [words]."""
        with self._work:
            self.inner.fill_ending(out, num_tokens, left_out)

    def prepare(self, num_things: int, token: int | None = None) -> bool:
        """Do a part of the work of `fill_bitmask`, or of `accept` for a token; whether it needs no more."""
        with self._work:
            return self.inner.prepare(num_things, token)

    def accept(self, token: int) -> bool:
        """Go on with `token` if it is allowed; otherwise False, and nothing changes."""
        with self._work:
            return self.inner.accept(token)

    def validate(self, tokens: Sequence[int]) -> int:
        """The number of the first `tokens` that could be accepted one after the other; changes nothing."""
        with self._work:
            return self.inner.validate(tokens)

    def rollback(self, num_tokens: int) -> None:
        """Forget the last tokens."""
        self.inner.rollback(num_tokens)

    def fork(self) -> Matcher:
        """An independent matcher in the same state."""
        raise NotImplementedError

    def forced_tokens(self) -> list[int]:
        """The run of tokens each of which is the only one allowed; changes nothing."""
        with self._work:
            return self.inner.forced_tokens()

    def forced_text(self, gaps: Mapping[int, bytes] | None = None) -> bytes:
        """The run of bytes each of which is the only one that may follow; changes nothing."""
        with self._work:
            return self.inner.forced_text(gaps)

    def explain(self, asked: int | str | bytes) -> Explanation:
        """Whether a token or a text may come next, and why not; changes nothing."""
        with self._work:
            return self.inner.explain(asked)


class BudgetedMatcher(WrappedMatcher):
    """A matcher with a budget for its work, which forks share; see `work_budget.WorkBudget`.

    Every method may raise the `ResourceLimitError` of the budget; the text stands where it stood.

    Args:
        inner: answers.
        budget: for all that is asked.
    """

    __slots__ = ("_work", "inner")

    inner: Matcher
    _work: WorkBudget

    def __init__(self, inner: Matcher, budget: WorkBudget) -> None:
        self.inner, self._work = inner, budget

    def fork(self) -> BudgetedMatcher:
        """A matcher in the same state, with the same budget."""
        return BudgetedMatcher(self.inner.fork(), self._work)
