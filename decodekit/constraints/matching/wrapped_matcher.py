"""Matchers that answer by another one; one of them with a bound on the work of a constraint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, TypeVar, cast

from decodekit.constraints.matching.matcher import Matcher
from decodekit.constraints.work_budget import WorkBudget

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _forwarded(method: _Method) -> _Method:
    """A method of `Matcher`, answered by the other one."""
    name = method.__name__

    @wraps(method)
    def answer(self: WrappedMatcher, *asked: Any, **options: Any) -> Any:
        with self._work:
            return getattr(self.inner, name)(*asked, **options)

    return cast("_Method", answer)


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

    fill_bitmask = _forwarded(Matcher.fill_bitmask)
    refusal = _forwarded(Matcher.refusal)
    refusals = _forwarded(Matcher.refusals)
    completion = _forwarded(Matcher.completion)
    can_end_within = _forwarded(Matcher.can_end_within)
    fill_ending = _forwarded(Matcher.fill_ending)
    prepare = _forwarded(Matcher.prepare)
    accept = _forwarded(Matcher.accept)
    validate = _forwarded(Matcher.validate)
    forced_tokens = _forwarded(Matcher.forced_tokens)
    forced_text = _forwarded(Matcher.forced_text)
    explain = _forwarded(Matcher.explain)

    def ending_tokens(self) -> list[int]:
        """The tokens that the language allows and with which the text ends, if a guard is asked about them."""
        with self._work:
            return self.inner.ending_tokens() if isinstance(self.inner, WrappedMatcher) else []

    def rollback(self, num_tokens: int) -> None:
        """Forget the last tokens."""
        self.inner.rollback(num_tokens)

    def fork(self) -> Matcher:
        """An independent matcher in the same state."""
        raise NotImplementedError


class BudgetedMatcher(WrappedMatcher):
    """A matcher with a budget for its work, which forks share; see `work_budget.WorkBudget`.

    Every method may raise the `ResourceLimitError` of the budget; the text stands where it stood.
    """

    __slots__ = ("_work", "inner")

    inner: Matcher
    _work: WorkBudget

    def __init__(self, inner: Matcher, budget: WorkBudget) -> None:
        self.inner, self._work = inner, budget

    def fork(self) -> BudgetedMatcher:
        """A matcher in the same state, with the same budget."""
        return BudgetedMatcher(self.inner.fork(), self._work)
