"""Answers that an object keeps."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, Final, TypeVar, cast

_UNKNOWN: Final = object()
_Method = TypeVar("_Method", bound=Callable[..., Any])


def kept(method: _Method) -> _Method:
    """A method that answers each question once in the life of its object; its arguments are hashable."""
    name = f"_answers_of_{method.__name__}"

    @wraps(method)
    def answer(owner: object, *asked: Hashable) -> Any:
        answers = vars(owner).get(name)
        if answers is None:
            answers = vars(owner)[name] = {}  # with no reference to the object, which would be a circle
        found = answers.get(asked, _UNKNOWN)
        if found is _UNKNOWN:
            found = answers[asked] = method(owner, *asked)
        return found

    return cast("_Method", answer)
