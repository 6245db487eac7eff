"""What is kept for long: answers of an object, and sets that are not made twice."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, Final, TypeVar, cast

from decodekit.constraints.priority import give_way

_UNKNOWN: Final = object()
_Element = TypeVar("_Element")
_Method = TypeVar("_Method", bound=Callable[..., Any])


def kept(method: _Method) -> _Method:
    """A method that answers each question once in the life of its object; its arguments are hashable."""
    name = f"_answers_of_{method.__name__}"

    @wraps(method)
    def answer(owner: object, *asked: Hashable) -> Any:
        answers = vars(owner).get(name)
        if answers is None:
            answers = vars(owner)[name] = {}  # with no reference to the object, which would be a circle
        key = asked[0] if len(asked) == 1 else asked  # a tuple is one object more for the garbage collector
        found = answers.get(key, _UNKNOWN)
        if found is _UNKNOWN:
            give_way()
            found = answers[key] = method(owner, *asked)
        return found

    return cast("_Method", answer)


def united(one: frozenset[_Element], other: frozenset[_Element]) -> frozenset[_Element]:
    """The union: one of the two where it is that, as mostly. Another set is one more for the garbage collector."""
    return one if one >= other else other if other >= one else one | other
